package inflate

import (
	"bytes"
	"compress/gzip"
	"io"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// skip is a frame that decoders pass over (RFC 8878, 3.1.2): pzstd and others write one first.
func skip(kind byte, content string) []byte {
	return append([]byte{0x50 | kind, 0x2a, 0x4d, 0x18, byte(len(content)), 0, 0, 0}, content...)
}

// TestZstd: any stream that zstd's format allows is read, but for those that need more memory, or what is not there; and of these it is said.
func TestZstd(t *testing.T) {
	enc, err := zstd.NewWriter(nil)
	testkit.Must(t, err)
	text := strings.Repeat("some text ", 1000)
	frame := enc.EncodeAll([]byte(text), nil)
	// A frame of one block that is not compressed, with this descriptor of its window, and what the header has more.
	raw := func(flags byte, more ...byte) []byte {
		return append(append([]byte{0x28, 0xb5, 0x2f, 0xfd, flags}, more...), 5<<3|1, 0, 0, 'h', 'e', 'l', 'l', 'o')
	}
	for name, c := range map[string]struct {
		stream     []byte
		want, says string
	}{
		"a frame":             {frame, text, ""},
		"skipped first":       {append(skip(0, "12345678"), frame...), text, ""},
		"several, and after":  {append(append(append(skip(15, ""), skip(3, "x")...), frame...), skip(7, "end")...), text, ""},
		"two frames":          {append(append([]byte{}, frame...), frame...), text + text, ""},
		"window of 128 MiB":   {raw(0, 17<<3), "hello", ""},
		"window of 2 GiB":     {raw(0, 21<<3), "", "--long=27"},
		"2 GiB in one":        {raw(0xa0, 0, 0, 0, 0x80), "", "--long=27"},
		"block over window":   {append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0, 0, 2000 << 3 & 0xff, 2000 >> 5, 0}, make([]byte, 2000)...), "", "is damaged"}, // of 1 KiB
		"by a dictionary":     {raw(1, 17<<3, 7), "", "dictionary"},
		"cut off in a frame":  {frame[:len(frame)-3], "", "unexpected EOF"},
		"cut off in a header": {skip(0, "12345678")[:10], "", "EOF"},
	} {
		r, err := Reader(bytes.NewReader(c.stream))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := io.ReadAll(r)
		if c.says == "" && (err != nil || string(got) != c.want) || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %.40q, %v; want %.40q, %q", name, got, err, c.want, c.says)
		}
		if strings.Contains(c.says, "long") && refuse.KindOf(err) != refuse.Invalid {
			t.Errorf("%s: kind %d", name, refuse.KindOf(err))
		}
	}
}

// zeros reads as n zeros.
type zeros struct{ n int }

func (z *zeros) Read(p []byte) (int, error) {
	if z.n == 0 {
		return 0, io.EOF
	}
	n := min(len(p), z.n)
	z.n -= n
	clear(p[:n])
	return n, nil
}

// TestGrowing: what grows beyond all measure is refused when it does. A stream that grows as gzip can is read.
func TestGrowing(t *testing.T) {
	const size = 64 << 20
	var small, ordinary bytes.Buffer
	enc, err := zstd.NewWriter(&small, zstd.WithEncoderLevel(zstd.SpeedFastest))
	testkit.Must(t, err)
	_, err = io.Copy(enc, &zeros{size})
	testkit.Must(t, err, enc.Close())
	z := gzip.NewWriter(&ordinary)
	_, err = io.Copy(z, &zeros{size})
	testkit.Must(t, err, z.Close())
	for name, c := range map[string]struct {
		stream []byte
		free   int64
		whole  bool
	}{"zstd": {small.Bytes(), 8 << 20, false}, "zstd, not so large": {small.Bytes(), size, true}, "gzip": {ordinary.Bytes(), 8 << 20, true}} {
		r, err := Reader(bytes.NewReader(c.stream))
		testkit.Must(t, err)
		r.(*growing).free = c.free
		n, err := io.Copy(io.Discard, r)
		if c.whole && (err != nil || n != size) || !c.whole && (refuse.KindOf(err) != refuse.Invalid || n > c.free || !strings.Contains(err.Error(), "unpack to more than")) {
			t.Errorf("%s: %d bytes, %v", name, n, err)
		}
	}
}
