package cli

import (
	"fmt"
	"io"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// visible writes text to a terminal or file with everything that does not print, but newline and tab, written out as
// \uXXXX: names, commands, images and logs come from others, and a terminal obeys what it is sent (escape sequences,
// text that runs backwards). The form is JSON's own, so that JSON stays what it says.
type visible struct {
	w    io.Writer
	rest []byte // the begin of a letter of several bytes, whose end comes with the next Write
}

// Write implements io.Writer.
func (v *visible) Write(p []byte) (int, error) {
	in := append(v.rest, p...)
	v.rest = nil
	out := make([]byte, 0, len(in))
	for len(in) > 0 {
		if !utf8.FullRune(in) {
			v.rest = append([]byte(nil), in...)
			break
		}
		r, n := utf8.DecodeRune(in)
		switch {
		case r == utf8.RuneError && n == 1:
			out = fmt.Appendf(out, `\x%02x`, in[0])
		case r == '\n' || r == '\t' || strconv.IsPrint(r):
			out = append(out, in[:n]...)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		in = in[n:]
	}
	if _, err := v.w.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// raw is the writer that a visible one writes to.
func raw(w io.Writer) io.Writer {
	if v, ok := w.(*visible); ok {
		return v.w
	}
	return w
}
