package mounts

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"berth/internal/sys/fault"
	"berth/internal/sys/thread"
)

// Hold is a mount namespace with one mount and nothing else. A file in a folder keeps it, so no process is needed, and the
// host does not see the mount: programs that look at all mounts of the host (df) do not wait for a file server that is away.
type Hold struct {
	Dir string `json:"dir"` // a folder of the hold's own; made by Make and removed by Drop
}

// held is where the mount is in the namespace.
const held = "/at"

// spares is how many more times the mount is there, for Force: the kernel gives up the requests of a file system when one of its
// mounts is unmounted by force, and that mount is gone then.
const spares = 30

func spare(i int) string { return "/spare" + strconv.Itoa(i) }

func (h Hold) pin() string { return filepath.Join(h.Dir, "ns") }
func (h Hold) top() string { return filepath.Join(h.Dir, "top") }

// Made reports whether the namespace is there.
func (h Hold) Made() bool {
	var s unix.Statfs_t
	return unix.Statfs(h.pin(), &s) == nil && s.Type == unix.NSFS_MAGIC
}

// Make makes the namespace. mount mounts something at a folder; it runs on a thread in the new namespace, in which it sees the
// host's files, and may enter other namespaces but for mount and user namespaces. If ctx ends first, Make returns, and a mount
// that mount makes later ends with its thread. A process that is killed meanwhile leaves at most the folder, for Drop.
func (h Hold) Make(ctx context.Context, mount func(at string) error) error {
	if err := errors.Join(os.MkdirAll(h.top(), 0o700), os.WriteFile(h.pin(), nil, 0o600)); err != nil {
		return fmt.Errorf("make a folder for a mount: %w", err)
	}
	// The kernel pins a mount namespace only on a mount that does not spread to others (propagate_one in fs/pnode.c).
	if err := unix.Mount(h.Dir, h.Dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s on itself: %w", h.Dir, err)
	}
	fault.Point("folder of a hold mounted")
	if err := unix.Mount("", h.Dir, "", unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mount of %s private: %w", h.Dir, err)
	}
	ready, pinned := make(chan string, 1), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- thread.Own(func() error {
			if err := h.fill(mount); err != nil {
				return err
			}
			ready <- fmt.Sprintf("/proc/%d/task/%d/ns/mnt", unix.Getpid(), unix.Gettid())
			<-pinned
			return nil
		})
	}()
	select {
	case <-ctx.Done():
		close(pinned)
		return ctx.Err()
	case err := <-done:
		return err
	case ns := <-ready:
		fault.Point("mount to hold made")
		err := unix.Mount(ns, h.pin(), "", unix.MS_BIND, "")
		close(pinned)
		if err = errors.Join(err, <-done); err != nil {
			return fmt.Errorf("keep the mount namespace at %s: %w", h.pin(), err)
		}
		fault.Point("hold pinned")
		return nil
	}
}

// fill makes the namespace of this thread, with the mount in it alone.
func (h Hold) fill(mount func(at string) error) error {
	if err := unshareNewer(); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("take the mount namespace off the host's: %w", err)
	}
	top := h.top()
	if err := unix.Mount("berth-hold", top, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700,size=64k"); err != nil {
		return fmt.Errorf("mount a tmpfs at %s: %w", top, err)
	}
	if err := errors.Join(os.Mkdir(top+held, 0o700), os.Mkdir(top+"/old", 0o700)); err != nil {
		return fmt.Errorf("make a mount point: %w", err)
	}
	if err := mount(top + held); err != nil {
		return err
	}
	for i := range spares {
		if err := errors.Join(os.Mkdir(top+spare(i), 0o700), unix.Mount(top+held, top+spare(i), "", unix.MS_BIND, "")); err != nil {
			return fmt.Errorf("mount it again: %w", err)
		}
	}
	if err := errors.Join(unix.Chdir(top), unix.PivotRoot(".", "old"), unix.Chdir("/"), unix.Unmount("/old", unix.MNT_DETACH)); err != nil {
		return fmt.Errorf("leave the host's files: %w", err)
	}
	return nil
}

