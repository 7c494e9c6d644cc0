package space

import (
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
)

// Need refuses work that needs more bytes than are free on dir's file system.
func Need(dir string, need int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("read the free space of %s: %w", dir, err)
	}
	free := freeBytes(&st)
	if need <= free {
		return nil
	}
	return refuse.Cannotf(moreSpace, "it needs %d MiB, and %s has %d MiB free", (need-1)>>20+1, FileSystem(dir), free>>20)
}

const moreSpace = "remove what is not needed (berth image prune, berth image rm, berth rm), or keep Berth's files elsewhere (--root)"

// freeBytes returns the free bytes, without those reserved for root. A file system that counts no blocks (ramfs) has no
// limit.
func freeBytes(st *unix.Statfs_t) int64 {
	if st.Blocks == 0 || st.Bsize <= 0 || st.Bavail > math.MaxInt64/uint64(st.Bsize) {
		return math.MaxInt64
	}
	return int64(st.Bavail) * st.Bsize
}

// Full turns ENOSPC and EDQUOT into a refusal that names dir's file system, and what it lacks now: the caller has not made room yet. A refusal of
// kind Cannot is returned as it is.
func Full(dir string, err error) error {
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) || refuse.KindOf(err) == refuse.Cannot {
		return err
	}
	what := "is full"
	var st unix.Statfs_t
	switch {
	case errors.Is(err, unix.EDQUOT):
		what = atQuota
	case unix.Statfs(existing(dir), &st) == nil && noInode(&st):
		what = "has no inode free, which each file needs"
	}
	return refuse.Cannotf(moreSpace, "%s %s: %w", FileSystem(dir), what, err)
}

// noInode reports whether a file system has no room for one more file. One that counts no files (btrfs) has.
func noInode(st *unix.Statfs_t) bool { return st.Files > 0 && st.Ffree == 0 }

// atQuota says why EDQUOT came.
const atQuota = "is at its quota for this folder or user"
