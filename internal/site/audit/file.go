package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/sys/file"
)

const (
	mostBytes = 16 << 20            // of a file
	keepFor   = 90 * 24 * time.Hour // how long acts are kept
	mostFiles = 96                  // of full files of acts: a disk must not be filled by them
)

// kept is a file of lines. A full one is renamed, and another begun.
type kept struct {
	path   string
	most   int64                                    // bytes
	turned func(path string) (to string, err error) // where a full file goes; it makes room there

	mu   sync.Mutex
	file *os.File
	size int64
}

// one keeps one full file beside the new one.
func one(path string) (string, error) { return path + ".1", nil }

// byAge keeps all full files until they are old, or too many.
func byAge(path string) (string, error) {
	all, err := filepath.Glob(path + ".*")
	if err != nil {
		return "", err
	}
	when := map[string]time.Time{}
	for _, name := range all {
		if info, err := os.Lstat(name); err == nil {
			when[name] = info.ModTime()
		}
	}
	slices.SortFunc(all, func(a, b string) int { return when[b].Compare(when[a]) })
	var failed []error
	for i, name := range all {
		if i >= mostFiles-1 || time.Since(when[name]) > keepFor {
			if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				failed = append(failed, err)
			}
		}
	}
	return path + "." + time.Now().UTC().Format("20060102T150405.000000000Z"), errors.Join(failed...)
}

func (f *kept) open() error {
	if err := os.MkdirAll(filepath.Dir(f.path), 0o755); err != nil {
		return fmt.Errorf("open audit log: %w", err)
	}
	to, err := os.OpenFile(f.path, os.O_CREATE|os.O_RDWR|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("open audit log: %w", err)
	}
	info, err := to.Stat()
	if err != nil {
		to.Close()
		return fmt.Errorf("open audit log: %w", err)
	}
	f.file, f.size = to, info.Size()
	if f.size == 0 { // it may be new
		if err := file.SyncDir(filepath.Dir(f.path)); err != nil {
			to.Close()
			return fmt.Errorf("open audit log: %w", err)
		}
	}
	last := []byte{'\n'}
	if f.size > 0 {
		if _, err := to.ReadAt(last, f.size-1); err != nil {
			to.Close()
			return fmt.Errorf("open audit log: %w", err)
		}
	}
	if last[0] != '\n' {
		n, err := to.WriteString("\n")
		f.size += int64(n)
		return err
	}
	return nil
}

// add adds a line, and if sync waits until the disk has it.
func (f *kept) add(text []byte, sync bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return fmt.Errorf("write audit log: %w", fs.ErrClosed)
	}
	if f.size > 0 && f.size+int64(len(text)) > f.most {
		switch err := f.turn(); {
		case err != nil && !sync:
			return err
		case err != nil: // no act without its line: go on in the full one
			slog.Error("the audit log is full, and cannot be put aside", "err", err)
		}
	}
	n, err := f.file.Write(text)
	if err != nil && n > 0 && f.file.Truncate(f.size) == nil { // a full disk took a part: the next line begins by itself
		n = 0
	}
	f.size += int64(n)
	if err == nil && sync {
		err = unix.Fdatasync(int(f.file.Fd()))
	}
	if err != nil {
		return fmt.Errorf("write audit log: %w", err)
	}
	return nil
}

// turn puts the full file aside, and begins a new one.
func (f *kept) turn() error {
	to, err := f.turned(f.path)
	if err == nil {
		err = os.Rename(f.path, to)
	}
	if err != nil {
		return fmt.Errorf("turn audit log: %w", err)
	}
	old := f.file
	if err := f.open(); err != nil {
		f.file = old // go on in the old one: no act without its line
		return errors.Join(err, os.Rename(to, f.path))
	}
	return old.Close()
}

func (f *kept) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.file
	f.file = nil
	if old == nil {
		return nil
	}
	return old.Close()
}
