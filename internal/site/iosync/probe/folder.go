package probe

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
)

// Folder has what berthd publishes of a file system on its server: the nodes' addresses and groups. Nodes come and go during
// an audit, so each Look adds to the earlier ones.
type Folder struct {
	Dir    string
	nodes  map[netip.Addr]string
	groups map[uint64]string // the name of the group's folder, by its inode number
}

// Look reads the folder.
func (f *Folder) Look() error {
	if f.nodes == nil {
		f.nodes, f.groups = map[netip.Addr]string{}, map[uint64]string{}
	}
	addresses, err := os.ReadDir(filepath.Join(f.Dir, "addresses"))
	if errors.Is(err, fs.ErrNotExist) {
		return refuse.NotFoundf("there is no file system %s that this host serves: %s is not there", filepath.Base(f.Dir), f.Dir)
	}
	if err != nil {
		return fmt.Errorf("read the addresses of nodes: %w", err)
	}
	for _, a := range addresses {
		addr, err := netip.ParseAddr(a.Name())
		if err != nil {
			continue // a new entry under another name, before it is renamed
		}
		if name, err := os.Readlink(filepath.Join(f.Dir, "addresses", a.Name())); err == nil {
			f.nodes[addr.Unmap()] = name
		}
	}
	groups, err := os.ReadDir(filepath.Join(f.Dir, "groups"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the groups of nodes: %w", err)
	}
	for _, g := range groups {
		if info, err := g.Info(); err == nil && info.IsDir() { // an error: it has gone
			f.groups[inode(info)] = g.Name()
		}
	}
	return nil
}

// of returns the node that has an address.
func (f *Folder) of(a netip.Addr) (name string, ok bool) {
	if name, ok = f.nodes[a]; !ok && a.IsValid() {
		name, ok = f.nodes[mac.Sibling(a)]
	}
	return name, ok
}

// names returns the names of more groups, by their inode numbers: all those of the hierarchy that the nodes' groups are in, as
// paths in it.
func (f *Folder) names() map[uint64]string {
	names := map[uint64]string{}
	top, err := filepath.EvalSymlinks(filepath.Join(f.Dir, "groups"))
	if err != nil {
		return names
	}
	if !isGroup(top) {
		return names
	}
	for isGroup(filepath.Dir(top)) {
		top = filepath.Dir(top)
	}
	_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil //nolint:nilerr // a group that ends meanwhile
		}
		if info, err := d.Info(); err == nil {
			names[inode(info)] = cmp.Or(strings.TrimPrefix(path, top), "/")
		}
		return nil
	})
	return names
}

func inode(info fs.FileInfo) uint64 { return info.Sys().(*syscall.Stat_t).Ino }

func isGroup(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && (st.Type == unix.CGROUP_SUPER_MAGIC || st.Type == unix.CGROUP2_SUPER_MAGIC)
}
