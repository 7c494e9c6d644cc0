package text

import (
	"bytes"
	"encoding/json"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestVisible(t *testing.T) {
	for in, want := range map[string]string{
		"plain → text\n\tand more\n":  "plain → text\n\tand more\n",
		"\x1b[2J\x1b]0;title\x07":     `\u001b[2J\u001b]0;title\u0007`,
		"a\rb\x7f":                    `a\u000db\u007f`,
		"\u009b31m \u202eback \ufeff": `\u009b31m \u202eback \ufeff`,
		"\x9b31m":                     `\x9b31m`,
		"\U000e0041 \U0001f600":       "\\udb40\\udc41 \U0001f600",
	} {
		var out bytes.Buffer
		if _, err := io.WriteString(NewVisible(&out), in); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Error(diff)
		}
	}
}

// TestVisibleJSON checks that JSON keeps its meaning, in whatever pieces it is written.
func TestVisibleJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.String().Draw(t, "text")
		text, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		v := NewVisible(&out)
		for len(text) > 0 {
			n := rapid.IntRange(1, len(text)).Draw(t, "piece")
			if _, err := v.Write(text[:n]); err != nil {
				t.Fatal(err)
			}
			text = text[n:]
		}
		var got string
		if err := json.Unmarshal(out.Bytes(), &got); err != nil || got != want {
			t.Errorf("%q became %q (%v)", want, got, err)
		}
		for _, r := range out.String() {
			if r < ' ' {
				t.Errorf("%q holds %q", out.String(), r)
			}
		}
	})
}
