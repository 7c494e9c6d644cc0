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
	turned func(path string) (to string, err error) // where a full file goes; it makes room there, as far as that can be done

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
	for i, name := range all {
		if i >= mostFiles-1 || time.Since(when[name]) > keepFor {
			if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				slog.Error("an old file of the audit log cannot be removed", "err", err)
			}
		}
	}
	return path + "." + time.Now().UTC().Format("20060102T150405.000000000Z"), nil
}

// open begins the file, or goes on in it. After an error f is as it was.
func (f *kept) open() (err error) {
	if err := os.MkdirAll(filepath.Dir(f.path), 0o755); err != nil {
		return fmt.Errorf("open audit log: %w", err)
	}
	to, err := os.OpenFile(f.path, os.O_CREATE|os.O_RDWR|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("open audit log: %w", err)
	}
	defer func() {
		if err != nil {
			to.Close()
		}
	}()
	info, err := to.Stat()
	if err != nil {
		return fmt.Errorf("open audit log: %w", err)
	}
	size := info.Size()
	last := []byte{'\n'}
	if size > 0 {
		_, err = to.ReadAt(last, size-1)
	} else { // it may be new
		err = file.SyncDir(filepath.Dir(f.path))
	}
	if err == nil && last[0] != '\n' {
		_, err = to.WriteString("\n")
		size++
	}
	if err != nil {
		return fmt.Errorf("open audit log: %w", err)
	}
	f.file, f.size = to, size
	return nil
}

// onDisk waits until the disk has what was written to a file. Tests let it fail.
var onDisk = unix.Fdatasync

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
	if err == nil && sync {
		err = onDisk(int(f.file.Fd()))
	}
	// A full disk took a part, and the next line begins by itself; or the disk may not have the line, and what it says is not done.
	if err != nil && n > 0 && f.file.Truncate(f.size) == nil {
		n = 0
	}
	f.size += int64(n)
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
		return errors.Join(err, os.Rename(to, f.path)) // go on in the old one: no act without its line
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
