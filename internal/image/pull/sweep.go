package pull

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/sys/lock"
)

// Blobs returns the folder of the blobs in a request's folder.
func Blobs(folder string) string { return filepath.Join(folder, "blobs", "sha256") }

// Stale is the age from which the blobs of a pull that did not end well are removed automatically: a user who wants the image
// has tried again by then.
const Stale = 7 * 24 * time.Hour

// Sweep removes the blobs that were not written to for as long as Stale. Blobs of a pull at work are locked, and stay. It
// returns how many bytes it freed.
func Sweep(folder string, age time.Duration) (int64, error) {
	files, err := os.ReadDir(Blobs(folder))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("list the blobs of pulls: %w", err)
	}
	freed := int64(0)
	var errs []error
	for _, f := range files {
		n, err := sweep(filepath.Join(Blobs(folder), f.Name()), age)
		freed += n
		errs = append(errs, err)
	}
	return freed, errors.Join(errs...)
}

func sweep(path string, age time.Duration) (int64, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || time.Since(info.ModTime()) < age {
		return 0, err
	}
	if free, err := lock.Try(f); err != nil || !free {
		return 0, err
	}
	return info.Size(), os.Remove(path)
}
