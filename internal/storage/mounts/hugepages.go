package mounts

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"berth/internal/spec/vnode"
)

// HugePages is a hugetlbfs, a file system whose files are huge pages, owned by the node's root.
type HugePages struct {
	Page vnode.Bytes `json:"page"` // size of its pages
	Size vnode.Bytes `json:"size"` // most bytes in it
}

// mount mounts the hugetlbfs (Documentation/admin-guide/mm/hugetlbpage.rst). All users of the node may use it, as on a
// host.
func (h *HugePages) mount(at string, ids IDs) error {
	if err := os.Mkdir(at, 0o700); err != nil {
		return fmt.Errorf("make a mount point: %w", err)
	}
	options := fmt.Sprintf("pagesize=%d,size=%d,uid=%d,gid=%d,mode=1777", int64(h.Page), int64(h.Size), ids.Base, ids.Base)
	if err := unix.Mount("berth-huge", at, "hugetlbfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount huge pages of %s: %w", h.Page, err)
	}
	return nil
}
