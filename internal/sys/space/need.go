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

// Full turns ENOSPC and EDQUOT into a refusal that names dir's file system.
func Full(dir string, err error) error {
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return err
	}
	return refuse.Cannotf(moreSpace, "%s is full: %w", FileSystem(dir), err)
}
