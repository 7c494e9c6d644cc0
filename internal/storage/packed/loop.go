package packed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/sys/fault"
	"berth/internal/sys/file"
	"berth/internal/sys/lock"
	"berth/internal/sys/refuse"
)

// loopDevice returns the read-only loop device of a file, opened: the one that is there, or a new one. The kernel detaches
// it when it is neither open nor mounted. It reads the file past the page cache of the file's own file system, so that the
// content is in memory once.
//
// A loop device is taken, and not a mount of the file itself (erofs can, since 6.12): the kernel gives every mount of a
// device the same superblock, but each mount of a file one of its own. A file's mount would also add a layer to the depth
// to which the kernel lets file systems be stacked (2), and no overlay could be mounted inside a node.
func loopDevice(ctx context.Context, f *os.File, lockFile string) (*os.File, error) {
	held, err := lock.Open(ctx, lockFile)
	if err != nil {
		return nil, err
	}
	defer held.Close()
	if dev := findLoop(f); dev != nil {
		return dev, nil
	}
	return newLoop(f)
}

// findLoop returns the loop device that has this file, nil if there is none.
func findLoop(f *os.File) *os.File {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return nil
	}
	backs, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil
	}
	for _, back := range backs {
		// Only a device of a file of this name is opened: opening another one could disturb its owner.
		name := strings.TrimSuffix(file.Text(back), " (deleted)")
		if filepath.Base(name) != filepath.Base(f.Name()) {
			continue
		}
		dev, err := os.Open("/dev/" + filepath.Base(filepath.Dir(filepath.Dir(back))))
		if err != nil {
			continue
		}
		// An open device keeps its file.
		info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
		const need = unix.LO_FLAGS_READ_ONLY | unix.LO_FLAGS_AUTOCLEAR
		if err == nil && info.Device == st.Dev && info.Inode == st.Ino && info.Flags&need == need && info.Offset == 0 && info.Sizelimit == 0 {
			return dev
		}
		dev.Close()
	}
	return nil
}

// newLoop makes a loop device.
func newLoop(f *os.File) (*os.File, error) {
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, refuse.Cannotf("modprobe loop", "ask the kernel for a loop device: %w", err)
	}
	defer ctl.Close()
	config := unix.LoopConfig{
		Fd:   uint32(f.Fd()),
		Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_READ_ONLY | unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO},
	}
	copy(config.Info.File_name[:len(config.Info.File_name)-1], f.Name()) // what losetup shows
	for {
		n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("ask the kernel for a loop device: %w", err)
		}
		dev, err := os.Open(fmt.Sprintf("/dev/loop%d", n))
		if errors.Is(err, fs.ErrNotExist) { // a container as host, whose /dev is no devtmpfs
			return nil, refuse.Cannotf(fmt.Sprintf("mknod /dev/loop%d b 7 %d", n, n), "open the loop device: %w", err)
		}
		if err != nil {
			return nil, fmt.Errorf("open the loop device: %w", err)
		}
		if err = unix.IoctlLoopConfigure(int(dev.Fd()), &config); err == nil {
			fault.Point("loop device made")
			return dev, nil
		}
		dev.Close()
		if !errors.Is(err, unix.EBUSY) { // EBUSY: another process took this device
			return nil, fmt.Errorf("set up loop device %d for %s: %w", n, f.Name(), err)
		}
	}
}
