package mounts

import (
	"os"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
)

// Detached returns the mounts of staged folders, with the flags and ids that they say, in their order. They are visible nowhere until they are
// given a place by Attach, which may be in another mount namespace. It is for what is not a container: Enter does all else.
func Detached(stages []Stage, ids IDs) (all []*os.File, err error) {
	defer func() {
		if err != nil {
			for _, f := range all {
				f.Close()
			}
			all = nil
		}
	}()
	var userns *os.File
	for i := range stages {
		s := &stages[i]
		if s.Idmap && userns == nil {
			if userns, err = UserNS(ids); err != nil {
				return all, err
			}
			defer userns.Close()
		}
		t, err := s.tree(userns)
		if err != nil {
			return all, err
		}
		all = append(all, os.NewFile(uintptr(t.fd), s.Source))
		if !t.dir {
			return all, refuse.Invalidf("%s is no folder any more", s.Source)
		}
	}
	return all, nil
}

// Attach mounts what Detached returned at a folder.
func Attach(detached *os.File, at string) error {
	t := tree{fd: int(detached.Fd()), source: detached.Name()}
	return t.move(at)
}

// tree copies the mount of a staged source, with its flags and ids.
func (s *Stage) tree(userns *os.File) (*tree, error) {
	t, err := openTree(s.Source, unix.RESOLVE_NO_SYMLINKS, s.Recursive)
	if err != nil {
		return nil, err
	}
	flags := uint64(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV)
	if s.ReadOnly {
		flags |= unix.MOUNT_ATTR_RDONLY
	}
	if !s.Idmap {
		userns = nil
	}
	if err := t.set(flags, userns); err != nil {
		t.close()
		return nil, unmappable(s.Source, s.Recursive, userns, err)
	}
	return t, nil
}
