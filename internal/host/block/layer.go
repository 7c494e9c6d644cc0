package block

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/sys/file"
	"berth/internal/sys/refuse"
)

// Kind is what a block device is made of.
type Kind string

// The kinds of device.
const (
	Partition Kind = "partition"
	Whole     Kind = "disk"
	LVM       Kind = "logical volume" // device mapper, made by LVM
	Crypt     Kind = "encrypted volume"
	Multipath Kind = "multipath"
	Mapped    Kind = "mapped device" // another device of the device mapper
	MD        Kind = "md array"
	Loop      Kind = "loop device"
)

// Layer is one device on the way from the path asked for down to the disks that hold the data. Throttle and Weight say
// whether these limits act on it: "" means that they act here; else the text says why not, or where instead.
type Layer struct {
	Name      string   `json:"name"`  // the kernel's
	Title     string   `json:"title"` // with the name that its creator gave it: "dm-0 (vg0-data)"
	Kind      Kind     `json:"kind"`
	Number    string   `json:"number"`
	Scheduler string   `json:"scheduler,omitempty"` // of a disk with a queue
	Throttle  string   `json:"throttle"`            // read and write rates
	Weight    string   `json:"weight"`
	Below     []*Layer `json:"below,omitempty"` // a partition's disk, a volume's disks, the disk of a loop device's file

	queue Queue
}

// Layers returns the layers under a block device. sys is the root of sysfs.
func Layers(sys, path string) (*Layer, error) {
	d, err := open(sys, path)
	if err != nil {
		return nil, err
	}
	return d.layer(sys)
}

// LayersUnder returns the layers under a folder or file, which must lie on one device.
func LayersUnder(sys, path string) (*Layer, error) {
	d, err := under(sys, path)
	if err != nil {
		return nil, err
	}
	return d.layer(sys)
}

// deepest bounds the number of layers: the file of a loop device may lie on a disk made of loop devices.
const deepest = 16

func (d *device) layer(sys string) (*Layer, error) { return d.layerAt(sys, 0) }

func (d *device) layerAt(sys string, depth int) (*Layer, error) {
	l := &Layer{Name: d.name, Title: d.title(), Number: number(d.major, d.minor), Kind: d.kind()}
	below, err := d.below(sys, l)
	if err != nil {
		return nil, err
	}
	for _, b := range below {
		if depth == deepest {
			break
		}
		under, err := b.layerAt(sys, depth+1)
		if err != nil {
			return nil, err
		}
		l.Below = append(l.Below, under)
	}
	switch l.Kind {
	case Partition:
		l.Throttle = "acts on the whole disk " + d.partOf.name + ": the kernel has no limit of a partition"
		l.Weight = "acts on the whole disk " + d.partOf.name
	case Whole, Loop:
		l.queue = d.queue()
		l.Scheduler = l.queue.Scheduler
		if !l.queue.ok {
			l.Weight = "it takes requests without a queue of its own, so it has no I/O scheduler"
			if strings.HasPrefix(d.name, "nvme") {
				l.Weight = "NVMe multipath: it has no queue of its own (nvme_core.multipath=N on the kernel's command line gives it one)"
			}
		}
	default:
		l.Weight = l.through()
	}
	return l, nil
}

// through says what becomes of a weight on a device that passes its I/O on. The lab (test/lab) has shown that the I/O keeps
// the node's group only for LVM volumes directly on disks. Mirrors, RAID 5 and encryption write from threads of their own.
func (l *Layer) through() string {
	var names []string
	for _, b := range l.Below {
		names = append(names, b.Name)
		if b.Kind != Partition && b.Kind != Whole && b.Kind != Loop {
			return "it has no queue of its own, and lies on the " + string(b.Kind) + " " + b.Title
		}
	}
	disks := strings.Join(names, ", ")
	switch {
	case len(names) == 0:
		return "it has no queue of its own"
	case l.Kind != LVM:
		return "it has no queue of its own, and whether what it sends to " + disks + " is still known as the node's is not proved"
	}
	return "acts on what it lies on: " + disks
}

// queues returns the disks on which a weight of this layer acts. If there are none, none says why.
func (l *Layer) queues() (all []Queue, none string) {
	if l.queue.ok {
		return []Queue{l.queue}, ""
	}
	down := l.Kind == Partition || l.Kind == LVM && strings.HasPrefix(l.Weight, "acts on")
	if !down {
		return nil, l.Title + " (" + string(l.Kind) + "): " + l.Weight
	}
	for _, b := range l.Below {
		more, none := b.queues()
		if none != "" {
			return nil, none
		}
		for _, q := range more {
			if !slices.ContainsFunc(all, func(a Queue) bool { return a.Number() == q.Number() }) {
				all = append(all, q)
			}
		}
	}
	return all, ""
}

// kind tells mapped devices apart by the prefix of the uuid that their creators give them.
func (d *device) kind() Kind {
	uuid := d.text("dm/uuid")
	switch {
	case d.partOf != nil:
		return Partition
	case strings.HasPrefix(uuid, "LVM-"):
		return LVM
	case strings.HasPrefix(uuid, "CRYPT-"):
		return Crypt
	case strings.HasPrefix(uuid, "mpath-"):
		return Multipath
	case d.has("dm"):
		return Mapped
	case d.has("md"):
		return MD
	case strings.HasPrefix(d.name, "loop"):
		return Loop
	}
	return Whole
}

// below returns the devices that this one is made of.
func (d *device) below(sys string, l *Layer) ([]*device, error) {
	switch {
	case d.partOf != nil:
		return []*device{d.partOf}, nil
	case l.Kind == Loop:
		return d.underFile(sys)
	}
	return readDevices(filepath.Join(d.dir, "slaves/*"))
}

// underFile returns the device under a loop device's file. There is none if the file is gone or its file system has no
// device of its own.
func (d *device) underFile(sys string) ([]*device, error) {
	var st unix.Stat_t
	if unix.Stat(d.text("loop/backing_file"), &st) != nil { // the loop device works on without a name for its file
		return nil, nil //nolint:nilerr // see above
	}
	dev := st.Dev
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		dev = st.Rdev
	}
	if unix.Major(dev) == 0 {
		return nil, nil
	}
	b, err := byNumber(sys, unix.Major(dev), unix.Minor(dev))
	if refuse.KindOf(err) == refuse.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return []*device{b}, nil
}

// has reports whether the device's folder in sysfs has a file.
func (d *device) has(name string) bool {
	_, err := os.Stat(filepath.Join(d.dir, name))
	return err == nil
}

// text reads a small file of the device in sysfs, "" if it has none.
func (d *device) text(name string) string { return file.Text(filepath.Join(d.dir, name)) }

// seq returns the number that identifies a disk until the next boot: the kernel counts upwards and never reuses a number
// (since 5.15).
func (d *device) seq() uint64 {
	n, _ := strconv.ParseUint(d.text("diskseq"), 10, 64) // 0 on a kernel without it
	return n
}
