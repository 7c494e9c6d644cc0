// Package block finds the disk behind a path, tells whether the host uses that disk, and switches its I/O engine.
package block

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
)

// Disk is the whole device that limits act on: the kernel refuses a limit on a partition (ENODEV).
type Disk struct {
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
	Name  string `json:"name"`          // the kernel's: vda, nvme0n1, loop0, dm-0, md0
	Asked string `json:"asked"`         // the path that was asked for
	Via   string `json:"via,omitempty"` // how Asked leads to the disk: "partition vda1 of vda", "/srv is on vda"; "" if it is the disk
	Kind  Kind   `json:"kind,omitempty"`
	FS    string `json:"fs,omitempty"` // the file system that Asked lies on: "ext4"; "" for a device

	// A weight needs a request queue. A volume has none: its weight acts on the disks below.
	Queues   []Queue `json:"queues,omitempty"`
	NoWeight string  `json:"no_weight,omitempty"` // why Queues is empty
}

// Number returns the disk's number as the kernel writes it: "254:0".
func (d Disk) Number() string { return number(d.Major, d.Minor) }

// ofPartition begins what Via says of a partition.
const ofPartition = "partition "

// OfPartition reports whether a partition was asked for. What acts on the disk acts on its other partitions, too.
func (d Disk) OfPartition() bool { return strings.HasPrefix(d.Via, ofPartition) }

// Resolve returns the disk of a device node, or of a link to one (/dev/disk/by-id/…). sys is the root of sysfs.
func Resolve(sys, path string) (Disk, error) {
	d, err := open(sys, path)
	if err != nil {
		return Disk{}, err
	}
	disk, err := d.disk(sys, path)
	if err != nil {
		return Disk{}, fmt.Errorf("find the disk of %s: %w", path, err)
	}
	return disk, nil
}

// open finds the block device at a path.
func open(sys, path string) (*device, error) {
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, refuse.NotFoundf("there is no device %s", path)
	case err != nil:
		return nil, fmt.Errorf("find the device %s: %w", path, err)
	case fi.Mode()&os.ModeDevice == 0 || fi.Mode()&os.ModeCharDevice != 0:
		return nil, refuse.Invalidf("%s is not a block device: device takes one, path takes a folder or file", path)
	}
	dev := rdev(fi)
	d, err := byNumber(sys, unix.Major(dev), unix.Minor(dev))
	if err != nil {
		return nil, fmt.Errorf("find the disk of %s: %w", path, err)
	}
	return d, nil
}

// Under returns the disk under a folder or file. File systems without one device of their own (btrfs over several,
// overlay, tmpfs, network file systems) are refused.
func Under(sys, path string) (Disk, error) {
	d, err := under(sys, path)
	if err != nil {
		return Disk{}, err
	}
	disk, err := d.disk(sys, path)
	if err != nil {
		return Disk{}, fmt.Errorf("find the disk under %s: %w", path, err)
	}
	if disk.Via == "" {
		disk.Via = d.name
	}
	disk.Via = path + " is on " + disk.Via
	disk.FS = typeOf(path)
	return disk, nil
}

// under finds the device that a folder or file lies on.
func under(sys, path string) (*device, error) {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, refuse.NotFoundf("there is no folder or file %s", path)
	case err != nil:
		return nil, fmt.Errorf("find the device under %s: %w", path, err)
	case st.Mode&unix.S_IFMT == unix.S_IFBLK:
		return nil, refuse.Invalidf("%s is a block device: give it as device, not as path", path)
	}
	var d *device
	if unix.Major(st.Dev) == 0 { // an anonymous number, made up by the file system (mm: get_anon_bdev)
		d, err = underAnonymous(sys, path)
	} else {
		d, err = byNumber(sys, unix.Major(st.Dev), unix.Minor(st.Dev))
	}
	if err != nil {
		return nil, fmt.Errorf("find the disk under %s: %w", path, err)
	}
	return d, nil
}

// device is one block device in sysfs.
type device struct {
	name         string
	dir          string // its folder in sysfs, links resolved
	major, minor uint32
	partOf       *device // nil for a whole disk
}

// disk returns the whole disk of d. asked is the path that led to d.
func (d *device) disk(sys, asked string) (Disk, error) {
	layers, err := d.layer(sys)
	if err != nil {
		return Disk{}, err
	}
	disk := Disk{Asked: asked}
	disk.Queues, disk.NoWeight = layers.queues()
	if d.partOf != nil {
		disk.Via = ofPartition + d.name + " of " + d.partOf.name
		d = d.partOf
	}
	disk.Major, disk.Minor, disk.Name, disk.Kind = d.major, d.minor, d.name, d.kind()
	return disk, nil
}

// byNumber finds a block device by its number. A device that sysfs does not know is refused (exit 4).
func byNumber(sys string, major, minor uint32) (*device, error) {
	link := filepath.Join(sys, "dev/block", fmt.Sprintf("%d:%d", major, minor))
	dir, err := filepath.EvalSymlinks(link)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse.NotFoundf("the kernel has no block device %d:%d", major, minor)
	}
	if err != nil {
		return nil, fmt.Errorf("find block device %d:%d: %w", major, minor, err)
	}
	return readDevice(dir)
}

// readDevice reads the folder of a block device in sysfs.
func readDevice(dir string) (*device, error) {
	b, err := os.ReadFile(filepath.Join(dir, "dev"))
	if err != nil {
		return nil, fmt.Errorf("read block device %s: %w", dir, err)
	}
	major, minor, ok := parseNumber(strings.TrimSpace(string(b)))
	if !ok {
		return nil, fmt.Errorf("read block device %s: %q is not a device number", dir, b)
	}
	// sysfs writes '!' for the '/' of names such as cciss/c0d0
	d := &device{name: strings.ReplaceAll(filepath.Base(dir), "!", "/"), dir: dir, major: major, minor: minor}
	if !d.has("partition") {
		return d, nil
	}
	if d.partOf, err = readDevice(filepath.Dir(dir)); err != nil {
		return nil, err
	}
	return d, nil
}

func parseNumber(s string) (major, minor uint32, ok bool) {
	a, b, _ := strings.Cut(s, ":")
	x, err1 := strconv.ParseUint(a, 10, 32)
	y, err2 := strconv.ParseUint(b, 10, 32)
	return uint32(x), uint32(y), err1 == nil && err2 == nil
}

// title returns a device's name for people: a mapped device's with the name that its creator gave it.
func (d *device) title() string {
	if name := d.text("dm/name"); name != "" {
		return d.name + " (" + name + ")"
	}
	return d.name
}
