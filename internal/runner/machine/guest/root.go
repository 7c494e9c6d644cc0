package guest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/runner/machine/wire"
)

// Where the parts of the root are mounted in the initial RAM disk.
const (
	imageAt = "/berth/image"
	deltaAt = "/berth/delta"
	rootAt  = "/berth/root"
)

// makeRoot mounts the image and the delta, makes what the node has of its own in them, and makes that the root.
func makeRoot(s *wire.Setup) error {
	if err := mountDisk(wire.ImageSerial, imageAt, s.ImageType, unix.MS_RDONLY); err != nil {
		return err
	}
	if err := mountDelta(s); err != nil {
		return err
	}
	for _, d := range []string{"upper", "work"} {
		if err := os.Mkdir(filepath.Join(deltaAt, d), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	options := "lowerdir=" + imageAt + ",upperdir=" + deltaAt + "/upper,workdir=" + deltaAt + "/work"
	if err := mount("overlay", rootAt, "overlay", 0, options); err != nil {
		return err
	}
	for path, text := range s.Files {
		if err := writeFile(path, text); err != nil {
			return err
		}
	}
	if err := unix.Sethostname([]byte(s.Hostname)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	for _, i := range s.Interfaces {
		if err := configure(i); err != nil {
			return fmt.Errorf("interface %s: %w", i.Name, err)
		}
	}
	if err := loopback(); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	if err := enterRoot(); err != nil {
		return err
	}
	return addDisks(s.Disks)
}

// mountDelta mounts what takes the writes to the root.
func mountDelta(s *wire.Setup) error {
	if s.DeltaFS != "" {
		return mountDisk(wire.DeltaSerial, deltaAt, s.DeltaFS, 0)
	}
	size := "mode=0755"
	if s.DeltaSize > 0 {
		size += fmt.Sprintf(",size=%d", s.DeltaSize)
	}
	return mount("delta", deltaAt, "tmpfs", 0, size)
}

// mountDisk mounts the disk with a serial number.
func mountDisk(serial, at, fs string, flags uintptr) error {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	return mounted(fs, at, unix.Mount(diskOf(serial), at, fs, flags, ""))
}

// mounted says what could not be mounted.
func mounted(fs, at string, err error) error {
	if err != nil {
		return fmt.Errorf("mount %s at %s: %w (the kernel may lack %s)", fs, at, err, fs)
	}
	return nil
}

// mountShare mounts the folder of the host with a tag, once its device is there.
func mountShare(tag, at, fs string, flags uintptr) error {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	var err error
	await(fmt.Sprintf("folder %q of the host: no device of virtiofs has that name", tag), func() string {
		if err = unix.Mount(tag, at, fs, flags, ""); errors.Is(err, unix.EINVAL) { // no device has the tag yet (virtio_fs_get_tree)
			return ""
		}
		return tag
	})
	return mounted(fs, at, err)
}

// addDisks mounts the disks that have a file system, and names the others, in the root that is this process's now.
func addDisks(disks []wire.Disk) error {
	numbers := map[string]uint64{}
	for _, d := range disks {
		if d.FS != "" {
			flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV)
			if d.ReadOnly {
				flags |= unix.MS_RDONLY
			}
			add := mountDisk
			if d.FS == wire.VirtioFS {
				add = mountShare
			}
			if err := add(d.Serial, d.Target, d.FS, flags); err != nil {
				return err
			}
			continue
		}
		var st unix.Stat_t
		if err := unix.Stat(diskOf(d.Serial), &st); err != nil {
			return fmt.Errorf("disk %s: %w", d.Target, err)
		}
		numbers[d.Target] = st.Rdev
	}
	// The names that the kernel gave them may be those of others among them, or of the image.
	for target := range numbers {
		if err := os.Remove(target); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	for target, number := range numbers {
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		if err := unix.Mknod(target, unix.S_IFBLK|0o660, int(number)); err != nil {
			return fmt.Errorf("make %s: %w", target, err)
		}
		if err := os.Chmod(target, 0o660); err != nil { // whatever the mask
			return err
		}
	}
	return nil
}

// enterRoot makes the overlay this process's root: the kernel lets nobody pivot away from its first RAM disk.
func enterRoot() error {
	for _, m := range []struct {
		what, at, kind string
		flags          uintptr
		options        string
	}{
		{"proc", "proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"sysfs", "sys", "sysfs", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"devtmpfs", "dev", "devtmpfs", unix.MS_NOSUID, "mode=0755"},
		{"devpts", "dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "ptmxmode=0666,mode=0620,gid=5"},
		{"tmpfs", "dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{"tmpfs", "run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755"},
	} {
		if err := mount(m.what, filepath.Join(rootAt, m.at), m.kind, m.flags, m.options); err != nil {
			return err
		}
	}
	if err := os.Chdir(rootAt); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("enter the root: %w", err)
	}
	return os.Chdir("/")
}

// writeFile writes one of the node's own files into the root. A link of the image in its place goes.
func writeFile(path, text string) error {
	root, err := os.OpenRoot(rootAt)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.MkdirAll(filepath.Dir(path), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if info, err := root.Lstat(path); err == nil && !info.Mode().IsRegular() {
		if err := root.Remove(path); err != nil {
			return err
		}
	}
	f, err := root.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// diskOf waits for the disk with a serial number.
func diskOf(serial string) string {
	return await(fmt.Sprintf("disk %q: the kernel lacks virtio_blk", serial), func() string {
		files, _ := filepath.Glob("/sys/block/*/serial")
		for _, f := range files {
			if b, _ := os.ReadFile(f); strings.TrimRight(string(b), "\x00\n") == serial {
				return filepath.Join("/dev", filepath.Base(filepath.Dir(f)))
			}
		}
		return ""
	})
}
