package packed

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"berth/internal/sys/jsonfile"
	"berth/internal/sys/refuse"
)

// The description of an image (command, environment, user) lies behind the file system, where the kernel does not look:
// the JSON of a Trailer, zeros, and a footer of 64 bytes, in whole blocks. So it is part of the file's digest, and travels
// with the file.
//
//	0   "BERTHIMG"
//	8   version of this format, 4 bytes, little-endian
//	12  bytes of the JSON, 4 bytes
//	16  SHA-256 of the JSON
//	48  zeros

// Trailer is the description of an image in its packed file.
type Trailer struct {
	Image   string          `json:"image,omitempty"`  // its name where it was packed
	Created time.Time       `json:"created,omitzero"` // when the image was made
	Config  json.RawMessage `json:"config,omitempty"` // how to run it
}

const (
	block       = 4096 // of erofs, and the unit in which loop devices read past the page cache
	footerSize  = 64
	trailerMark = "BERTHIMG"
	mostTrailer = 1 << 20
)

// appendTo writes the trailer at the end of the file.
func (t Trailer) appendTo(f *os.File) error {
	text, err := json.Marshal(t)
	if err != nil {
		return err
	}
	if len(text) > mostTrailer {
		return refuse.Cannotf("make its environment and labels shorter", "the image's configuration has %d bytes, too many for a packed file", len(text))
	}
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	part := make([]byte, roundUp(int64(len(text)+footerSize)))
	copy(part, text)
	footer := part[len(part)-footerSize:]
	copy(footer, trailerMark)
	binary.LittleEndian.PutUint32(footer[8:], 1)
	binary.LittleEndian.PutUint32(footer[12:], uint32(len(text)))
	sum := sha256.Sum256(text)
	copy(footer[16:], sum[:])
	_, err = f.WriteAt(part, roundUp(end))
	return err
}

// readTrailer reads the trailer of a file of size bytes; the zero value if it has none.
func readTrailer(f io.ReaderAt, size int64) (t Trailer, err error) {
	if size < 2*block || size%block != 0 {
		return t, nil
	}
	footer := make([]byte, footerSize)
	if _, err := f.ReadAt(footer, size-footerSize); err != nil {
		return t, fmt.Errorf("read its end: %w", err)
	}
	if string(footer[:8]) != trailerMark {
		return t, nil
	}
	if v := binary.LittleEndian.Uint32(footer[8:]); v != 1 {
		return t, refuse.Cannotf("update berth", "its trailer has version %d: a newer berth packed it", v)
	}
	n := int64(binary.LittleEndian.Uint32(footer[12:]))
	at := size - roundUp(n+footerSize)
	if n > mostTrailer || at < block {
		return t, refuse.Invalidf("its trailer is damaged: %d bytes do not fit", n)
	}
	text := make([]byte, n)
	if _, err := f.ReadAt(text, at); err != nil {
		return t, fmt.Errorf("read its trailer: %w", err)
	}
	if sum := sha256.Sum256(text); string(sum[:]) != string(footer[16:48]) {
		return t, refuse.Invalidf("its trailer is damaged: it has another digest")
	}
	if err := json.Unmarshal(text, &t); err != nil {
		return Trailer{}, refuse.Invalidf("its trailer cannot be read: %s", jsonfile.Wrong(text, err))
	}
	return t, nil
}

func roundUp(n int64) int64 { return (n + block - 1) / block * block }
