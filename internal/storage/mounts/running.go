package mounts

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/sys/fault"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
	"berth/internal/sys/thread"
)

// Running is a running node whose /dev can be changed.
type Running struct {
	PID   int    `json:"pid"`             // its process 1, on the host
	Start uint64 `json:"start"`           // start time of that process, in clock ticks since boot
	Owner uint32 `json:"owner,omitempty"` // host uid and gid of the node's root
	Stage string `json:"stage"`           // an empty folder of the host, used as a temporary mount point
}

// PutDevice makes a device appear at a path below the node's /dev.
//
// The node's /dev belongs to its user namespace, and the kernel opens no device there. So the device node is made on a
// tmpfs of the host, in a mount namespace that only this thread sees, and bound into the node, as at the node's start.
//
// Errors: unix.ESRCH if the node's process 1 has ended, refuse.Busy if something other than an empty file is at the
// path.
func (r Running) PutDevice(at string, d DeviceNode) error {
	return r.within(&d, func(dev int, t *tree) error {
		name, dir, err := r.walk(dev, at, true)
		if elsewhere(err) {
			return refuse.Busyf("the node has something else in the way of %s: %w", at, err)
		}
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		now, err := lookup(dir, name)
		if err != nil {
			return fmt.Errorf("look at %s in the node: %w", at, err)
		}
		if now.mounted && now.is(d) {
			return nil // already done by a process that was killed
		}
		if now.there && !now.empty { // an empty file may be left from a process that was killed
			return refuse.Busyf("the node has something else at %s", at)
		}
		if !now.there {
			if err := r.asOwner(func() error { return touch(dir, name) }); err != nil {
				return fmt.Errorf("make a mount point for %s in the node: %w", at, err)
			}
		}
		fault.Point("mount point for a device made")
		if err := unix.MoveMount(t.fd, "", dir, name, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return errors.Join(fmt.Errorf("mount %s in the node: %w", at, err), unix.Unlinkat(dir, name, 0))
		}
		fault.Point("device mounted")
		return nil
	})
}

// TakeDevice removes a device from the node's /dev, together with folders that become empty. Another device at the
// path, or none, is left as it is.
//
// Errors: unix.ESRCH if the node's process 1 has ended.
func (r Running) TakeDevice(at string, d DeviceNode) error {
	return r.within(nil, func(dev int, _ *tree) error {
		name, dir, err := r.walk(dev, at, false)
		if errors.Is(err, fs.ErrNotExist) || elsewhere(err) {
			return nil
		}
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		now, err := lookup(dir, name)
		if err != nil {
			return fmt.Errorf("look at %s in the node: %w", at, err)
		}
		if now.mounted && now.is(d) {
			// umount(2) takes no folder descriptor, so the folder becomes the thread's working directory.
			if err := unix.Fchdir(dir); err != nil {
				return fmt.Errorf("enter the folder of %s: %w", at, err)
			}
			if err := unix.Unmount(name, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
				return fmt.Errorf("unmount %s in the node: %w", at, err)
			}
			fault.Point("device unmounted")
			if now, err = lookup(dir, name); err != nil {
				return fmt.Errorf("look at %s in the node: %w", at, err)
			}
		}
		if !now.empty {
			return nil
		}
		return r.asOwner(func() error {
			if err := unix.Unlinkat(dir, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("remove the mount point of %s in the node: %w", at, err)
			}
			fault.Point("mount point of a device removed")
			removeEmpty(dev, path.Dir(strings.TrimPrefix(at, "/dev/")))
			return nil
		})
	})
}

// HasDevice reports whether this device is at the path in the node.
func (r Running) HasDevice(at string, d DeviceNode) (has bool, err error) {
	err = r.within(nil, func(dev int, _ *tree) error {
		name, dir, err := r.walk(dev, at, false)
		if errors.Is(err, fs.ErrNotExist) || elsewhere(err) {
			return nil
		}
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		now, err := lookup(dir, name)
		has = now.mounted && now.is(d)
		return err
	})
	return has, err
}

