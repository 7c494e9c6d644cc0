package machine

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// enterRoot makes a root in memory with the host's /usr, what the guest boots from and what the daemons of its shares start with, and makes
// it this process's.
func (l *Launch) enterRoot(daemon []byte) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts from the host: %w", err)
	}
	at := l.Root
	if err := unix.Mount("berth-machine", at, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=512m"); err != nil {
		return fmt.Errorf("make the machine's root: %w", err)
	}
	for _, d := range []string{"usr", "boot", "old"} {
		if err := os.Mkdir(filepath.Join(at, d), 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("berth-machine", filepath.Join(at, "boot"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755,size=512m"); err != nil {
		return fmt.Errorf("make the machine's root: %w", err)
	}
	if err := l.bootFiles(filepath.Join(at, "boot")); err != nil {
		return err
	}
	for _, name := range []string{"lib", "lib64", "lib32", "bin", "sbin"} {
		to, err := os.Readlink("/" + name)
		if err != nil {
			continue
		}
		if err := os.Symlink(to, filepath.Join(at, name)); err != nil {
			return err
		}
	}
	if err := l.addShares(at, daemon); err != nil {
		return err
	}
	usr := filepath.Join(at, "usr")
	if err := unix.Mount("/usr", usr, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("give the emulator its libraries: %w", err)
	}
	if err := unix.Mount("", usr, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		return fmt.Errorf("give the emulator its libraries: %w", err)
	}
	if err := unix.PivotRoot(at, filepath.Join(at, "old")); err != nil {
		return fmt.Errorf("enter the machine's root: %w", err)
	}
	if err := errors.Join(os.Chdir("/"), unix.Unmount("/old", unix.MNT_DETACH), os.Remove("/old")); err != nil {
		return fmt.Errorf("leave the host's root: %w", err)
	}
	return nil
}

// emptyRoot takes from the root what only the start needed.
func emptyRoot() error {
	for _, at := range []string{"/usr", "/boot"} {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("take %s from the machine's root: %w", at, err)
		}
	}
	shares, err := os.ReadDir(sharesAt)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range shares {
		if err := os.Remove(filepath.Join(sharesAt, e.Name())); err != nil {
			return err
		}
	}
	names, err := os.ReadDir("/")
	if err != nil {
		return err
	}
	for _, e := range names {
		if err := os.Remove("/" + e.Name()); err != nil {
			return err
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("close the machine's root: %w", err)
	}
	return nil
}

// bootFiles writes the kernel and the initial RAM disk: QEMU may read them, whoever may read the kernel's file.
func (l *Launch) bootFiles(dir string) error {
	k, err := openKernel(l.Machine.Kernel)
	if err != nil {
		return err
	}
	defer k.Close()
	write := func(name string, content func(io.Writer) error) error {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		return errors.Join(content(f), f.Close())
	}
	return errors.Join(
		write("kernel", func(w io.Writer) error { _, err := io.Copy(w, k.File); return err }),
		write("initrd", func(w io.Writer) error { return k.writeInitrd(w, l.Emulator.Guest, l.filesystems()) }),
	)
}
