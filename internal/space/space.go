// Package space names the file system where an error says that one is full.
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

	"berth/internal/refuse"
)

// scarce is how little is left of a file system that is taken for full.
const scarce = 1 << 20

// Name adds to an error that says "no space left" or "quota exceeded" which file system it is, and what to do: that of the file
// which the error names, else those of dirs that are full. A refusal says so by itself.
func Name(err error, dirs ...string) error {
	quota := errors.Is(err, unix.EDQUOT)
	if !errors.Is(err, unix.ENOSPC) && !quota || refuse.KindOf(err) == refuse.Cannot {
		return err
	}
	var names []string
	if path := pathOf(err); path != "" {
		var st unix.Statfs_t
		if unix.Statfs(existing(path), &st) == nil && st.Blocks == 0 { // a control file of the kernel's, which means something else
			return err
		}
		names = systems([]string{path})
	}
	if len(names) == 0 {
		names = systems(slices.DeleteFunc(slices.Clone(dirs), func(d string) bool { return !full(d) }))
	}
	if len(names) == 0 { // room came back meanwhile, or it was the caller's file
		return err
	}
	what := "full"
	if quota {
		what = "at its quota for this folder or user"
	}
	remedy := "free some of it (nodes, images, other files), or keep Berth's files elsewhere (--root)"
	return fmt.Errorf("%w; %s is %s: %s", err, strings.Join(names, " or "), what, remedy)
}

// pathOf is the file that an error is about.
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
	return st.Bavail*uint64(st.Bsize) < scarce || st.Files > 0 && st.Ffree == 0
}

// existing is the path, or the nearest folder above it that is there.
func existing(path string) string {
	for strings.Contains(path, "/") {
		if _, err := os.Lstat(path); err == nil {
			return path
		}
		path = path[:strings.LastIndexByte(path, '/')]
	}
	return "/"
}

// systems describes the file systems that paths are on, each once: "the file system at /var (ext4 /dev/sda2), 12 MiB free,".
func systems(paths []string) []string {
	var all []string
	for _, p := range paths {
		p = existing(p)
		left := ""
		var st unix.Statfs_t
		if unix.Statfs(p, &st) == nil {
			left = fmt.Sprintf(", %d MiB free,", st.Bavail*uint64(st.Bsize)>>20)
			if st.Files > 0 && st.Ffree == 0 {
				left = ", no inode free,"
			}
		}
		if name := FileSystem(p) + left; !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// FileSystem names the file system that a folder or file is on: "the file system at /var (ext4 /dev/sda2)".
func FileSystem(path string) string {
	all, err := mountinfo.GetMounts(mountinfo.ParentsFilter(path))
	if err != nil || len(all) == 0 {
		return "the file system of " + path
	}
	at := all[0]
	for _, m := range all {
		if len(m.Mountpoint) >= len(at.Mountpoint) { // of several on one place, the last hides the others
			at = m
		}
	}
	return fmt.Sprintf("the file system at %s (%s)", at.Mountpoint, strings.TrimSpace(at.FSType+" "+at.Source))
}
