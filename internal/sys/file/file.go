// Package file replaces files as a whole: a reader finds the old content or the new one, also if the writer was killed and, for files
// that outlive the boot, after a power cut.
package file

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"berth/internal/sys/fault"
)

// Unwritten ends the name of a file that is being written. A killed writer leaves it; the next writer replaces it.
const Unwritten = ".tmp"

// Write replaces the file at path, or makes it, with this mode, and returns when the disk has it: after a power cut it is the old
// file or the new one. Only one process may write a path at a time: a lock of the caller's sees to that. If it fails, the old file
// is as it was, unless the folder could not be synced.
func Write(path string, data []byte, mode fs.FileMode) error {
	err := replace(path, data, mode, true)
	if err == nil {
		err = SyncDir(filepath.Dir(path))
	}
	return err
}

// WriteForBoot is Write for files that do not outlive the boot, as in /run, and for those that are only a copy for reading: nothing
// is synced, and after a power cut the file may be empty.
func WriteForBoot(path string, data []byte, mode fs.FileMode) error {
	return replace(path, data, mode, false)
}

// replace writes a file beside path and gives it that name. Without sync a file system may keep the name and lose the content: XFS
// does, and ext4 with noauto_da_alloc.
func replace(path string, data []byte, mode fs.FileMode, sync bool) error {
	tmp := path + Unwritten
	f, err := Fresh(tmp, mode)
	if err == nil {
		_, err = f.Write(data)
		if err == nil && sync {
			err = f.Sync()
		}
		err = errors.Join(err, f.Close())
	}
	if err == nil {
		fault.Point("written " + filepath.Base(tmp))
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
		return fmt.Errorf("write %s: %w", path, err)
	}
	fault.Point("written " + filepath.Base(path))
	return nil
}

// Fresh opens a new file with this mode, less the umask, for writing, in the place of what has its name: a file that is there is not
// written into. Another user may have made it, with a mode of that user's, have it open, or have made a link of it.
func Fresh(path string, mode fs.FileMode) (*os.File, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
}

// Remove removes the file at path, if it is there, and returns when the disk has that: after a power cut it is not there again. Of a file that is not
// there the disk may still have the name: who removed it may have been killed before it was synced.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := SyncDir(filepath.Dir(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// WriteJSON is Write of a value as JSON, in one line, for root alone.
func WriteJSON(path string, v any) error { return writeJSON(path, v, Write) }

// WriteJSONForBoot is WriteJSON by WriteForBoot.
func WriteJSONForBoot(path string, v any) error { return writeJSON(path, v, WriteForBoot) }

func writeJSON(path string, v any, write func(string, []byte, fs.FileMode) error) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return write(path, append(data, '\n'), 0o600)
}

// SyncDir returns when the entries of a folder are on the disk.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync folder: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync folder: %w", err)
	}
	return nil
}

// Text returns the content of a small file, such as one of sysfs, without the white space around it; "" if it cannot be read.
func Text(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
