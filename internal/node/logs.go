package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/refuse"
)

// Logs copies a node's log to w: the last lines of it, or all if lines is negative; with follow also what is added
// until the node ends.
func (b *Berth) Logs(ctx context.Context, name string, w io.Writer, lines int, follow bool) error {
	if _, err := b.stored(name); refuse.KindOf(err) == refuse.NotFound {
		return err
	}
	f, err := os.Open(b.Layout.Node(name).Log())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer f.Close()
	if lines >= 0 {
		if err := seekLines(f, lines); err != nil {
			return fmt.Errorf("read log: %w", err)
		}
	}
	if _, err := io.Copy(w, f); err != nil || !follow {
		return err
	}
	return b.follow(ctx, name, f, w)
}

// follow copies what is added to the log, woken by inotify, until the init has ended.
func (b *Berth) follow(ctx context.Context, name string, f *os.File, w io.Writer) error {
	in, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch log: %w", err)
	}
	events := os.NewFile(uintptr(in), "inotify")
	defer events.Close()
	if _, err := unix.InotifyAddWatch(in, f.Name(), unix.IN_MODIFY); err != nil {
		return fmt.Errorf("watch log: %w", err)
	}
	init, err := b.liveInit(name)
	if err != nil {
		return nil
	}
	pidfd, err := openInit(init.PID, init.StartTime)
	if err != nil {
		return nil
	}
	defer pidfd.Close()
	stop := context.AfterFunc(ctx, func() { _ = events.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	go func() {
		waitPidfd(pidfd, -1)
		_ = events.SetReadDeadline(time.Unix(1, 0))
	}()
	buf := make([]byte, 4096)
	for {
		_, err := events.Read(buf)
		if _, err := io.Copy(w, f); err != nil {
			return err
		}
		if err != nil {
			return nil
		}
	}
}

// seekLines moves to the start of the last n lines.
func seekLines(f *os.File, n int) error {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if n == 0 {
		return nil
	}
	pos, seen := end, 0
	buf := make([]byte, 8192)
	for pos > 0 {
		size := min(int64(len(buf)), pos)
		pos -= size
		if _, err := f.ReadAt(buf[:size], pos); err != nil {
			return err
		}
		for i := size - 1; i >= 0; i-- {
			if buf[i] != '\n' || pos+i == end-1 {
				continue
			}
			if seen++; seen == n {
				_, err = f.Seek(pos+i+1, io.SeekStart)
				return err
			}
		}
	}
	_, err = f.Seek(0, io.SeekStart)
	return err
}

// logCap is the size beyond which a log loses its older half. Nothing stands between a node and its log, so the
// keeper trims it afterwards: a node that writes fast may be over it for a moment.
const logCap = 10 << 20

// logTrimmer watches the logs of running nodes and trims those that have grown too large. One inotify descriptor serves
// all; a burst of writes is one look, because events that are alike are merged while nobody reads them.
type logTrimmer struct {
	events *os.File
	mu     sync.Mutex
	paths  map[int32]string // by watch descriptor
}

func newLogTrimmer() (*logTrimmer, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch logs: %w", err)
	}
	return &logTrimmer{events: os.NewFile(uintptr(fd), "inotify"), paths: map[int32]string{}}, nil
}

// add watches one log. A node in the foreground has none, and a log that is removed ends its watch.
func (t *logTrimmer) add(path string) {
	c, err := t.events.SyscallConn()
	if err != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = c.Control(func(fd uintptr) {
		if wd, err := unix.InotifyAddWatch(int(fd), path, unix.IN_MODIFY); err == nil {
			t.paths[int32(wd)] = path
		}
	})
}

// run trims the logs that change, looking at most once a second, until ctx is done.
func (t *logTrimmer) run(ctx context.Context) {
	defer t.events.Close()
	stop := context.AfterFunc(ctx, func() { _ = t.events.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, 4096)
	for {
		n, err := t.events.Read(buf)
		if err != nil {
			return
		}
		for path := range t.changed(buf[:n]) {
			if s, err := os.Stat(path); err == nil && s.Size() > logCap {
				_ = trim(path, logCap/2) // tried again with the next write
			}
		}
		time.Sleep(time.Second)
	}
}

// changed returns the logs that inotify's records name (inotify(7); without names they are all of one size).
func (t *logTrimmer) changed(records []byte) map[string]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	paths := map[string]bool{}
	for ; len(records) >= unix.SizeofInotifyEvent; records = records[unix.SizeofInotifyEvent:] {
		wd := int32(binary.NativeEndian.Uint32(records))
		if binary.NativeEndian.Uint32(records[4:])&unix.IN_IGNORED != 0 {
			delete(t.paths, wd)
		} else if path, ok := t.paths[wd]; ok {
			paths[path] = true
		}
	}
	return paths
}

// trim drops the head of a file that others append to, leaving about keep bytes of whole lines. Where the file system
// can (ext4, XFS) the head is cut out in place and nothing is lost; elsewhere the tail is copied to the front, and what
// is written during the copy may be lost.
func trim(path string, keep int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	s, err := f.Stat()
	if err != nil {
		return err
	}
	const block = 1 << 16 // a multiple of every block size
	cut := (s.Size() - keep) / block * block
	if cut <= 0 {
		return nil
	}
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_COLLAPSE_RANGE, 0, cut); err == nil {
		return nil
	}
	tail := make([]byte, s.Size()-cut)
	n, err := f.ReadAt(tail, cut)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	tail = tail[:n]
	if i := bytes.IndexByte(tail, '\n'); i >= 0 {
		tail = tail[i+1:]
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err = f.Write(tail)
	return err
}
