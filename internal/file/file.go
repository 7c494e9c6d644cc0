// Package file replaces files whole: a reader, and a reboot of the program, finds the old content or the new one.
package file

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"berth/internal/fault"
)

// Unwritten ends the name of a file that is being written. A killed writer leaves it; the next writer replaces it.
const Unwritten = ".tmp"

// Write replaces the file at path, or makes it, with this mode. Only one process may write a path at a time: a lock of the
// caller's sees to that. If it fails, the old file is as it was.
func Write(path string, data []byte, mode fs.FileMode) error {
	tmp := path + Unwritten
	err := os.WriteFile(tmp, data, mode)
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

// WriteJSON is Write of a value as JSON, in one line, for root alone.
func WriteJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return Write(path, append(data, '\n'), 0o600)
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
