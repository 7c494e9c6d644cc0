package mounts

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Enter moves the current OS thread into a new mount namespace and mounts the plan in it. It needs root. Call it within
// thread.Own: an error too leaves the thread in the half-made namespace.
//
// Errors: refuse.NotFound if a layer or source is missing, refuse.Cannot for a file system that cannot be idmapped or
// written, refuse.Invalid for an invalid plan or a source whose path leads through a symbolic link.
func (p *Plan) Enter(ctx context.Context) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if unix.Gettid() == unix.Getpid() {
		return errors.New("enter a mount namespace: on the main thread, which would keep it")
	}
	var userns *os.File
	if p.needsUserNS() {
		var err error
		if userns, err = UserNS(p.IDs); err != nil {
			return err
		}
		defer userns.Close()
	}
	if err := p.unshare(); err != nil {
		return err
	}
	// Since unshare the umask is the thread's own. The modes of folders that the node's root traverses must not depend
	// on the caller's umask.
	defer unix.Umask(unix.Umask(0))
	if err := p.enterRoot(ctx, userns); err != nil {
		return err
	}
	for i := range p.Stage {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("stage mounts: %w", err)
		}
		if err := p.Stage[i].mount(p.IDs, userns); err != nil {
			return fmt.Errorf("stage %s: %w", p.Stage[i].At, err)
		}
	}
	return p.files()
}

func (p *Plan) needsUserNS() bool {
	if p.IDs.None() {
		return false
	}
	need := p.Root.layerCount() > 0
	for _, s := range p.Stage {
		need = need || s.Idmap
	}
	return need
}

// unshare makes the private namespace. Its mounts do not spread to the host; a mount that the host unmounts is unmounted in it
// too.
func (p *Plan) unshare() error {
	// CLONE_NEWNS implies CLONE_FS: from here on the working directory is the thread's own.
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("take the mount namespace off the host's: %w", err)
	}
	for _, path := range p.Hide {
		if err := hide(path); err != nil {
			return err
		}
	}
	// Without nodev, because device nodes on it must open. Mode 0711, because the container's root, another user,
	// traverses it.
	if err := unix.Mount("berth-stage", p.Dir, "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=0711,size=1m"); err != nil {
		return fmt.Errorf("mount a tmpfs at %s: %w", p.Dir, err)
	}
	return nil
}

// hide unmounts everything mounted at a path, also several mounts on top of each other.
func hide(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) { // nothing is mounted there, or nothing is there
			return nil
		}
		if err != nil {
			return fmt.Errorf("hide %s: %w", path, err)
		}
	}
}

// enterRoot mounts the root. A scratch folder is the thread's working directory meanwhile.
func (p *Plan) enterRoot(ctx context.Context, userns *os.File) error {
	if below(p.Root.At, p.Dir) {
		if err := os.MkdirAll(p.Root.At, 0o711); err != nil {
			return fmt.Errorf("make a mount point: %w", err)
		}
	}
	dir := filepath.Join(p.Dir, ".layers")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("make a scratch folder: %w", err)
	}
	back, err := unix.Open(".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the working directory: %w", err)
	}
	defer unix.Close(back)
	if err := unix.Chdir(dir); err != nil {
		return fmt.Errorf("enter %s: %w", dir, err)
	}
	if err := p.Root.mount(ctx, dir, userns, p.IDs); err != nil {
		return err
	}
	if err := unix.Fchdir(back); err != nil {
		return fmt.Errorf("leave %s: %w", dir, err)
	}
	return nil
}

// mount mounts or makes one staged thing.
func (s *Stage) mount(ids IDs, userns *os.File) error {
	if err := os.MkdirAll(filepath.Dir(s.At), 0o711); err != nil {
		return fmt.Errorf("make a mount point: %w", err)
	}
	if s.Device != nil {
		return s.Device.make(s.At, ids)
	}
	if s.Huge != nil {
		return s.Huge.mount(s.At, ids)
	}
	if s.Volume != nil {
		return s.Volume.mount(s.At)
	}
	t, err := s.tree(userns)
	if err != nil {
		return err
	}
	defer t.close()
	if t.dir {
		err = os.Mkdir(s.At, 0o700)
	} else {
		err = os.WriteFile(s.At, nil, 0o600)
	}
	if err != nil {
		return fmt.Errorf("make a mount point: %w", err)
	}
	return t.move(s.At)
}

// make makes the device node, owned by the node's root.
func (d *DeviceNode) make(at string, ids IDs) error {
	mode := fs.FileMode(d.Mode).Perm()
	if mode == 0 {
		mode = 0o660
	}
	kind := uint32(unix.S_IFCHR)
	if d.Type == "b" {
		kind = unix.S_IFBLK
	}
	if err := unix.Mknod(at, kind|0o600, int(unix.Mkdev(d.Major, d.Minor))); err != nil {
		return fmt.Errorf("make device node %s %d:%d: %w", d.Type, d.Major, d.Minor, err)
	}
	if err := os.Chown(at, int(ids.Base), int(ids.Base)); err != nil {
		return fmt.Errorf("give the device node to the node: %w", err)
	}
	if err := os.Chmod(at, mode); err != nil {
		return fmt.Errorf("set the mode of the device node: %w", err)
	}
	return nil
}
