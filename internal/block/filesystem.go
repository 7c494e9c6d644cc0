package block

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// fileSystem names the type of the file system under path, for a refusal.
func fileSystem(path string) string {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return "a file system without a device"
	}
	switch fs.Type {
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "an overlay"
	case unix.TMPFS_MAGIC:
		return "tmpfs (memory)"
	case unix.NFS_SUPER_MAGIC:
		return "NFS"
	case unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC:
		return "a network share (SMB)"
	case unix.CEPH_SUPER_MAGIC:
		return "CephFS"
	case unix.FUSE_SUPER_MAGIC:
		return "a FUSE file system"
	case unix.V9FS_MAGIC:
		return "a 9p file system"
	case zfsMagic:
		return "ZFS"
	}
	return fmt.Sprintf("a file system without a device (type %#x)", fs.Type)
}

// zfsMagic is ZFS_SUPER_MAGIC of OpenZFS, which is not in the kernel's headers.
const zfsMagic = 0x2fc12fc1

func rdev(fi os.FileInfo) uint64 { return fi.Sys().(*syscall.Stat_t).Rdev }
