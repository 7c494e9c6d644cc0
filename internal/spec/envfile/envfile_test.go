package envfile

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/sys/refuse"
)

func lookup(name string) (string, bool) { return "called " + name, name == "HERE" }

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"": nil, "# A=1\n\n  \n": nil, "A=1": {"A=1"}, "A=1\r\nB=2\r\n": {"A=1", "B=2"}, "A=": {"A="}, "A=b=c # d": {"A=b=c # d"},
		"A=\"q\"": {"A=\"q\""}, "HERE\nGONE\n": {"HERE=called HERE"}, "A= x ": {"A= x "},
	} {
		got, err := parse(strings.NewReader(text), "f", lookup)
		if err != nil || !cmp.Equal(got, want) {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
}

// TestNoValueInErrors checks that an error names the line and tells nothing of what stands there.
func TestNoValueInErrors(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"A=1\n=secret\n", "A=1\nsecret word=1\n", "A=1\nA=secret\x00\n", "A=1\nA=secret\xff\n", "A=1\nsecret\x01\n"} {
		_, err := parse(strings.NewReader(text), "file", lookup)
		if refuse.KindOf(err) != refuse.Invalid || !strings.HasPrefix(err.Error(), "file:2: ") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := parse(strings.NewReader(strings.Repeat("A=1\n", 1<<19)), "file", lookup); refuse.KindOf(err) != refuse.Invalid {
		t.Errorf("a file of 2 MiB: %v", err)
	}
}