// Sync writes what is in the page cache to the file system. It may wait as long as a file server is away.
func (h Hold) Sync() error {
	return h.within(func() error {
		fd, err := unix.Open(held, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Syncfs(fd)
	})
}

// Force makes all requests to the file system fail that wait now. It can be called some times, and leaves the mount.
func (h Hold) Force() error {
	return h.within(func() error {
		for i := range spares {
			if err := unix.Unmount(spare(i), unix.MNT_FORCE|unix.UMOUNT_NOFOLLOW); !errors.Is(err, unix.EINVAL) { // EINVAL: it is gone
				return err
			}
		}
		return unix.EINVAL
	})
}

// Unmount unmounts the mount. It returns when the kernel has, which may take long with a file server that is away.
func (h Hold) Unmount() error {
	err := h.within(func() error {
		for i := range spares {
			_ = unix.Unmount(spare(i), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
		return unix.Unmount(held, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, fs.ErrNotExist) { // nothing is mounted there, or no namespace is
		return nil
	}
	return err
}

// Mounted reports whether the mount is in the namespace, without asking a file server.
func (h Hold) Mounted() bool {
	_, ok := h.root()
	return ok
}

// root returns the kernel's cached attributes of the mount's root.
func (h Hold) root() (st unix.Statx_t, mounted bool) {
	err := h.within(func() error { return statRoot(unix.AT_FDCWD, held, &st) })
	return st, err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

func statRoot(dir int, path string, st *unix.Statx_t) error {
	return unix.Statx(dir, path, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, 0, st)
}

// In reports whether the mount is at target in a node.
func (h Hold) In(node Running, target string) (bool, error) {
	is, ok := h.root()
	if !ok {
		return false, nil
	}
	var st unix.Statx_t
	err := node.inside(func() error { return statRoot(unix.AT_FDCWD, target, &st) })
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 && st.Dev_major == is.Dev_major && st.Dev_minor == is.Dev_minor, err
}

// Replace is Put in place of the file system with the number old, if that is there: then no links in target are followed. It
// returns the number of this one, and target without links.
func (h Hold) Replace(node Running, target string, readOnly bool, old uint64) (number uint64, at string, err error) {
	t, err := h.copied(readOnly)
	if err != nil {
		return 0, "", err
	}
	defer t.close()
	if number, err = device(t.fd); err != nil {
		return 0, "", err
	}
	at, err = node.replace(t, target, old)
	return number, at, err
}

// copied returns a copy of the mount, visible nowhere.
func (h Hold) copied(readOnly bool) (t *tree, err error) {
	err = h.within(func() (err error) {
		if t, err = openTree(held, 0, false); err != nil {
			return err
		}
		flags := uint64(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV)
		if readOnly {
			flags |= unix.MOUNT_ATTR_RDONLY
		}
		return t.set(flags, nil)
	})
	if err != nil && t != nil {
		t.close()
		t = nil
	}
	return t, err
}

// Put puts the mount into a running node at target, which must be a folder there, with nosuid, nodev and, if asked for, ro.
// Links in target are followed within the node's root. The node's command must not have been started yet.
func (h Hold) Put(node Running, target string, readOnly bool) error {
	t, err := h.copied(readOnly)
	if err != nil {
		return err
	}
	defer t.close()
	return node.put(t, target)
}

// put mounts a detached tree in the node.
func (r Running) put(t *tree, target string) error {
	return r.inside(func() error {
		at, err := openTarget(target, true)
		if err != nil {
			return err
		}
		defer unix.Close(at)
		if err := unix.MoveMount(t.fd, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
			return fmt.Errorf("mount at %s in the node: %w", target, err)
		}
		return nil
	})
}

// within calls f on a thread in the namespace. The error wraps fs.ErrNotExist if there is none.
func (h Hold) within(f func() error) error {
	if !h.Made() {
		return fmt.Errorf("open the mount namespace at %s: %w", h.pin(), fs.ErrNotExist)
	}
	ns, err := os.Open(h.pin())
	if err != nil {
		return err
	}
	defer ns.Close()
	return thread.Own(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("take a working directory of one's own: %w", err)
		}
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("enter the mount namespace at %s: %w", h.pin(), err)
		}
		return f()
	})
}

// Drop lets the namespace go, and with it the mount if it is still there, and removes the folder.
func (h Hold) Drop() error {
	for _, at := range []string{h.pin(), h.Dir} {
		if err := hide(at); err != nil {
			return err
		}
		fault.Point("part of a hold unmounted")
	}
	for _, path := range []string{h.pin(), h.top(), h.Dir} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the folder of a mount: %w", err)
		}
	}
	return nil
}
