package copier

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"berth/internal/treetar"
)

// WriteFile calls write with a file that gets its name when write succeeds, in the place of a file that has it. A device or FIFO of
// that name is written to.
func WriteFile(name string, write func(*os.File) error) error {
	now, err := os.Stat(name)
	switch {
	case err == nil && now.IsDir():
		return fmt.Errorf("write %s: %w", name, unix.EISDIR)
	case err == nil && !now.Mode().IsRegular():
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(write(f), f.Close())
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	files, err := treetar.OpenDescriptors()
	if err != nil {
		return err
	}
	defer files.Close()
	dir, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	defer dir.Close()
	f, err := treetar.NewFile(files, int(dir.Fd()), filepath.Base(name))
	if err != nil {
		return err
	}
	defer f.Discard()
	if err := write(f.File); err != nil {
		return err
	}
	if err := f.Chmod(0o600); err != nil { // it holds what only root of the node may read
		return err
	}
	if err := f.Commit(); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}
