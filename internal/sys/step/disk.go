package step

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"berth/internal/sys/file"
)

// Lasting is a step that makes something that outlives the boot, such as a folder. In a journal that Lasts, its record is on the
// disk before Do or Undo is called.
type Lasting interface {
	// OnDisk returns when the result of Do is on the disk.
	OnDisk() error
}

// announce returns when the disk has the record of a step that is about to be done or undone, if its result lasts.
func (j *Journal) announce(s Step) error {
	if _, lasts := s.(Lasting); !lasts {
		return nil
	}
	return j.syncFile()
}

// Sync returns when the journal and the results of its steps until now are on the disk, if it Lasts.
func (j *Journal) Sync() error {
	if !j.Lasts {
		return nil
	}
	for len(j.made) > 0 {
		if err := j.made[0].OnDisk(); err != nil {
			return fmt.Errorf("write to disk what journal %s names: %w", j.path, err)
		}
		j.made = j.made[1:]
	}
	return j.syncFile()
}

func (j *Journal) syncFile() error {
	if !j.Lasts {
		return nil
	}
	f, err := os.OpenFile(j.path, os.O_WRONLY, 0)
	if err == nil {
		defer f.Close()
		err = syscall.Fdatasync(int(f.Fd()))
	}
	if err == nil && j.fresh {
		dir := filepath.Dir(j.path)
		if err = file.SyncDir(dir); err == nil { // its folder may be as new as the file
			err = file.SyncDir(filepath.Dir(dir))
		}
		j.fresh = err != nil
	}
	if err != nil {
		return fmt.Errorf("sync journal %s: %w", j.path, err)
	}
	return nil
}

// Empty reports whether the file has no whole record: its maker was killed before the first one, or the host lost its power.
func (j *Journal) Empty() bool { return j.size == 0 }

// stamp identifies one version of the file.
type stamp struct {
	inode uint64
	size  int64
	time  int64 // ns
}

func stampOf(fi os.FileInfo) stamp {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return stamp{}
	}
	return stamp{st.Ino, st.Size, st.Mtim.Nano()}
}

// Untouched reports whether the file is as this journal's last write left it, so that it need not be read again.
func (j *Journal) Untouched() bool {
	fi, err := os.Stat(j.path)
	return err == nil && j.file != stamp{} && stampOf(fi) == j.file
}
