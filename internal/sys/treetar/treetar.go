// Package treetar turns a folder tree into a tar stream, and a tar stream into a tree that stays within one folder.
//
// Both sides may face an enemy: a process that changes the tree while it is read or written, and a stream that tries to
// leave the folder. So every step goes through an open folder and a name of one component, and never follows a link. What an
// entry is, is known before it is opened: a FIFO or a device is never opened at all.
//
// Streams are in PAX format, as GNU tar reads and writes it: times in nanoseconds, names of any bytes and length, extended
// attributes (SCHILY.xattr), access control lists with numbers (SCHILY.acl; read also as attributes), and sparse files (GNU.sparse 1.0).
package treetar

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
)

// MostImageID is the largest owner that a file of an image can have: an image is for every node, and these are the ids that every node has.
const MostImageID = 65535

// Tally counts the entries and bytes that were copied, and those that were left out.
type Tally struct {
	Entries    int    `json:"entries,omitempty"`
	Bytes      int64  `json:"bytes,omitempty"`      // of files, without holes
	SetID      int    `json:"set_id,omitempty"`     // files that lost their set-user-id or set-group-id bit
	Caps       int    `json:"caps,omitempty"`       // files that lost their capabilities
	Devices    int    `json:"devices,omitempty"`    // device nodes left out
	Sockets    int    `json:"sockets,omitempty"`    // sockets left out
	Kernel     int    `json:"kernel,omitempty"`     // file systems of the kernel's own (proc, sysfs …) of which only the folder was taken
	Loops      int    `json:"loops,omitempty"`      // folders left out that lie in themselves
	Changed    int    `json:"changed,omitempty"`    // files that changed while they were read
	Owners     int    `json:"owners,omitempty"`     // files of owners that no image can have
	Attrs      int    `json:"attrs,omitempty"`      // extended attributes and access control lists that the target does not take
	Unreadable int    `json:"unreadable,omitempty"` // files that could not be read
	First      string `json:"first,omitempty"`      // the first of them
}

// Notes describes what was left out: one part of a sentence for each kind.
func (t *Tally) Notes() []string {
	var all []string
	add := func(n int, one, many string) {
		if n == 1 {
			all = append(all, "1 "+one)
		} else if n > 1 {
			all = append(all, strconv.Itoa(n)+" "+many)
		}
	}
	add(t.SetID, "file without its set-user-id or set-group-id bit", "files without their set-user-id or set-group-id bits")
	add(t.Caps, "file without its capabilities", "files without their capabilities")
	add(t.Devices, "device left out", "devices left out")
	add(t.Sockets, "socket left out", "sockets left out")
	add(t.Kernel, "file system of the kernel left empty (proc, sysfs …)", "file systems of the kernel left empty (proc, sysfs …)")
	add(t.Loops, "folder left out that lies in itself", "folders left out that lie in themselves")
	add(t.Changed, "file changed while it was read", "files changed while they were read")
	add(t.Owners, "file of an owner above 65535: berth image import refuses it", "files of owners above 65535: berth image import refuses them")
	add(t.Attrs, "attribute that the target does not take", "attributes that the target does not take")
	return all
}

// Failed is an error if files could not be read.
func (t *Tally) Failed() error {
	if t.Unreadable == 0 {
		return nil
	}
	return fmt.Errorf("%d of the files could not be read, the first: %s", t.Unreadable, t.First)
}

// Add adds the counts of the other side of a copy. Each side counts what it leaves out itself; both count entries and bytes. No count
// gets smaller, whatever the other side says.
func (t *Tally) Add(o Tally) {
	t.Entries, t.Bytes = max(t.Entries, o.Entries), max(t.Bytes, o.Bytes)
	for _, n := range []struct {
		sum *int
		add int
	}{
		{&t.SetID, o.SetID},
		{&t.Caps, o.Caps},
		{&t.Devices, o.Devices},
		{&t.Sockets, o.Sockets},
		{&t.Kernel, o.Kernel},
		{&t.Loops, o.Loops},
		{&t.Changed, o.Changed},
		{&t.Owners, o.Owners},
		{&t.Attrs, o.Attrs},
		{&t.Unreadable, o.Unreadable},
	} {
		*n.sum = max(*n.sum, *n.sum+n.add)
	}
	if t.First == "" {
		t.First = o.First
	}
}

// Descriptors is /proc/self/fd, held open: through it a file that was looked at without opening it (O_PATH) is opened, and a
// file without a name gets one. It works also after a chroot.
type Descriptors struct{ dir *os.File }

// OpenDescriptors opens /proc/self/fd.
func OpenDescriptors() (Descriptors, error) {
	f, err := os.OpenFile("/proc/self/fd", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return Descriptors{}, refuse.Cannotf("mount /proc", "open the list of open files: %w", err)
	}
	return Descriptors{f}, nil
}

// Close closes the list.
func (d Descriptors) Close() { d.dir.Close() }

// Open opens the file behind a descriptor made with O_PATH.
func (d Descriptors) Open(fd, flags int) (*os.File, error) {
	n, err := unix.Openat(int(d.dir.Fd()), strconv.Itoa(fd), flags|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(n), "file"), nil
}

// Link gives the file behind a descriptor one more name.
func (d Descriptors) Link(fd, dir int, name string) error {
	return unix.Linkat(int(d.dir.Fd()), strconv.Itoa(fd), dir, name, unix.AT_SYMLINK_FOLLOW)
}

// chmod sets the mode of the file behind a descriptor.
func (d Descriptors) chmod(fd int, mode uint32) error {
	return unix.Fchmodat(int(d.dir.Fd()), strconv.Itoa(fd), mode, 0)
}

// Look opens name in a folder without following a link, and without opening the file behind it.
func Look(dir int, name string) (fd int, st unix.Statx_t, err error) {
	fd, err = unix.Openat2(dir, name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return -1, st, err
	}
	if err = stat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

func stat(fd int, st *unix.Statx_t) error {
	return unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_BASIC_STATS, st)
}

// mostLevels is how deep an entry may lie. Each level is an open folder, and an entry's name may have a megabyte.
const mostLevels = 4096

// clean returns the name of an entry relative to the target: "." or "a/b". It refuses names that climb or are absolute.
func clean(name string) (string, error) {
	if name == "" {
		return "", refuse.Invalidf("it has no name")
	}
	if strings.HasPrefix(name, "/") {
		return "", refuse.Invalidf("absolute names are refused")
	}
	var parts []string
	for part := range strings.SplitSeq(name, "/") {
		switch part {
		case "", ".":
			continue
		case "..":
			return "", refuse.Invalidf("names that climb (..) are refused")
		}
		if strings.ContainsRune(part, 0) || len(part) > unix.NAME_MAX {
			return "", refuse.Invalidf("a part of its name is longer than %d bytes, or has a zero byte", unix.NAME_MAX)
		}
		parts = append(parts, part)
		if len(parts) > mostLevels {
			return "", refuse.Invalidf("it lies more than %d folders deep", mostLevels)
		}
	}
	if len(parts) == 0 {
		return ".", nil
	}
	return strings.Join(parts, "/"), nil
}

// The kernel's own file systems. Their files have no size, some act when they are read, and none holds data of a node.
func kernelOwn(fd int) bool {
	var fs unix.Statfs_t
	if unix.Fstatfs(fd, &fs) != nil {
		return false
	}
	switch uint32(fs.Type) {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEVPTS_SUPER_MAGIC,
		unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC, unix.BPF_FS_MAGIC, unix.SELINUX_MAGIC, mqueueMagic:
		return true
	}
	return false
}

const mqueueMagic = 0x19800202 // ipc/mqueue.c
