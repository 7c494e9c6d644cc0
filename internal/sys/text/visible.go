package text

import (
	"fmt"
	"io"
	"strconv"
	"sync"
	"unicode/utf16"
	"unicode/utf8"
)

// visible escapes every unprintable character except newline and tab as \uXXXX. Names, commands, images
// and logs are not trusted, and a terminal obeys escape sequences and bidirectional controls. \uXXXX is JSON's own escape,
// so JSON keeps its meaning.
type visible struct {
	w    io.Writer
	mu   sync.Mutex // what commands say may come from several goroutines
	rest []byte     // the first bytes of a rune that the next Write completes
}

// NewVisible returns a writer that escapes every unprintable character except newline and tab as \uXXXX, then writes to w.
func NewVisible(w io.Writer) io.Writer { return &visible{w: w} }

// Write implements io.Writer.
func (v *visible) Write(p []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
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

// Raw returns the writer below one of NewVisible; any other writer as it is.
func Raw(w io.Writer) io.Writer {
	if v, ok := w.(*visible); ok {
		return v.w
	}
	return w
}
