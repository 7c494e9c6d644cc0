// Package quota limits folders by the project quotas of ext4 and XFS.
package quota

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Project quotas limit a folder: files made in it inherit its project id, and the file system counts and limits the
// blocks of each id. ext4 and XFS take the same calls (linux/dqblk_xfs.h), ext4 through the kernel's translation
// (fs/quota/quota.c). A node cannot leave its project: only the host's user namespace may change the id
// (fileattr_set_prepare in fs/file_attr.c), and overlay writes without the right to exceed quotas although root mounted
// it (ovl_fill_super lowers CAP_SYS_RESOURCE).
const (
	prjQuota = 2 // linux/quota.h

	qXGetQuota  = 'X'<<8 + 3
	qXSetLimits = 'X'<<8 + 4
	qXGetState  = 'X'<<8 + 8

	stateAccounted = 1 << 4 // FS_QUOTA_PDQ_ACCT
	stateEnforced  = 1 << 5 // FS_QUOTA_PDQ_ENFD

	fieldInodesHard = 1 << 1 // FS_DQ_IHARD
	fieldBlocksHard = 1 << 3 // FS_DQ_BHARD

	fsGetXattr  = 0x801c581f // FS_IOC_FSGETXATTR
	fsSetXattr  = 0x401c5820 // FS_IOC_FSSETXATTR
	projInherit = 0x200      // FS_XFLAG_PROJINHERIT
)

// quotaBlock is the unit of limits in these calls, in bytes (a "basic block").
const quotaBlock = 512

// diskQuota is struct fs_disk_quota.
type diskQuota struct {
	version, flags         int8
	fieldmask              uint16
	id                     uint32
	blkHard, blkSoft       uint64 // in quotaBlocks
	inoHard, inoSoft       uint64
	blocks, inodes         uint64 // in use
	_                      [16]byte
	rtbHard, rtbSoft, rtbs uint64
	_                      [16]byte
}

// quotaState is struct fs_quota_statv.
type quotaState struct {
	version int8
	_       uint8
	flags   uint16
	_       uint32
	_       [3][3]uint64 // the quota files
	_       [3]uint64    // limits of timers and warnings
	_       [7]uint64
}

// fsXattr is struct fsxattr.
type fsXattr struct {
	xflags, extsize, nextents, project, cowextsize uint32
	_                                              [8]byte
}

// quotactl calls quotactl_fd(2), Linux 5.14.
func quotactl(dir *os.File, cmd uintptr, id uint32, arg unsafe.Pointer) error {
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, dir.Fd(), cmd<<8|prjQuota, uintptr(id), uintptr(arg), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// Support reports whether the file system of the folder path enforces project quotas now. If not, why names what is missing.
func Support(path string) (ok bool, why string) {
	dir, err := os.Open(path)
	if err != nil {
		return false, err.Error()
	}
	defer dir.Close()
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &fs); err != nil {
		return false, err.Error()
	}
	if fs.Type != unix.EXT4_SUPER_MAGIC && fs.Type != unix.XFS_SUPER_MAGIC {
		return false, "its file system is neither ext4 nor XFS"
	}
	state := quotaState{version: 1}
	err = quotactl(dir, qXGetState, 0, unsafe.Pointer(&state))
	switch {
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL):
		// ENOSYS: quotas are off, or the kernel has none. EINVAL: there are quotas, but not for projects.
		return false, "project quotas are off on its file system"
	case err != nil:
		return false, fmt.Sprintf("its file system's quota state cannot be read: %v", err)
	case state.flags&stateAccounted == 0 || state.flags&stateEnforced == 0:
		return false, "project quotas are not enforced on its file system"
	}
	return true, ""
}

// SetProject sets a folder's project id, which everything made in it later inherits.
func SetProject(dir *os.File, project uint32) error {
	var attr fsXattr
	if err := ioctl(dir, fsGetXattr, &attr); err != nil {
		return fmt.Errorf("read project of %s: %w", dir.Name(), err)
	}
	attr.project, attr.xflags = project, attr.xflags|projInherit
	if err := ioctl(dir, fsSetXattr, &attr); err != nil {
		return fmt.Errorf("set project of %s: %w", dir.Name(), err)
	}
	return nil
}

// Project returns a folder's project id, and whether new files in it inherit the id.
func Project(dir *os.File) (id uint32, inherits bool, err error) {
	var attr fsXattr
	if err := ioctl(dir, fsGetXattr, &attr); err != nil {
		return 0, false, fmt.Errorf("read project of %s: %w", dir.Name(), err)
	}
	return attr.project, attr.xflags&projInherit != 0, nil
}

func ioctl(f *os.File, req uintptr, arg *fsXattr) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), req, uintptr(unsafe.Pointer(arg)))
	if errno != 0 {
		return errno
	}
	return nil
}

// Files is how many files and folders a limit of bytes allows: one for each 16 KiB, as mkfs.ext4 gives a file system of that size,
// and at least 4096. Without such a limit empty files would use up the inodes of the whole file system.
func Files(bytes int64) int64 {
	if bytes == 0 {
		return 0
	}
	return max(bytes/(16<<10), 4096)
}

// Limit limits a project on dir's file system to a number of bytes and to Files of them; 0 means no limits. The kernel rounds
// the bytes up to its blocks.
func Limit(dir *os.File, id uint32, bytes int64) error {
	q := diskQuota{version: 1, flags: 2, fieldmask: fieldBlocksHard | fieldInodesHard, id: id}
	q.blkHard, q.inoHard = uint64((bytes+quotaBlock-1)/quotaBlock), uint64(Files(bytes))
	if err := quotactl(dir, qXSetLimits, id, unsafe.Pointer(&q)); err != nil {
		return fmt.Errorf("limit project %d to %d bytes: %w", id, bytes, err)
	}
	return nil
}

// Held checks that a project has the limits that Limit sets. A file system may round the bytes up by one block, at most 64 KiB.
func Held(dir *os.File, id uint32, bytes int64) error {
	q, err := read(dir, id)
	if err != nil {
		return err
	}
	return q.holds(id, bytes)
}

func (q *diskQuota) holds(id uint32, bytes int64) error {
	if limit := int64(q.blkHard) * quotaBlock; limit < bytes || limit >= bytes+64<<10 {
		return fmt.Errorf("project %d is limited to %d bytes, not %d", id, limit, bytes)
	}
	if want := Files(bytes); int64(q.inoHard) != want {
		return fmt.Errorf("project %d is limited to %d files, not %d", id, q.inoHard, want)
	}
	return nil
}

// Use returns a project's limit and use in bytes. Both are 0 if the file system does not know the project.
func Use(dir *os.File, id uint32) (limit, used int64, err error) {
	q, err := read(dir, id)
	return int64(q.blkHard) * quotaBlock, int64(q.blocks) * quotaBlock, err
}

func read(dir *os.File, id uint32) (q diskQuota, err error) {
	err = quotactl(dir, qXGetQuota, id, unsafe.Pointer(&q))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return diskQuota{}, nil
	}
	if err != nil {
		return diskQuota{}, fmt.Errorf("read quota of project %d: %w", id, err)
	}
	return q, nil
}
