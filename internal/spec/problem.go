package spec

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"berth/internal/nearest"
)

// Problem is one thing that is wrong with a file of specs.
type Problem struct {
	File   string `json:"file"`
	Line   int    `json:"line"`   // from 1
	Column int    `json:"column"` // from 1, in characters
	Field  string `json:"field"`  // "io[0].read.rate"; "" if it is about no key
	Msg    string `json:"message"`
}

// String is one line: FILE:LINE:COLUMN: FIELD: MESSAGE.
func (p Problem) String() string {
	if p.Field == "" {
		return fmt.Sprintf("%s:%d:%d: %s", p.File, p.Line, p.Column, p.Msg)
	}
	return fmt.Sprintf("%s:%d:%d: %s: %s", p.File, p.Line, p.Column, p.Field, p.Msg)
}

// Problems is everything that is wrong with a file, in the order of its lines.
type Problems []Problem

// Error has one line a problem.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i := range p {
		lines[i] = p[i].String()
	}
	return strings.Join(lines, "\n")
}

func (p Problems) sort() {
	slices.SortStableFunc(p, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}

func (p place) lineText() string { return strconv.Itoa(p.line) }

// quote shows a value in a message, cut if it is long.
func quote(s string) string {
	const longest = 60
	if r := []rune(s); len(r) > longest {
		s = string(r[:longest]) + "…"
	}
	return strconv.Quote(s)
}

// suggest names the word that was probably meant, or all of them.
func suggest(word string, allowed []string) (meant, text string) {
	if meant = nearest.To(word, allowed); meant != "" {
		return meant, "did you mean " + meant + "?"
	}
	return "", "allowed: " + strings.Join(allowed, ", ")
}
