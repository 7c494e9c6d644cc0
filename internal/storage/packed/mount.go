package packed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
)

// Mount mounts the file read-only, without set-user-id programs and devices of its own, and returns the mount. It is
// attached nowhere: it ends when the returned file is closed, unless it was attached (move_mount) or something of it is open.
//
// Errors: refuse.NotFound and refuse.Cannot if the file is gone or was changed, refuse.Invalid if it is damaged,
// refuse.Cannot if this kernel lacks its file system.
func (f *File) Mount(ctx context.Context) (*os.File, error) {
	file, err := f.open()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return mount(ctx, file, f.Kind, f.Image, f.Lock)
}

// Open opens the file for reading, for those who do not mount it. It is still what it was when it was looked at.
//
// Errors: as those of Mount that concern the file.
func (f *File) Open() (*os.File, error) { return f.open() }

// OpenRoot returns the root folder of the file, to look into it.
func (f *File) OpenRoot(ctx context.Context) (*os.Root, error) {
	m, err := f.Mount(ctx)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	return os.OpenRoot("/proc/self/fd/" + strconv.Itoa(int(m.Fd())))
}

// mount mounts an open file. image is its name for messages.
func mount(ctx context.Context, file *os.File, kind Kind, image, lockFile string) (*os.File, error) {
	dev, err := loopDevice(ctx, file, lockFile)
	if err != nil {
		return nil, fmt.Errorf("mount image file:%s: %w", image, err)
	}
	defer dev.Close() // from here on the mount has it
	at, err := unix.Fsopen(string(kind), unix.FSOPEN_CLOEXEC)
	switch {
	case errors.Is(err, unix.ENODEV):
		return nil, refuse.Cannotf("modprobe "+string(kind)+", or pack the image in the other format",
			"image file:%s: this kernel cannot mount %s: %w", image, kind, err)
	case err != nil:
		return nil, fmt.Errorf("mount image file:%s: %w", image, err)
	}
	defer unix.Close(at)
	err = errors.Join(unix.FsconfigSetString(at, "source", dev.Name()), unix.FsconfigSetFlag(at, "ro"))
	if err != nil {
		return nil, fmt.Errorf("mount image file:%s: %w", image, err)
	}
	if err := unix.FsconfigCreate(at); err != nil {
		return nil, unreadable(image, kind, err)
	}
	fd, err := unix.Fsmount(at, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return nil, unreadable(image, kind, err)
	}
	return os.NewFile(uintptr(fd), image), nil
}

// unreadable refuses a file that the kernel does not mount.
func unreadable(image string, kind Kind, err error) error {
	switch {
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EPERM):
		return fmt.Errorf("mount image file:%s: %w", image, err)
	case errors.Is(err, unix.EOPNOTSUPP):
		return refuse.Cannotf("pack the image on this host, or boot a newer kernel",
			"image file:%s uses features of %s that this kernel does not have: %w", image, kind, err)
	}
	return &refuse.Error{
		Kind: refuse.Invalid, What: fmt.Sprintf("image file:%s is damaged: the kernel cannot read it as %s: %v", image, kind, err),
		Remedy: "pack it again, or copy it again from where it is whole (the kernel log may say more)", Err: err,
	}
}
