package mounts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
)

// mount mounts the node's root at r.At. dir is an empty scratch folder and must be the thread's working directory.
//
// The layers get numbers as names, because mount(2) takes one page of options: 500 numbers fit, 500 paths do not. And
// no path needs its commas and colons escaped.
func (r *Root) mount(ctx context.Context, dir string, userns *os.File, ids IDs) error {
	if r.Plain != "" {
		flags := uint64(unix.MOUNT_ATTR_NODEV)
		if r.NoSUID {
			flags |= unix.MOUNT_ATTR_NOSUID
		}
		return bind(r.Plain, r.At, flags, nil)
	}
	names, err := r.layers(ctx, dir, userns)
	if err != nil {
		return err
	}
	upper, work := "writes/upper", "writes/work"
	if !r.Memory {
		upper, work = "writes/"+filepath.Base(r.Upper), "writes/"+filepath.Base(r.Work)
	}
	if strings.ContainsAny(upper+work, `,:\`) {
		return refuse.Invalidf("the names of upper %s and work %s must not hold a comma, colon or backslash", r.Upper, r.Work)
	}
	writes := filepath.Join(dir, "writes")
	if err := os.Mkdir(writes, 0o700); err != nil {
		return fmt.Errorf("make a mount point: %w", err)
	}
	if r.Memory {
		err = r.memory(dir, ids)
	} else {
		err = bind(filepath.Dir(r.Upper), writes, 0, nil)
	}
	if err != nil {
		return err
	}
	options := "lowerdir=" + strings.Join(names, ":") + ",upperdir=" + upper + ",workdir=" + work
	if err := r.overlay(options); err != nil {
		return fmt.Errorf("mount the overlay of %d layers and %s at %s: %w (the kernel log may say more)", len(names), r.upperName(), r.At, err)
	}
	if err := r.writable(); err != nil {
		return err
	}
	// Overlay has its own copies of these mounts.
	for _, name := range append(names, "writes") {
		if err := unix.Unmount(filepath.Join(dir, name), unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount layer %s: %w", name, err)
		}
	}
	return nil
}

// overlay mounts the overlay; without volatile if the kernel does not know that option.
func (r *Root) overlay(options string) error {
	flags := uintptr(unix.MS_NODEV)
	if r.NoSUID {
		flags |= unix.MS_NOSUID
	}
	if r.Volatile {
		err := unix.Mount("overlay", r.At, "overlay", flags, options+",volatile")
		if !errors.Is(err, unix.EINVAL) {
			return err
		}
	}
	return unix.Mount("overlay", r.At, "overlay", flags, options)
}

// layers mounts each lower folder in dir under its number, idmapped if there is a user namespace.
func (r *Root) layers(ctx context.Context, dir string, userns *os.File) ([]string, error) {
	if r.Packed != nil {
		return []string{"0"}, r.unpacked(ctx, filepath.Join(dir, "0"), userns)
	}
	names := make([]string, len(r.Lower))
	for i, lower := range r.Lower {
		names[i] = strconv.Itoa(i)
		at := filepath.Join(dir, names[i])
		if err := os.Mkdir(at, 0o700); err != nil {
			return nil, fmt.Errorf("make a mount point: %w", err)
		}
		if err := bind(lower, at, unix.MOUNT_ATTR_RDONLY, userns); err != nil {
			return nil, fmt.Errorf("image layer: %w", err)
		}
	}
	return names, nil
}

// unpacked mounts the packed image.
func (r *Root) unpacked(ctx context.Context, at string, userns *os.File) error {
	if err := os.Mkdir(at, 0o700); err != nil {
		return fmt.Errorf("make a mount point: %w", err)
	}
	m, err := r.Packed.Mount(ctx)
	if err != nil {
		return err
	}
	defer m.Close()
	t := tree{fd: int(m.Fd()), source: r.Packed.Image, dir: true}
	if err := t.set(0, userns); err != nil {
		if userns != nil && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM)) {
			return refuse.Cannotf("pack it as erofs (this kernel maps its ids since 5.19), or set user_namespace: false",
				"image file:%s: this kernel cannot idmap %s: %w", r.Packed.Image, r.Packed.Kind, err)
		}
		return err
	}
	return t.move(at)
}

// memory mounts the tmpfs that takes the writes. Its upper folder belongs to the node's root and has the mode of the
// top layer's root, because the overlay's root shows both.
func (r *Root) memory(dir string, ids IDs) error {
	writes := filepath.Join(dir, "writes")
	options := "mode=0700"
	if r.Size > 0 {
		options += ",size=" + strconv.FormatInt(int64(r.Size), 10)
	}
	if err := unix.Mount("berth-delta", writes, "tmpfs", unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount a tmpfs of %s for the writes to %s: %w", r.Size, r.At, err)
	}
	var top unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "0"), &top); err != nil {
		return fmt.Errorf("stat layer %s: %w", r.Layers()[0], err)
	}
	for _, name := range []string{"upper", "work"} {
		path := filepath.Join(writes, name)
		if err := os.Mkdir(path, 0o700); err != nil {
			return fmt.Errorf("make %s: %w", path, err)
		}
		if err := os.Chown(path, int(ids.Base), int(ids.Base)); err != nil {
			return fmt.Errorf("give %s to the node: %w", path, err)
		}
	}
	if err := unix.Chmod(filepath.Join(writes, "upper"), top.Mode&0o7777); err != nil {
		return fmt.Errorf("set the mode of the root: %w", err)
	}
	return nil
}

// writable checks that the root can be written. Overlay mounts read-only without an error if it cannot use the upper
// folder, for example an idmapped one (EOVERFLOW in fs/overlayfs/super.c).
func (r *Root) writable() error {
	var fs unix.Statfs_t
	if err := unix.Statfs(r.At, &fs); err != nil {
		return fmt.Errorf("stat the file system of root %s: %w", r.At, err)
	}
	if fs.Type != unix.OVERLAYFS_SUPER_MAGIC {
		return fmt.Errorf("root %s is not the overlay that was mounted there", r.At)
	}
	if fs.Flags&unix.ST_RDONLY != 0 {
		return refuse.Cannotf("put it on a writable ext4, xfs, btrfs or tmpfs that is not idmapped, or use delta: {in: memory}",
			"the overlay at %s came up read-only: the kernel cannot write to %s", r.At, r.upperName())
	}
	return nil
}

func (r *Root) upperName() string {
	if r.Memory {
		return "memory"
	}
	return "delta " + r.Upper
}
