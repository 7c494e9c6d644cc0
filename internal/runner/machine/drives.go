package machine

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"berth/internal/runner"
	"berth/internal/runner/machine/wire"
	"berth/internal/spec/vnode"
	"berth/internal/sys/file"
	"berth/internal/sys/refuse"
)

// drive is a disk of the guest's that is not the image's.
type drive struct {
	runner.Disk
	serial string
	files  []*os.File // what QEMU gets of it
	block  bool       // it is a device, not a file
	sector int        // bytes of the device's sectors: the guest must see the same, for its partition table counts in them
	aio    string     // how QEMU reads and writes it
}

// drives returns the machine's disks beside the image's: that of its delta first. None is open.
func (l *Launch) drives() []drive {
	var all []drive
	if l.Machine.Delta != "" {
		all = append(all, drive{Disk: runner.Disk{Path: l.Machine.Delta, FS: vnode.Ext4}, serial: wire.DeltaSerial})
	}
	for i, d := range l.Machine.Disks {
		all = append(all, drive{Disk: d, serial: fmt.Sprintf("disk%d", i)})
	}
	return all
}

// filesystems returns the file systems of the machine's disks and shares.
func (l *Launch) filesystems() []string {
	var all []string
	for _, d := range l.drives() {
		if d.FS != "" {
			all = append(all, d.FS)
		}
	}
	if len(l.Machine.Shares) > 0 {
		all = append(all, wire.VirtioFS)
	}
	return all
}

// openDrives opens the machine's disks. The caller is in the node's groups and has the host's files.
func (l *Launch) openDrives() ([]drive, error) {
	all := l.drives()
	aio := aio()
	for i := range all {
		all[i].aio = aio
		if err := all[i].open(); err != nil {
			return nil, fmt.Errorf("disk %s of the machine: %w", all[i].Path, err)
		}
	}
	return all, nil
}

// open opens the disk past the page cache, so that the node's I/O limits hold for what its guest reads and writes. QEMU wants it
// once for each way that it may open it again.
func (d *drive) open() error {
	// O_EXCL: nobody mounts a disk while a guest writes to it, and no other machine has it. It means nothing for a file.
	modes := []int{unix.O_RDWR | unix.O_EXCL, unix.O_RDONLY}
	if d.ReadOnly {
		modes = modes[1:]
	}
	for _, mode := range modes {
		f, err := os.OpenFile(d.Path, mode|unix.O_DIRECT|unix.O_NONBLOCK, 0)
		if errors.Is(err, unix.EINVAL) {
			return refuse.Cannotf("use a file system of a disk (ext4, XFS, btrfs)", "its file system has no direct I/O, without which the node's limits would not hold: %w", err)
		}
		if errors.Is(err, unix.EBUSY) {
			return refuse.Busyf("the host or another machine uses it; findmnt, lsblk and berth ls say who: %w", err)
		}
		if err != nil {
			return err
		}
		d.files = append(d.files, f)
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return err
		}
		d.block = st.Mode&unix.S_IFMT == unix.S_IFBLK
		switch is := fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)); {
		case d.Number != "" && (!d.block || is != d.Number):
			return refuse.Busyf("it is another device now than the one that was looked at (%s)", d.Number)
		case !d.block && st.Mode&unix.S_IFMT != unix.S_IFREG:
			return refuse.Invalidf("it is neither a file nor a disk")
		case d.block:
			if d.sector, err = unix.IoctlGetInt(int(f.Fd()), unix.BLKSSZGET); err != nil {
				return fmt.Errorf("read the size of its sectors: %w", err)
			}
		case cached(f):
			return refuse.Cannotf("use a folder without encryption, on a file system mounted without data=journal",
				"its file system reads and writes it through the page cache, where the node's limits would not hold")
		}
	}
	return nil
}

// cached reports whether the kernel reads and writes a file by the page cache although it was opened for direct I/O (statx(2): the alignment
// for direct I/O is 0). A file system that does not say is believed.
func cached(f *os.File) bool {
	var st unix.Statx_t
	err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st)
	return err == nil && st.Mask&unix.STATX_DIOALIGN != 0 && st.Dio_offset_align == 0
}

// mostAIO is how many requests QEMU's one context of native I/O counts for (MAX_EVENTS in its block/linux-aio.c, doubled by
// ioctx_alloc in fs/aio.c of the kernel).
const mostAIO = 2 * 1024

// aio is the kernel's own asynchronous I/O, or QEMU's threads where all that the host allows is in use. io_uring is closed to QEMU.
func aio() string {
	used, usedErr := strconv.Atoi(file.Text("/proc/sys/fs/aio-nr"))
	most, mostErr := strconv.Atoi(file.Text("/proc/sys/fs/aio-max-nr"))
	if usedErr != nil || mostErr != nil || used+mostAIO > most {
		return "threads"
	}
	return "native"
}

// arguments are QEMU's for the drive, whose descriptors are a set.
func (d *drive) arguments(set int, next func() int) (args []string) {
	for range d.files {
		args = append(args, "-add-fd", fmt.Sprintf("fd=%d,set=%d", next(), set))
	}
	driver, access, sectors := "file,locking=off", "", ""
	if d.block {
		driver = "host_device"
		sectors = fmt.Sprintf(",logical_block_size=%d,physical_block_size=%d", d.sector, d.sector)
	}
	if d.ReadOnly {
		access = ",read-only=on"
	}
	return append(args,
		"-blockdev", fmt.Sprintf("driver=%s,node-name=%s-file,filename=/dev/fdset/%d,cache.direct=on,aio=%s%s", driver, d.serial, set, d.aio, access),
		"-blockdev", fmt.Sprintf("driver=raw,node-name=%s,file=%s-file,cache.direct=on%s", d.serial, d.serial, access),
		"-device", fmt.Sprintf("virtio-blk-device,drive=%s,serial=%s%s", d.serial, d.serial, sectors))
}
