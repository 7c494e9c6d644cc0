package block

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// InUse reports whether the host uses a block device, and for what. The device is in use if it, one of its partitions, or a
// device built on these (LVM, RAID, multipath) is mounted, is swap, is part of a btrfs, or has another device built on it.
// For a partition, its whole disk counts too, but not its neighbours. proc and sys are the roots of procfs and sysfs.
// Anything that cannot be read counts as use.
//
// InUse sees the mounts of this mount namespace; Claimed sees those of all.
func InUse(proc, sys string, major, minor uint32) (by string, ok bool) {
	d, err := byNumber(sys, major, minor)
	if err != nil {
		return err.Error(), true
	}
	family, err := d.family()
	if err != nil {
		return err.Error(), true
	}
	for _, look := range []func(string, []*device) (string, error){mountedOn, swapOn} {
		if by, err = look(proc, family); err != nil {
			return err.Error(), true
		}
		if by != "" {
			return by, true
		}
	}
	for _, m := range family {
		// A btrfs on several devices is mounted by the name of one of them; sysfs lists all.
		if used, _ := filepath.Glob(filepath.Join(sys, "fs/btrfs/*/devices", m.name)); len(used) > 0 {
			return m.title() + " is part of a btrfs", true
		}
	}
	for _, m := range family {
		if holders, _ := m.holders(); len(holders) > 0 { // no error: family has read them
			return holders[0].title() + " is built on " + m.title(), true
		}
	}
	return "", false
}

// Claimed reports whether anything holds the block device at path exclusively: a mount in any namespace, swap, a mapped
// device, a file system on several devices. It asks the kernel by an exclusive open, which disturbs nothing but another
// exclusive open at the same moment.
func Claimed(path string) (bool, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_EXCL|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EBUSY) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("open %s exclusively: %w", path, err)
	}
	return false, unix.Close(fd)
}

// family returns the device, its disk, its partitions, and everything built on these, the device first.
func (d *device) family() ([]*device, error) {
	all := []*device{d}
	if d.partOf != nil {
		all = append(all, d.partOf)
	}
	for i := 0; i < len(all); i++ { // all grows meanwhile
		m := all[i]
		more, err := m.holders()
		if err != nil {
			return nil, err
		}
		if m.partOf == nil && m != d.partOf {
			parts, err := readDevices(filepath.Join(m.dir, "*/partition"))
			if err != nil {
				return nil, err
			}
			more = append(more, parts...)
		}
		for _, n := range more {
			if !slices.ContainsFunc(all, func(a *device) bool { return a.dir == n.dir }) {
				all = append(all, n)
			}
		}
	}
	return all, nil
}

// holders returns the devices that are built directly on this one.
func (d *device) holders() ([]*device, error) {
	return readDevices(filepath.Join(d.dir, "holders/*"))
}

// readDevices reads the block devices whose folders, or links to them, match a pattern.
func readDevices(pattern string) ([]*device, error) {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return nil, err
	}
	var all []*device
	for _, path := range paths {
		path = strings.TrimSuffix(path, "/partition") // a file in the folder of each partition
		dir, err := filepath.EvalSymlinks(path)
		if err != nil {
			return nil, fmt.Errorf("find block device %s: %w", path, err)
		}
		d, err := readDevice(dir)
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

// mountedOn says which of the devices is mounted and where; "" if none is.
func mountedOn(proc string, family []*device) (string, error) {
	f, err := os.Open(filepath.Join(proc, "self/mountinfo"))
	if err != nil {
		return "", fmt.Errorf("read mounts: %w", err)
	}
	defer f.Close()
	mounts, err := mountinfo.GetMountsFromReader(f, nil)
	if err != nil {
		return "", fmt.Errorf("read mounts: %w", err)
	}
	for _, d := range family {
		for _, m := range mounts {
			same := m.Major == int(d.major) && m.Minor == int(d.minor)
			if m.Major == 0 { // btrfs and others: only the source names the device
				same = strings.HasPrefix(m.Source, "/dev/") && d.isNode(m.Source)
			}
			if same {
				return d.title() + " is mounted on " + m.Mountpoint, nil
			}
		}
	}
	return "", nil
}

// swapOn says which of the devices is swap, "" if none is.
func swapOn(proc string, family []*device) (string, error) {
	b, err := os.ReadFile(filepath.Join(proc, "swaps"))
	if os.IsNotExist(err) { // a kernel without swap
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read swap devices: %w", err)
	}
	for _, d := range family {
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 1 && f[1] == "partition" && d.isNode(f[0]) {
				return d.title() + " is swap", nil
			}
		}
	}
	return "", nil
}

// isNode reports whether a path below /dev, or what it links to (/dev/mapper/vg0-swap), is this device's node.
func (d *device) isNode(path string) bool {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	return path == "/dev/"+d.name
}
