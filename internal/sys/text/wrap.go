// Package text writes text for people: wrapped to the width of their terminal, in tables, with sizes and times in words, and
// with nothing in it that a terminal would obey.
package text

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// Width is the width of help texts: the usual width of a terminal.
const Width = 80

// Columns returns the width of the terminal that w writes to; 0, which means no bound, if w is no terminal.
func Columns(w io.Writer) int {
	f, ok := Raw(w).(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0
	}
	n, _, err := term.GetSize(int(f.Fd()))
	if err != nil || n < 40 { // a terminal that does not know its size says 0
		return Width
	}
	return n
}

// Wrap writes head and text as one line, and breaks it at spaces if it is longer than width (0: no bound). Later lines
// begin in column indent. A word that is too long stays whole, so that it can be copied.
func Wrap(w io.Writer, width, indent int, head, text string) {
	var b strings.Builder
	b.WriteString(head)
	col, first := utf8.RuneCountInString(head), true
	for word := range strings.SplitSeq(text, " ") {
		n := utf8.RuneCountInString(word)
		switch {
		case first:
		case width > 0 && col+1+n > width:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			col = indent
		default:
			b.WriteByte(' ')
			col++
		}
		b.WriteString(word)
		col, first = col+n, false
	}
	fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
}

// Note is a remark on the limit, device or step that Key names.
type Note struct{ Key, Text string }

// Notes writes each remark once, after the keys that it is about. A text may hold several remarks, separated by "; ".
func Notes(w io.Writer, width int, notes []Note) {
	var order []string
	keys := map[string][]string{}
	for _, n := range notes {
		for text := range strings.SplitSeq(n.Text, "; ") {
			if text == "" {
				continue
			}
			if keys[text] == nil {
				order = append(order, text)
			}
			keys[text] = append(keys[text], n.Key)
		}
	}
	for _, text := range order {
		Wrap(w, width, 2, "", strings.Join(keys[text], ", ")+": "+text)
	}
}
