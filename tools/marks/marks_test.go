package marks

import "testing"

func TestPlace(t *testing.T) {
	const begin, end = "<!-- x: made by make x -->\n", "<!-- x -->\n"
	got, err := Place("a\n"+begin+"old\n"+end+"b\n", "x", "new\n")
	if err != nil || got != "a\n"+begin+"new\n"+end+"b\n" {
		t.Errorf("%q, %v", got, err)
	}
	for _, bad := range []string{"a\n", begin, end, begin + "a\n" + begin + end} {
		if _, err := Place(bad, "x", "new\n"); err == nil {
			t.Errorf("%q is changed", bad)
		}
	}
}