// replace mounts a detached tree in the node at target, in place of the file system with the number old if that is there. It
// returns the target without links. Links are followed the first time alone (old is 0), before the node's command runs: later
// they are the node's to make, and its users could have the mount put over another folder.
func (r Running) replace(t *tree, target string, old uint64) (at string, err error) {
	fds, err := unix.Open("/proc/self/fd", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open /proc/self/fd: %w", err)
	}
	defer unix.Close(fds)
	err = r.inside(func() error {
		dir, err := openTarget(target, old == 0)
		if err != nil {
			return err
		}
		if now, err := device(dir); err == nil && old != 0 && now == old {
			// umount(2) takes a path: that of the descriptor.
			if err = unix.Fchdir(fds); err == nil {
				err = unix.Unmount(strconv.Itoa(dir), unix.MNT_DETACH)
			}
			unix.Close(dir)
			if err != nil {
				return fmt.Errorf("unmount what is at %s in the node: %w", target, err)
			}
			if dir, err = openTarget(target, false); err != nil {
				return err
			}
		}
		defer unix.Close(dir)
		name := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(fds, strconv.Itoa(dir), name)
		if err != nil {
			return fmt.Errorf("find where %s is in the node: %w", target, err)
		}
		at = string(name[:n])
		if err := unix.MoveMount(t.fd, "", dir, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
			return fmt.Errorf("mount at %s in the node: %w", target, err)
		}
		return nil
	})
	return at, err
}

// openTarget opens a folder of the node whose mount namespace this thread is in.
func openTarget(target string, links bool) (int, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS}
	if !links {
		how.Resolve |= unix.RESOLVE_NO_SYMLINKS
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, target, &how)
	if errors.Is(err, unix.ELOOP) && !links {
		return -1, refuse.Busyf("the node has put a link in the way of %s", target)
	}
	if err != nil {
		return -1, fmt.Errorf("open %s in the node: %w", target, err)
	}
	return fd, nil
}

// device returns the number of the file system that an open file is on, without asking the file system.
func device(fd int) (uint64, error) {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st); err != nil {
		return 0, fmt.Errorf("look at a mount: %w", err)
	}
	return unix.Mkdev(st.Dev_major, st.Dev_minor), nil
}

// within calls f on a thread in the node's mount namespace, with the node's /dev open. If d is not nil, t is a detached
// mount of a new device node for it.
func (r Running) within(d *DeviceNode, f func(dev int, t *tree) error) error {
	init, err := r.open()
	if err != nil {
		return err
	}
	defer init.Close()
	return thread.Own(func() error {
		var t *tree
		var err error
		if d != nil {
			if t, err = r.stage(*d); err != nil {
				return err
			}
			defer t.close()
		} else if err := unix.Unshare(unix.CLONE_FS); err != nil { // setns requires a working directory of the thread's own
			return fmt.Errorf("take a working directory of one's own: %w", err)
		}
		if err := unix.Setns(int(init.Fd()), unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("enter the node's mount namespace: %w", err)
		}
		dev, err := unix.Openat2(unix.AT_FDCWD, "/dev", &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
		})
		if err != nil {
			return fmt.Errorf("open the node's /dev: %w", err)
		}
		defer unix.Close(dev)
		return f(dev, t)
	})
}

// inside calls f on a thread in the node's mount namespace, with the node's root as its root.
func (r Running) inside(f func() error) error {
	init, err := r.open()
	if err != nil {
		return err
	}
	defer init.Close()
	return thread.Own(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil { // setns requires a working directory of the thread's own
			return fmt.Errorf("take a working directory of one's own: %w", err)
		}
		if err := unix.Setns(int(init.Fd()), unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("enter the node's mount namespace: %w", err)
		}
		return f()
	})
}

// open returns a pidfd of the node's process 1, or unix.ESRCH if another process has its number or it has ended.
func (r Running) open() (*os.File, error) {
	id := proc.ID{PID: r.PID, Start: r.Start}
	f, err := id.Open()
	if err != nil {
		return nil, fmt.Errorf("find the node's process 1: %w", err)
	}
	if !id.Alive() {
		f.Close()
		return nil, fmt.Errorf("find the node's process 1: %w", unix.ESRCH)
	}
	return f, nil
}

