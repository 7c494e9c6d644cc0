package spec

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"berth/internal/sys/suggest"
)

// Problem is one thing that is wrong with a file of specs.
type Problem struct {
	File   string `json:"file"`
	Line   int    `json:"line"`   // from 1
	Column int    `json:"column"` // from 1, in characters
	Field  string `json:"field"`  // "io[0].read.rate"; "" if the problem is not about a key
	Msg    string `json:"message"`
}

// String returns one line: FILE:LINE:COLUMN: FIELD: MESSAGE.
func (p Problem) String() string {
	if p.Field == "" {
		return fmt.Sprintf("%s:%d:%d: %s", p.File, p.Line, p.Column, p.Msg)
	}
	return fmt.Sprintf("%s:%d:%d: %s: %s", p.File, p.Line, p.Column, p.Field, p.Msg)
}

// Problems holds all problems of a file, sorted by line and column.
type Problems []Problem

// Error returns one line per problem.
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

func (p position) lineText() string { return strconv.Itoa(p.line) }

// quote quotes a value for a message and cuts it if it is long.
func quote(s string) string {
	const longest = 60
	if r := []rune(s); len(r) > longest {
		s = string(r[:longest]) + "…"
	}
	return strconv.Quote(s)
}

// hint returns the allowed word that was probably meant, if any, and a hint for the message.
func hint(word string, allowed []string) (meant, text string) {
	if meant = suggest.To(word, allowed); meant != "" {
		return meant, "did you mean " + meant + "?"
	}
	return "", "allowed: " + strings.Join(allowed, ", ")
}
