package mounts

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/sys/lock"
	"berth/internal/sys/refuse"
)

// Volume is a file system of the node's own, on a block device or in a file. It is mounted nosuid and nodev. A file gets a
// loop device, which the kernel takes down when the mount ends (LO_FLAGS_AUTOCLEAR), however that ends.
type Volume struct {
	Source string `json:"source"` // block device or regular file, of Berth's own
	FSType string `json:"fstype"`
}

// Open mounts the volume at no path. The open folder is its root; the mount ends when it is closed.
func (v *Volume) Open() (*os.File, error) {
	device, loop, err := v.device()
	if err != nil {
		return nil, err
	}
	if loop != nil {
		defer loop.Close() // the mount keeps it
	}
	fs, err := unix.Fsopen(v.FSType, unix.FSOPEN_CLOEXEC)
	if errors.Is(err, unix.ENODEV) {
		return nil, refuse.Cannotf("choose another file system with fs, or load its module", "this kernel has no %s, the file system of %s", v.FSType, v.Source)
	}
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", v.Source, err)
	}
	defer unix.Close(fs)
	err = unix.FsconfigSetString(fs, "source", device)
	// The kernel would zero the inode tables of a new ext4 within seconds, and the loop device would make these zeros holes in the file:
	// space on the disk that other files then take. An ext4 with checksums of its groups, as all have, does not need the zeros.
	if err == nil && loop != nil && v.FSType == "ext4" {
		err = unix.FsconfigSetFlag(fs, "noinit_itable")
	}
	if err == nil {
		err = unix.FsconfigCreate(fs)
	}
	if err != nil {
		return nil, fmt.Errorf("mount the %s of %s: %w%s", v.FSType, v.Source, err, said(fs))
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return nil, fmt.Errorf("mount the %s of %s: %w", v.FSType, v.Source, err)
	}
	return os.NewFile(uintptr(fd), v.Source), nil
}

// mount mounts the volume at a folder, which is made.
func (v *Volume) mount(at string) error {
	if err := os.Mkdir(at, 0o700); err != nil {
		return fmt.Errorf("make a mount point: %w", err)
	}
	root, err := v.Open()
	if err != nil {
		return err
	}
	defer root.Close()
	if err := unix.MoveMount(int(root.Fd()), "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount %s at %s: %w", v.Source, at, err)
	}
	return nil
}

// detachWait is how long the loop device of a file may take to end after its last mount.
const detachWait = 10 * time.Second

// device returns the block device to mount; loop is not nil if it was made for a file.
func (v *Volume) device() (path string, loop *os.File, err error) {
	info, err := os.Stat(v.Source)
	if err != nil {
		return "", nil, fmt.Errorf("find the volume: %w", err)
	}
	if !info.Mode().IsRegular() {
		return v.Source, nil, nil
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, v.Source, &unix.OpenHow{Flags: unix.O_RDWR | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return "", nil, fmt.Errorf("open the volume %s: %w", v.Source, err)
	}
	file := os.NewFile(uintptr(fd), v.Source)
	defer file.Close()
	// The loop device keeps the open file, and so its lock, until it is detached. A second device of one file would be a second
	// file system on the same blocks: while a process has something of the first one open (it may be in another node), there is none.
	switch got, err := lock.WaitFor(file, detachWait); {
	case err != nil:
		return "", nil, err
	case !got:
		return "", nil, refuse.Busyf("the volume %s is still in use by a process that had it open: end that process (fuser -m finds it), then repeat", v.Source)
	}
	if loop, err = attach(fd); err != nil {
		return "", nil, fmt.Errorf("make a loop device of %s: %w", v.Source, err)
	}
	return loop.Name(), loop, nil
}

// attach makes a loop device of an open file. It reads and writes past the page cache, where the file's file system can.
func attach(file int) (*os.File, error) {
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer ctl.Close()
	config := unix.LoopConfig{Fd: uint32(file), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO}}
	for {
		n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, err
		}
		dev, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		if err = unix.IoctlLoopConfigure(int(dev.Fd()), &config); err == nil {
			return dev, nil
		}
		dev.Close()
		if !errors.Is(err, unix.EBUSY) { // EBUSY: another process took this device
			return nil, err
		}
	}
}

// said returns the kernel's messages about a mount that failed: lines such as "e ext4: bad superblock".
func said(fs int) string {
	var words []string
	for buf := make([]byte, 1024); ; {
		n, err := unix.Read(fs, buf)
		if err != nil || n == 0 {
			break
		}
		words = append(words, strings.TrimSpace(strings.TrimPrefix(string(buf[:n]), "e ")))
	}
	if len(words) == 0 {
		return ""
	}
	return " (" + strings.Join(words, "; ") + ")"
}
