package nodelog

import (
	"encoding/binary"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Each part of a log has a file of times beside it: a header, then a record for each move of bytes into the log. A record says
// at which offset the move begins, and when it began. It is written before the bytes are moved, so no byte that a killed keeper
// moved has the time of an earlier move. The header is the part's inode: a file of times that a killed keeper left under the
// wrong name is recognized by it, and renamed at the next move.
const (
	headerSize = 8       // inode
	recordSize = 4 + 8   // offset, time in ns since 1970
	mostMoves  = 1 << 17 // records for one part; a part that has so many is full

	// resolution is the shortest time between two records: bytes that are moved sooner have the time of the record before.
	resolution = time.Millisecond
)

func (l Log) times() string    { return l.File + ".times" }
func (l Log) oldTimes() string { return l.Old + ".times" }

type record struct {
	at   int64 // offset in the part
	time time.Time
}

func (r record) encode() []byte {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, recordSize), uint32(r.at))
	return binary.BigEndian.AppendUint64(b, uint64(r.time.UnixNano()))
}

func decode(b []byte) record {
	return record{at: int64(binary.BigEndian.Uint32(b)), time: time.Unix(0, int64(binary.BigEndian.Uint64(b[4:])))}
}

// stamp records that the data at offset at of the newest part, and after it, is moved there now. It is false if the file of
// times has no room for that. Any failure, as on a full disk, only means that the bytes have an earlier time or none.
func (l Log) stamp(part *os.File, at int64) (room bool) {
	f, err := l.openTimes(part)
	if err != nil {
		return true
	}
	defer f.Close()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return true
	}
	n := (end - headerSize) / recordSize
	now := record{at: at, time: time.Now()}
	if n > 0 {
		var b [recordSize]byte
		if _, err := f.ReadAt(b[:], headerSize+(n-1)*recordSize); err != nil {
			return true
		}
		last := decode(b[:])
		since := now.time.Sub(last.time)
		switch {
		case last.at == at: // nothing was moved then
			n--
		case last.at > at: // a user has shortened the log
			n = 0
			_ = f.Truncate(headerSize)
		case since >= 0 && since < resolution:
			return true
		case n >= mostMoves:
			return false
		}
	}
	_, _ = f.WriteAt(now.encode(), headerSize+n*recordSize)
	return true
}

// openTimes opens the times of the newest part, and makes them where there are none.
func (l Log) openTimes(part *os.File) (*os.File, error) {
	ino, err := inode(part)
	if err != nil {
		return nil, err
	}
	for {
		f, err := os.OpenFile(l.times(), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		of, ok := header(f)
		switch {
		case ok && of == ino:
			return f, nil
		case ok: // of the part that is the old one now
			err = os.Rename(l.times(), l.oldTimes())
			f.Close()
			if err != nil {
				return nil, err
			}
			continue
		}
		if err = f.Truncate(0); err == nil {
			_, err = f.WriteAt(binary.BigEndian.AppendUint64(nil, ino), 0)
		}
		if err != nil {
			f.Close()
			return nil, err
		}
		return f, nil
	}
}

// header returns the inode of the part that a file of times belongs to.
func header(f *os.File) (ino uint64, ok bool) {
	var b [headerSize]byte
	if _, err := f.ReadAt(b[:], 0); err != nil {
		return 0, false
	}
	return binary.BigEndian.Uint64(b[:]), true
}

func inode(f *os.File) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, err
	}
	return st.Ino, nil
}

// times are those of one part, as far as they are read.
type times struct {
	f    *os.File // nil: it has none
	read []record
}

// timesOf opens the times of a part.
func (l Log) timesOf(part *os.File) *times {
	ino, err := inode(part)
	if err != nil {
		return &times{}
	}
	for _, path := range []string{l.times(), l.oldTimes()} {
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		if of, ok := header(f); ok && of == ino {
			return &times{f: f}
		}
		f.Close()
	}
	return &times{}
}

// more reads the records that were added, and the last one again: it may have been replaced.
func (t *times) more() {
	if t.f == nil {
		return
	}
	t.read = t.read[:max(len(t.read)-1, 0)]
	from := int64(headerSize + len(t.read)*recordSize)
	text, err := io.ReadAll(io.NewSectionReader(t.f, from, mostMoves*recordSize))
	if err != nil {
		return
	}
	for b := range slices.Chunk(text, recordSize) {
		if len(b) == recordSize {
			t.read = append(t.read, decode(b))
		}
	}
}

// at returns when the byte at an offset was moved; the zero time if that is not known.
func (t *times) at(offset int64) time.Time {
	i, found := slices.BinarySearchFunc(t.read, offset, func(r record, at int64) int { return int(r.at - at) })
	if !found {
		i--
	}
	if i < 0 {
		return time.Time{}
	}
	return t.read[i].time
}

func (t *times) close() {
	if t.f != nil {
		t.f.Close()
	}
}