// stage makes the device node in a new mount namespace of this thread.
func (r Running) stage(d DeviceNode) (*tree, error) {
	p := Plan{Dir: r.Stage}
	if err := p.unshare(); err != nil {
		return nil, err
	}
	at := path.Join(r.Stage, "device")
	if err := d.make(at, IDs{Base: r.Owner}); err != nil {
		return nil, err
	}
	return openTree(at, 0, false)
}

// walk opens the folder of a path below the node's /dev, without leaving /dev through links. It makes missing folders
// if makeDirs is set.
func (r Running) walk(dev int, at string, makeDirs bool) (name string, dir int, err error) {
	below, ok := strings.CutPrefix(at, "/dev/")
	if !ok || path.Clean(at) != at {
		return "", -1, refuse.Invalidf("device path %q is not below /dev", at)
	}
	parts := strings.Split(below, "/")
	dir, err = unix.Dup(dev)
	for _, p := range parts[:len(parts)-1] {
		if err != nil {
			break
		}
		next, openErr := openDir(dir, p)
		if makeDirs && errors.Is(openErr, unix.ENOENT) {
			if openErr = r.asOwner(func() error { return unix.Mkdirat(dir, p, 0o755) }); openErr == nil {
				next, openErr = openDir(dir, p)
			}
		}
		unix.Close(dir)
		dir, err = next, openErr
	}
	if err != nil {
		return "", -1, fmt.Errorf("open the folder of %s in the node: %w", at, err)
	}
	return parts[len(parts)-1], dir, nil
}

// elsewhere reports whether err means that the path leads out of the node's /dev, by a link or a mount that the node
// made, or through something that is no folder.
func elsewhere(err error) bool {
	return errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EXDEV)
}

func openDir(dir int, name string) (int, error) {
	return unix.Openat2(dir, name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV,
	})
}

// asOwner calls f with the file system ids of the node's root, which only this thread gets. On a file system of the node's user
// namespace other users cannot make a file (EOVERFLOW).
func (r Running) asOwner(f func() error) error {
	if r.Owner != 0 {
		for _, id := range []struct {
			set func(int) (int, error)
			old int
		}{{unix.SetfsgidRetGid, os.Getegid()}, {unix.SetfsuidRetUid, os.Geteuid()}} {
			if _, err := id.set(int(r.Owner)); err != nil {
				return fmt.Errorf("act as the node's root: %w", err)
			}
			defer func() { _, _ = id.set(id.old) }()
		}
	}
	return f()
}

func touch(dir int, name string) error {
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// removeEmpty removes a folder below dev and then its parents, while they are empty.
func removeEmpty(dev int, dir string) {
	for ; dir != "." && dir != "/"; dir = path.Dir(dir) {
		parent, err := openDir(dev, path.Dir(dir))
		if err != nil {
			return
		}
		err = unix.Unlinkat(parent, path.Base(dir), unix.AT_REMOVEDIR)
		unix.Close(parent)
		if err != nil {
			return
		}
	}
}

// found describes an entry of the node's /dev.
type found struct {
	there   bool
	mounted bool // it is a mount point
	empty   bool // it is an empty file, which a device can be mounted on
	st      unix.Statx_t
}

func lookup(dir int, name string) (found, error) {
	var f found
	err := unix.Statx(dir, name, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE|unix.STATX_SIZE, &f.st)
	if errors.Is(err, unix.ENOENT) {
		return f, nil
	}
	f.there = err == nil
	f.mounted = f.there && f.st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
	f.empty = f.there && !f.mounted && f.st.Mode&unix.S_IFMT == unix.S_IFREG && f.st.Size == 0
	return f, err
}

func (f found) is(d DeviceNode) bool {
	kind := uint16(unix.S_IFCHR)
	if d.Type == "b" {
		kind = unix.S_IFBLK
	}
	return f.st.Mode&unix.S_IFMT == kind && f.st.Rdev_major == d.Major && f.st.Rdev_minor == d.Minor
}
