package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Space is the free and total space of a file system. Total is 0 if it was not tried.
type Space struct {
	Free, Total        uint64 // bytes; Free is that of users other than root
	FreeInodes, Inodes uint64 // 0 if the file system does not count them
	Err                error
}

func trySpace(dir string) Space {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return Space{Err: fmt.Errorf("ask for the free space of %s: %w", dir, err)}
	}
	unit := uint64(s.Bsize)
	return Space{Free: s.Bavail * unit, Total: s.Blocks * unit, FreeInodes: s.Ffree, Inodes: s.Files}
}

// Folder is a folder of Berth, with its owner and permissions.
type Folder struct {
	Path   string
	Mode   uint32 // permission bits
	Closed uint32 // bits that must not be set
	UID    uint32
	Err    error
}

// tryFolders reads the permissions of Berth's folders. Other users may not enter the persistent one or write to the live
// one.
func tryFolders(lib, run string) []Folder {
	all := []Folder{{Path: lib, Closed: 0o077}, {Path: run, Closed: 0o022}}
	for i := range all {
		f := &all[i]
		info, err := os.Stat(f.Path)
		if err != nil {
			f.Err = err
			continue
		}
		f.Mode = uint32(info.Mode().Perm())
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			f.UID = st.Uid
		}
	}
	return all
}

// IdmapTry is the result of trying an idmapped mount on one kind of file system.
type IdmapTry struct {
	Type, At string
	Err      error
}

// noData are the kinds of file system that hold no user data.
var noData = []string{
	"autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs", "fusectl",
	"hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "ramfs", "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs",
}

// answers is how long a file system may take to answer. One whose server is gone would block for ever.
const answers = 2 * time.Second

// tryIdmaps tries one mount of each kind of file system, and returns the results sorted by kind.
func tryIdmaps(ctx context.Context, idmap func(dir string) error) []IdmapTry {
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil // other checks report a missing /proc
	}
	var all []IdmapTry
	for _, m := range mounts {
		seen := slices.ContainsFunc(all, func(t IdmapTry) bool { return t.Type == m.FSType })
		if seen || slices.Contains(noData, m.FSType) {
			continue
		}
		answer := make(chan error, 1)
		go func() { answer <- idmap(m.Mountpoint) }()
		t := IdmapTry{Type: m.FSType, At: m.Mountpoint}
		select {
		case t.Err = <-answer:
		case <-ctx.Done():
			return all
		case <-time.After(answers):
			t.Err = errors.New("no answer")
		}
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b IdmapTry) int { return strings.Compare(a.Type, b.Type) })
	return all
}
