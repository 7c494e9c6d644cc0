package inflate

import (
	"context"
	"io"

	"berth/internal/sys/refuse"
	"berth/internal/sys/space"
)

// Stream is the uncompressed stream of a tar. It counts what is read of it, and refuses one that goes on without files: some kilobytes can
// unpack to gigabytes that are written nowhere, so that no other limit would end them.
type Stream struct {
	r    io.Reader
	N    int64 // bytes read
	Most int64 // bytes that may be read so far
}

// idle is how many bytes of a stream may belong to none of its files, and PerEntry how many more for each entry: for its headers.
const (
	idle     = 64 << 20
	PerEntry = 8 << 10
)

// NewStream returns the stream of a tar of which nothing was read.
func NewStream(r io.Reader) *Stream { return &Stream{r: r, Most: idle} }

func (s *Stream) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if s.N += int64(n); s.N > s.Most {
		return 0, refuse.Invalidf("more than %d MiB of it belong to none of its files", idle>>20)
	}
	return n, err
}

// Until returns a reader that reads r until its context ends.
func Until(ctx context.Context, r io.Reader) io.Reader { return until{ctx, r} }

type until struct {
	ctx context.Context
	r   io.Reader
}

func (u until) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.r.Read(p)
}

// Roomy writes to a file, and looks at the free space again and again: others fill the disk, too.
type Roomy struct {
	To     io.Writer
	Dir    string
	unseen int64 // bytes written since
}

func (w *Roomy) Write(p []byte) (int, error) {
	const chunk = 16 << 20
	if w.unseen += int64(len(p)); w.unseen > chunk {
		w.unseen = 0
		if err := space.Need(w.Dir, chunk); err != nil {
			return 0, err
		}
	}
	return w.To.Write(p)
}
