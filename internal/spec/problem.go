package spec

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
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
	best := max(1, min(3, len(word)/2)) + 1
	for _, a := range allowed {
		if d := distance(word, a); d < best {
			best, meant = d, a
		}
	}
	if meant != "" {
		return meant, "did you mean " + meant + "?"
	}
	return "", "allowed: " + strings.Join(allowed, ", ")
}

// distance is the number of letters to insert, delete, replace or swap with their neighbour to make b of a
// (optimal string alignment). Words much longer than keys are far from everything.
func distance(a, b string) int {
	const longest = 40
	if len(a) > longest {
		return longest
	}
	var before, last, row []int
	for i := range len(a) + 1 {
		before, last, row = last, row, make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			if i == 0 {
				row[j] = j
				continue
			}
			replaced := last[j-1]
			if a[i-1] != b[j-1] {
				replaced++
			}
			row[j] = min(last[j]+1, row[j-1]+1, replaced)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(b)]
}
