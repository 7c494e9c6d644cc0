// Command terminal draws what a terminal showed, read from its standard input, as two SVG pictures for light and for dark pages.
//
//	terminal NAME <TEXT    writes NAME-light.svg and NAME-dark.svg
//
// A line that begins with "# " is a command; the others are what it printed.
package main

import (
	"fmt"
	"html"
	"io"
	"os"
	"strings"
	"unicode/utf8"
)

const (
	columns = 72 // of the terminal; longer lines go on in the next one
	cell10  = 84 // tenths of a pixel, the width of a character
	height  = 20 // pixels, of a line
	margin  = 16 // pixels, around the text
)

// colours of a picture, as on the pages of GitHub.
type colours struct{ page, frame, text, muted string }

var pictures = map[string]colours{
	"light": {page: "#f6f8fa", frame: "#d1d9e0", text: "#1f2328", muted: "#59636e"},
	"dark":  {page: "#151b23", frame: "#3d444d", text: "#f0f6fc", muted: "#9198a1"},
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "terminal:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("want one name of pictures, not %q", args)
	}
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	for name, c := range pictures {
		if err := os.WriteFile(args[0]+"-"+name+".svg", []byte(draw(string(text), c)), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// draw returns the picture of a text.
func draw(text string, c colours) string {
	var b strings.Builder
	y := margin - 6 // pixels, of the base line
	line := func(text, style string) {
		y += height
		if width := float64(utf8.RuneCountInString(text)) * cell10 / 10; text != "" { // whatever the font, columns stand below each other
			fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\" textLength=\"%.1f\" lengthAdjust=\"spacingAndGlyphs\"%s>%s</text>\n", margin, y, width, style, html.EscapeString(text))
		}
	}
	for i, l := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		style := ""
		if strings.HasPrefix(l, "# ") {
			style = ` class="command"`
			if i > 0 {
				y += height / 2
			}
		}
		for _, part := range wrap(strings.TrimRight(l, " ")) {
			line(part, style)
		}
	}
	width, tall := columns*cell10/10+2*margin, y+margin
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d">
<style>text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:%s;white-space:pre}.command{font-weight:bold;fill:%s}</style>
<rect x=".5" y=".5" width="%d" height="%d" rx="6" fill="%s" stroke="%s"/>
%s</svg>
`, width, tall, width, tall, c.muted, c.text, width-1, tall-1, c.page, c.frame, b.String())
}

// wrap cuts a line that is longer than the terminal, after a space if there is one.
func wrap(line string) []string {
	var parts []string
	for r := []rune(line); ; {
		if len(r) <= columns {
			return append(parts, string(r))
		}
		at := columns
		for i := columns; i > columns/2; i-- {
			if r[i-1] == ' ' {
				at = i
				break
			}
		}
		parts, r = append(parts, strings.TrimRight(string(r[:at]), " ")), r[at:]
	}
}
