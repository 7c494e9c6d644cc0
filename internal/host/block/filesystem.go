package block

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
)

// underAnonymous finds the device under a path whose file system has an anonymous device number. Of these file systems only
// btrfs may lie on one device.
func underAnonymous(sys, path string) (*device, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return nil, fmt.Errorf("look at the file system: %w", err)
	}
	if st.Type == unix.BTRFS_SUPER_MAGIC {
		id, err := btrfsID(path)
		if err != nil {
			return nil, err
		}
		return underBtrfs(sys, path, id)
	}
	if what, far := networked(st.Type); far {
		return nil, refuse.Cannotf("limit the node's network interface, or the file system's servers (filesystem, a later version)",
			"%s lies on %s: its disks are another machine's", path, what)
	}
	return nil, refuse.Cannotf("name the disk with device", "%s lies on %s, which has no one disk under it", path, fileSystem(st.Type))
}

// networked names a file system whose data comes over the network.
func networked(magic int64) (name string, ok bool) {
	switch magic {
	case unix.NFS_SUPER_MAGIC:
		return "NFS", true
	case unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC:
		return "a network share (SMB)", true
	case unix.CEPH_SUPER_MAGIC:
		return "CephFS", true
	case unix.AFS_SUPER_MAGIC, unix.AFS_FS_MAGIC:
		return "AFS", true
	case unix.V9FS_MAGIC:
		return "a 9p file system", true
	}
	return "", false
}

// fileSystem names the type of another file system without a device, for a refusal.
func fileSystem(magic int64) string {
	switch magic {
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "an overlay"
	case unix.TMPFS_MAGIC:
		return "tmpfs (memory)"
	case unix.FUSE_SUPER_MAGIC:
		return "a FUSE file system"
	case zfsMagic:
		return "ZFS"
	}
	return fmt.Sprintf("a file system without a device (type %#x)", magic)
}

// zfsMagic is ZFS_SUPER_MAGIC of OpenZFS, which is not in the kernel's headers.
const zfsMagic = 0x2fc12fc1

// typeOf returns the name of a file system that tells which group a buffered write belongs to; Other for all others, "" if it
// cannot be read.
func typeOf(path string) string {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return ""
	}
	switch st.Type {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "XFS"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.F2FS_SUPER_MAGIC:
		return "f2fs"
	}
	return Other
}

// Other stands for file systems that do not tell which group a buffered write belongs to.
const Other = "other"

// btrfsID asks a btrfs for its id, by the ioctl BTRFS_IOC_FS_INFO (linux/btrfs.h): sysfs does not know the device number of
// a subvolume.
func btrfsID(path string) (string, error) {
	const request = 2<<30 | 1024<<16 | 0x94<<8 | 31 // _IOR(0x94, 31, 1024 bytes)
	var info [1024]byte                             // max_id, num_devices: 8 bytes each; then the id
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("ask the btrfs for its id: %w", err)
	}
	defer f.Close()
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(unsafe.Pointer(&info))); errno != 0 {
		return "", fmt.Errorf("ask the btrfs of %s for its id: %w", path, errno)
	}
	id := info[16:32]
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:]), nil
}

// underBtrfs returns the device of a btrfs, and refuses a btrfs on several devices.
func underBtrfs(sys, path, id string) (*device, error) {
	all, err := readDevices(filepath.Join(sys, "fs/btrfs", id, "devices/*"))
	if err != nil {
		return nil, err
	}
	switch len(all) {
	case 0:
		return nil, errors.New("the kernel names no device of the btrfs " + id)
	case 1:
		return all[0], nil
	}
	names := make([]string, len(all))
	for i, d := range all {
		names[i] = "/dev/" + d.name
	}
	return nil, refuse.Cannotf("give each of its disks an io entry with device",
		"%s lies on a btrfs over several devices: %s", path, strings.Join(names, ", "))
}

func rdev(fi os.FileInfo) uint64 { return fi.Sys().(*syscall.Stat_t).Rdev }
