// Package space adds to "no space left" errors which file system is full.
package space

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
)

// scarce is the free space in bytes below which a file system counts as full.
const scarce = 1 << 20

// Name adds to an ENOSPC or EDQUOT error which file system is full, and the remedy. It names the file system of
// the file in the error, else those of dirs that are full. A refusal of kind Cannot is returned as it is.
func Name(err error, dirs ...string) error {
	quota := errors.Is(err, unix.EDQUOT)
	if !errors.Is(err, unix.ENOSPC) && !quota || refuse.KindOf(err) == refuse.Cannot {
		return err
	}
	var names []string
	if path := pathOf(err); path != "" {
		var st unix.Statfs_t
		if unix.Statfs(existing(path), &st) == nil && st.Blocks == 0 { // ENOSPC of a kernel control file means something else
			return err
		}
		names = systems([]string{path})
	}
	if len(names) == 0 {
		names = systems(slices.DeleteFunc(slices.Clone(dirs), func(d string) bool { return !full(d) }))
	}
	if len(names) == 0 { // space was freed since, or the full file system is not among dirs
		return err
	}
	what := "is full"
	if quota {
		what = atQuota
	}
	remedy := "free some of it (nodes, images, other files), or keep Berth's files elsewhere (--root)"
	return fmt.Errorf("%w; %s %s: %s", err, strings.Join(names, " or "), what, remedy)
}

// pathOf returns the file that an error is about.
func pathOf(err error) string {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Path
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return e.New
	}
	return ""
}

// full reports whether a file system has next to nothing left, of bytes or of inodes.
func full(dir string) bool {
	var st unix.Statfs_t
	if unix.Statfs(existing(dir), &st) != nil || st.Blocks == 0 {
		return false
	}
	return st.Bavail*uint64(st.Bsize) < scarce || noInode(&st)
}

// existing returns path, or the nearest existing folder above it.
func existing(path string) string {
	for strings.Contains(path, "/") {
		if _, err := os.Lstat(path); err == nil {
			return path
		}
		path = path[:strings.LastIndexByte(path, '/')]
	}
	return "/"
}

// systems describes the file systems of paths, each once: "the file system at /var (ext4 /dev/sda2), 12 MiB free,".
func systems(paths []string) []string {
	var all []string
	for _, p := range paths {
		p = existing(p)
		left := ""
		var st unix.Statfs_t
		if unix.Statfs(p, &st) == nil {
			left = fmt.Sprintf(", %d MiB free,", st.Bavail*uint64(st.Bsize)>>20)
			if noInode(&st) {
				left = ", no inode free,"
			}
		}
		if name := FileSystem(p) + left; !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// FileSystem describes the file system of a folder or file: "the file system at /var (ext4 /dev/sda2)".
func FileSystem(path string) string {
	all, err := mountinfo.GetMounts(mountinfo.ParentsFilter(path))
	if err != nil || len(all) == 0 {
		return "the file system of " + path
	}
	at := all[0]
	for _, m := range all {
		if len(m.Mountpoint) >= len(at.Mountpoint) { // of several mounts on one path, the last hides the others
			at = m
		}
	}
	return fmt.Sprintf("the file system at %s (%s)", at.Mountpoint, strings.TrimSpace(at.FSType+" "+at.Source))
}
