package text

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRowsFit checks that a table fits its width, and that a first cell that is too long stands above its line.
func TestRowsFit(t *testing.T) {
	rows := [][]string{{"LIMIT", "ASKED", "BY"}, {"io.a-long-name-of-a-disk.read.rate", "200MB/s", "io.max"}, {"pids", "5", ""}}
	for width, want := range map[int]string{
		0:  "LIMIT                               ASKED    BY\nio.a-long-name-of-a-disk.read.rate  200MB/s  io.max\npids                                5\n",
		51: "LIMIT                               ASKED    BY\nio.a-long-name-of-a-disk.read.rate  200MB/s  io.max\npids                                5\n",
		40: "LIMIT                    ASKED    BY\nio.a-long-name-of-a-disk.read.rate\n                         200MB/s  io.max\npids                     5\n",
		20: "LIMIT             ASKED    BY\nio.a-long-name-of-a-disk.read.rate\n                  200MB/s  io.max\npids              5\n",
	} {
		var b bytes.Buffer
		if err := Rows(&b, width, rows); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, b.String()); diff != "" {
			t.Errorf("%d columns: %s", width, diff)
		}
	}
}

func TestWrap(t *testing.T) {
	for _, tt := range []struct {
		width      int
		head, text string
		want       string
	}{
		{0, "a: ", strings.Repeat("word ", 30), "a: " + strings.TrimRight(strings.Repeat("word ", 30), " ") + "\n"},
		{20, "a: ", "one two three four five", "a: one two three\n  four five\n"},
		{20, "a: ", "one /a/path/that/is/longer/than/the/line two", "a: one\n  /a/path/that/is/longer/than/the/line\n  two\n"},
		{20, "a: ", "äöü äöü äöü äöü äöü", "a: äöü äöü äöü äöü\n  äöü\n"},
		{20, "a: ", "", "a:\n"},
		{20, "a: ", "two  spaces", "a: two  spaces\n"},
	} {
		var b bytes.Buffer
		Wrap(&b, tt.width, 2, tt.head, tt.text)
		if diff := cmp.Diff(tt.want, b.String()); diff != "" {
			t.Errorf("wrap %q to %d:\n%s", tt.text, tt.width, diff)
		}
	}
}
