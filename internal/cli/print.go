package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// helpWidth is the width of help texts: the usual width of a terminal.
const helpWidth = 80

// columns returns the width of the terminal that w writes to; 0, which means no bound, if w is no terminal.
func columns(w io.Writer) int {
	f, ok := raw(w).(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0
	}
	n, _, err := term.GetSize(int(f.Fd()))
	if err != nil || n < 40 { // a terminal that does not know its size says 0
		return helpWidth
	}
	return n
}

// wrap writes head and text as one line, and breaks it at spaces if it is longer than width (0: no bound). Later lines
// begin in column indent. A word that is too long stays whole, so that it can be copied.
func wrap(w io.Writer, width, indent int, head, text string) {
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

// note is a remark on the limit, device or step that key names.
type note struct{ key, text string }

// printNotes writes each remark once, after the keys that it is about. A text may hold several remarks, separated by "; ".
func printNotes(w io.Writer, width int, notes []note) {
	var order []string
	keys := map[string][]string{}
	for _, n := range notes {
		for text := range strings.SplitSeq(n.text, "; ") {
			if text == "" {
				continue
			}
			if keys[text] == nil {
				order = append(order, text)
			}
			keys[text] = append(keys[text], n.key)
		}
	}
	for _, text := range order {
		wrap(w, width, 2, "", strings.Join(keys[text], ", ")+": "+text)
	}
}
