package main

import (
	"encoding/xml"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
)

// TestWrap checks that long lines are cut after a space, or at the terminal's width if there is none.
func TestWrap(t *testing.T) {
	long := strings.Repeat("x", columns)
	for line, want := range map[string][]string{
		"":                          {""},
		long:                        {long},
		long + "yy":                 {long, "yy"},
		long[:60] + " " + long[:20]: {long[:60], long[:20]},
	} {
		if got := wrap(line); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}

// TestDraw checks that a picture is well-formed XML with the text of the session, and that commands stand out.
func TestDraw(t *testing.T) {
	picture := draw("# a <b> && c\nd > e\n", pictures["dark"])
	var text strings.Builder
	for d := xml.NewDecoder(strings.NewReader(picture)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in %s", err, picture)
		}
		if s, ok := token.(xml.CharData); ok {
			text.Write(s)
		}
	}
	for _, want := range []string{"# a <b> && c", "d > e"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in %s", want, picture)
		}
	}
	if n := strings.Count(picture, `class="command"`); n != 1 {
		t.Errorf("%d commands in %s", n, picture)
	}
}
