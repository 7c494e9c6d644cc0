package mounts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// File is a small file of the node's own that covers a file of its root, for example /etc/hosts. It lies in the memory
// of the plan's tmpfs and ends with the node. The node's root owns it and may write it. The image and the delta keep
// their file.
//
// If the path in the node's root is not a regular file, for instance a link, it stays uncovered: no link can lead a
// mount elsewhere. A missing file is made, empty, unless its folder is read-only.
type File struct {
	Root string `json:"root,omitempty"` // the folder that Path is below: Root.At; "": the runtime mounts the file from FileAt
	Path string `json:"path"`           // relative, at most one folder below Root: "etc/hosts"
	Text string `json:"text"`
}

// filesDir is the folder of the files, below Plan.Dir. The node has no path to it.
const filesDir = ".files"

// FileAt returns the path of the file at index number of Plan.Files.
func (p *Plan) FileAt(number int) string {
	return filepath.Join(p.Dir, filesDir, strconv.Itoa(number))
}

// mount makes the file at from and mounts it over its target.
func (f *File) mount(from string, ids IDs) error {
	if err := os.WriteFile(from, []byte(f.Text), 0o644); err != nil {
		return fmt.Errorf("write the node's %s: %w", f.Path, err)
	}
	if err := os.Chown(from, int(ids.Base), int(ids.Base)); err != nil {
		return fmt.Errorf("give %s to the node: %w", f.Path, err)
	}
	if f.Root == "" {
		return nil
	}
	at, err := f.target(ids)
	if at < 0 || err != nil {
		return err
	}
	defer unix.Close(at)
	t, err := openTree(from, unix.RESOLVE_NO_SYMLINKS, false)
	if err != nil {
		return err
	}
	defer t.close()
	if err := t.set(unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC, nil); err != nil {
		return err
	}
	if err := unix.MoveMount(t.fd, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount the node's own %s: %w", f.Path, err)
	}
	return nil
}

// target opens the regular file to cover, and makes it if it is missing. It returns -1 if nothing is to be covered.
func (f *File) target(ids IDs) (int, error) {
	root, err := unix.Open(f.Root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open the root of %s: %w", f.Path, err)
	}
	defer unix.Close(root)
	// No links and no "..": what the node left in its delta cannot lead elsewhere.
	inside := uint64(unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS)
	folder, name := filepath.Split(f.Path)
	dir, err := f.folder(root, filepath.Clean(folder), inside, ids)
	if dir < 0 || err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	how := unix.OpenHow{Flags: unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_CLOEXEC, Mode: 0o644, Resolve: inside}
	if fd, err := unix.Openat2(dir, name, &how); err == nil {
		err = unix.Fchown(fd, int(ids.Base), int(ids.Base))
		unix.Close(fd)
		if err != nil {
			return -1, fmt.Errorf("give %s to the node: %w", f.Path, err)
		}
	}
	at, err := unix.Openat2(dir, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: inside &^ unix.RESOLVE_NO_SYMLINKS})
	if errors.Is(err, unix.ENOENT) { // the folder is read-only, or full
		return -1, nil
	}
	if err != nil {
		return -1, fmt.Errorf("open the node's %s: %w", f.Path, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(at)
		return -1, err
	}
	return at, nil
}

// folder opens the folder of the file, and makes it if it is missing. It returns -1 if something else is in its place,
// or if it cannot be made.
func (f *File) folder(root int, name string, inside uint64, ids IDs) (int, error) {
	if err := unix.Mkdirat(root, name, 0o755); err == nil {
		if err := unix.Fchownat(root, name, int(ids.Base), int(ids.Base), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return -1, fmt.Errorf("give %s to the node: %w", name, err)
		}
	}
	dir, err := unix.Openat2(root, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: inside})
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ENOENT):
		return -1, nil
	case err != nil:
		return -1, fmt.Errorf("open the node's %s: %w", name, err)
	}
	return dir, nil
}

// files makes and mounts all files. It runs last, after the mounts that they may cover.
func (p *Plan) files() error {
	if len(p.Files) == 0 {
		return nil
	}
	if err := os.Mkdir(filepath.Join(p.Dir, filesDir), 0o711); err != nil {
		return fmt.Errorf("make a folder for the node's files: %w", err)
	}
	for i := range p.Files {
		if err := p.Files[i].mount(p.FileAt(i), p.IDs); err != nil {
			return err
		}
	}
	return nil
}
