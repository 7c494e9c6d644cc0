package gatewaytest

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/spec/vnode"
	"berth/internal/storage/gateway"
)

// kept: a file that a node wrote without an error at write, fsync or close is there as it was written, at the source and for another node:
// also where the disk or the quota was full meanwhile, or the server ended.
func (s Suite) kept(t *testing.T) {
	many := cmp.Or(s.Kept, 200)
	t.Run("with room", func(t *testing.T) {
		source := s.Source(t)
		for first := 0; first < many; first += atOnce {
			w := s.written(t, source, first, min(atOnce, many-first), 20, nil)
			if len(w.told) > 0 {
				t.Errorf("%d of %d files were not written: %v", len(w.told), w.files, w.told)
			}
			w.check(t, s, source)
		}
	})
	for name, full := range map[string]func(*testing.T) Source{"full disk": s.Small, "quota": s.Quota} {
		if full == nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			source := full(t)
			w := s.written(t, source, 0, atOnce, 20, nil) // 20 MiB or so
			if len(w.told) == 0 || len(w.told) == w.files {
				t.Errorf("of %d files all or none were written: %v", w.files, w.told)
			}
			w.check(t, s, source)
			again := s.written(t, source, w.files, 10, 10, nil)
			if len(again.told) > 0 {
				t.Errorf("after room was made: %v", again.told)
			}
			again.check(t, s, source)
		})
	}
	if s.Restart != nil {
		t.Run("server ends", func(t *testing.T) {
			source := s.Source(t)
			w := s.written(t, source, 0, atOnce, 16, s.Restart)
			if lost := s.deviates(gateway.DaemonEnds); !lost && len(w.told) > 0 || lost && len(w.told) > w.files-enough {
				t.Errorf("%d files were not written: %v", len(w.told), w.told)
			}
			w.check(t, s, source)
		})
	}
}

const (
	atOnce = 400 // files that are written, read back and removed together
	enough = 40  // files that are written before the server ends
)

// writes are files that a node wrote.
type writes struct {
	first, files int
	bits         int           // they have up to 2^bits bytes
	told         map[int]error // those whose writer was told that they are not whole
}

// written writes files from a node, some at a time; every third is synced. meanwhile, if any, is called when some are written.
func (s Suite) written(t *testing.T, source Source, first, files, bits int, meanwhile func(*testing.T)) writes {
	t.Helper()
	b := s.bed(t, source, vnode.Mount{})
	n, err := b.start()
	if err != nil {
		t.Fatal(err)
	}
	dir, root := b.open()
	w := writes{first: first, files: files, bits: bits, told: map[int]error{}}
	var lock sync.Mutex
	var done atomic.Int32
	some := make(chan struct{})
	wrote := make(chan struct{})
	go func() {
		defer close(wrote)
		each(t, root, files, func(i int) error {
			if err := write(dir, first+i, w.content(first+i), i%3 == 0); err != nil {
				lock.Lock()
				w.told[first+i] = err
				lock.Unlock()
			}
			if done.Add(1) == enough {
				close(some)
			}
			return nil
		})
	}()
	if meanwhile != nil {
		<-some
		meanwhile(t)
	}
	<-wrote
	unix.Close(dir)
	n.Kill()
	b.end()
	return w
}

// content is what a file holds: bytes by its number, few more often than many.
func (w writes) content(i int) []byte {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], uint64(i))
	from := rand.NewChaCha8(seed)
	text := make([]byte, 1+from.Uint64()%(1<<(from.Uint64()%uint64(w.bits+1))))
	_, _ = from.Read(text) // never fails
	return text
}

// write writes a file by pieces of odd sizes.
func write(dir, i int, content []byte, sync bool) (err error) {
	fd, err := unix.Openat(dir, strconv.Itoa(i), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	for piece := 1; len(content) > 0 && err == nil; piece = piece*3 + 1 {
		var k int
		k, err = unix.Write(fd, content[:min(piece, len(content))])
		content = content[max(0, k):]
	}
	if err == nil && sync {
		err = unix.Fsync(fd)
	}
	return errors.Join(err, unix.Close(fd))
}

// check reads the files at the source, reads them in another node, and removes them there.
func (w writes) check(t *testing.T, s Suite, source Source) {
	t.Helper()
	b := s.bed(t, source, vnode.Mount{})
	n, err := b.start()
	if err != nil {
		t.Fatal(err)
	}
	dir, root := b.open()
	var lock sync.Mutex
	wrong := map[string]int{}
	each(t, root, w.files, func(i int) error {
		i += w.first
		name := strconv.Itoa(i)
		if _, told := w.told[i]; !told {
			want := w.content(i)
			there, err := os.ReadFile(b.at() + "/" + name)
			seen, serr := read(dir, name)
			lock.Lock()
			wrong[verdict("at the source", there, want, err)]++
			wrong[verdict("for another node", seen, want, serr)]++
			lock.Unlock()
		}
		if err := unix.Unlinkat(dir, name, 0); !errors.Is(err, unix.ENOENT) {
			return err
		}
		return nil // it was not made
	})
	delete(wrong, "")
	if len(wrong) > 0 {
		t.Errorf("of %d files that were written without an error: %v", w.files-len(w.told), wrong)
	}
	unix.Close(dir)
	n.Kill()
	b.end()
}

// verdict says what is wrong with a file; "" if nothing is.
func verdict(where string, got, want []byte, err error) string {
	switch {
	case err != nil:
		return where + ": " + err.Error()
	case bytes.Equal(got, want):
		return ""
	case len(got) == 0:
		return where + ": empty"
	case len(got) != len(want):
		return where + ": of another length"
	case bytes.Count(got, []byte{0}) == len(got):
		return where + ": zeros"
	}
	return where + ": other bytes"
}

func read(dir int, name string) ([]byte, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	var b bytes.Buffer
	_, err = b.ReadFrom(f)
	return b.Bytes(), err
}
