// Package place keeps, on a file server, a group of block I/O for each node that uses a file system, and a table from which the
// programs of the server learn which node has an address.
//
// The groups lie in the hierarchy that has the I/O controller, and in no other: a process that works for a node keeps the CPU
// time and the memory limits of its server. The table is a folder of symbolic links, so that a program in any language finds a
// node with one call and without a daemon: see [Dir].
package place

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/host/block"
	"berth/internal/host/group"
	"berth/internal/sys/fault"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
)

// Rest is the group, on cgroup v1, of threads of a file server that serve no node. No node has such a name.
const Rest = "_server"

// Parent returns the group above those of all file systems, relative to the mount of the hierarchy.
func Parent(l layout.Layout) string { return l.CgroupParent() + ".sync" }

// Dir returns the folder that tells programs of a file system:
//
//	addresses/ADDRESS  a link whose text is the name of the node that has the address; a link-local one of IPv6 stands for each
//	                   address with the same second half, made of a MAC (ff:fe in its middle), that has no link of its own
//	generation         a counter of 8 bytes, little-endian, that grows after each change; programs map it and forget what they knew
//	groups             a link to the folder of the groups: groups/NODE/tasks on v1, groups/NODE/cgroup.procs on v2
//	version            v1 or v2
//	disk               number of the disk that limits act on
//
// Every user may read it, only root changes it.
func Dir(l layout.Layout, filesystem string) string { return filepath.Join(l.Run, "sync", filesystem) }

// FS is the groups and the table of one file system. One process at a time has it.
type FS struct {
	Name string
	Disk block.Disk // under the folder that is served

	dir string // of the table
	at  group.Hierarchy
	top string // group of the file system, relative to the hierarchy's mount
	own string // group above those of this host's own nodes, relative to it
	now map[netip.Addr]string
	new bool // the table was changed, and programs were not told
}

// Open makes the groups and the table of a file system, or takes over those that are there. path is the folder that is served.
func Open(ctx context.Context, l layout.Layout, h host.Cgroups, name, path string) (*FS, error) {
	at, err := hierarchy(h)
	if err != nil {
		return nil, err
	}
	disk, err := block.Under("/sys", path)
	if err != nil {
		return nil, fmt.Errorf("find the disk of file system %s: %w", name, err)
	}
	f := of(l, at, name)
	f.Disk = disk
	if e := group.EnableStep(h, Parent(l)); e != nil && at.V2 {
		e.Controllers = []string{"io"}
		if err := e.Do(ctx); err != nil {
			return nil, fmt.Errorf("hand the I/O controller on: %w", err)
		}
	}
	if _, err := f.make(f.top); err != nil {
		return nil, err
	}
	if !at.V2 {
		if _, err := f.make(f.top + "/" + Rest); err != nil {
			return nil, err
		}
	}
	return f, f.openTable()
}

// Reopen returns a file system that is not served any more, so that its leftovers can be closed.
func Reopen(l layout.Layout, h host.Cgroups, name string) (*FS, error) {
	at, err := hierarchy(h)
	if err != nil {
		return nil, err
	}
	f := of(l, at, name)
	_, err = f.make(f.top)
	return f, errors.Join(err, f.openTable())
}

func of(l layout.Layout, at group.Hierarchy, name string) *FS {
	return &FS{Name: name, dir: Dir(l, name), at: at, top: Parent(l) + "/" + name, own: l.CgroupParent()}
}

// hierarchy returns the tree that limits block I/O.
func hierarchy(h host.Cgroups) (group.Hierarchy, error) {
	switch {
	case h.Has("blkio") == "v1":
		return group.Hierarchy{Mount: h.V1["blkio"], Controllers: []string{"blkio"}}, nil
	case h.Has("io") == "v2":
		return group.Hierarchy{Mount: h.V2, Controllers: []string{"io"}, V2: true}, nil
	}
	return group.Hierarchy{}, refuse.Cannotf("mount a cgroup hierarchy with it, or boot a kernel that has it",
		"this host cannot limit block I/O: no cgroup hierarchy has the I/O controller")
}

// make makes a group, if it is not there.
func (f *FS) make(path string) (made bool, err error) {
	_, _, there, err := group.Inode(filepath.Join(f.at.Mount, path))
	if err != nil || there {
		return false, err
	}
	h := f.at
	if err := h.Make(path); err != nil {
		return false, fmt.Errorf("make the cgroup %s: %w", filepath.Join(f.at.Mount, path), err)
	}
	return true, nil
}

// openTable makes the table, or reads the one that is there.
func (f *FS) openTable() error {
	addresses := filepath.Join(f.dir, "addresses")
	if err := os.MkdirAll(addresses, 0o755); err != nil {
		return err
	}
	version := "v1\n"
	if f.at.V2 {
		version = "v2\n"
	}
	for name, text := range map[string]string{"version": version, "disk": f.Disk.Number() + "\n"} {
		if err := os.WriteFile(filepath.Join(f.dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := link(filepath.Join(f.at.Mount, f.top), filepath.Join(f.dir, "groups")); err != nil {
		return err
	}
	f.now = map[netip.Addr]string{}
	all, err := os.ReadDir(addresses)
	if err != nil {
		return err
	}
	for _, e := range all {
		a, err := netip.ParseAddr(e.Name())
		node, linkErr := os.Readlink(filepath.Join(addresses, e.Name()))
		if err != nil || linkErr != nil { // half made, or not ours
			if err := os.Remove(filepath.Join(addresses, e.Name())); err != nil {
				return err
			}
			continue
		}
		f.now[a] = node
	}
	return f.told()
}

// link makes a symbolic link, in place of one that is there.
func link(to, at string) error {
	if was, err := os.Readlink(at); err == nil && was == to {
		return nil
	}
	next := at + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(to, next); err != nil {
		return err
	}
	return os.Rename(next, at)
}

// told changes the generation: programs ask again.
func (f *FS) told() error {
	g, err := os.OpenFile(filepath.Join(f.dir, "generation"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer g.Close()
	var b [8]byte
	if _, err := g.ReadAt(b[:], 0); err != nil && !errors.Is(err, io.EOF) { // of a new file
		return err
	}
	binary.LittleEndian.PutUint64(b[:], binary.LittleEndian.Uint64(b[:])+1)
	_, err = g.WriteAt(b[:], 0)
	return err
}

// Group returns the path of a node's group, relative to the mount of its hierarchy.
func (f *FS) Group(node string) string { return f.top + "/" + node }

// Groups returns the folder of the groups.
func (f *FS) Groups() string { return filepath.Join(f.at.Mount, f.top) }

// V1 reports whether the groups are of cgroup v1.
func (f *FS) V1() bool { return !f.at.V2 }

// Nodes lists the nodes that have a group, sorted.
func (f *FS) Nodes() ([]string, error) {
	all, err := os.ReadDir(f.Groups())
	if err != nil {
		return nil, fmt.Errorf("list the groups of file system %s: %w", f.Name, err)
	}
	var names []string
	for _, e := range all {
		if e.IsDir() && e.Name() != Rest {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Make makes the group of a node, if it is not there.
func (f *FS) Make(node string) (made bool, err error) {
	made, err = f.make(f.Group(node))
	fault.Point("group of a node made on a file server")
	return made, err
}

// Tell makes the table say which node has which address. Groups of these nodes are there.
func (f *FS) Tell(all map[netip.Addr]string) error {
	at := func(a netip.Addr) string { return filepath.Join(f.dir, "addresses", a.String()) }
	for a := range f.now {
		if _, stays := all[a]; stays {
			continue
		}
		f.new = true // also after an error below: the next call tells
		if err := os.Remove(at(a)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		delete(f.now, a)
	}
	for a, node := range all {
		if f.now[a] == node {
			continue
		}
		f.new = true
		if err := link(node, at(a)); err != nil {
			return fmt.Errorf("tell the address %s of node %s: %w", a, node, err)
		}
		f.now[a] = node
	}
	fault.Point("addresses told on a file server")
	if !f.new {
		return nil
	}
	if err := f.told(); err != nil {
		return err
	}
	f.new = false
	return nil
}

// Close removes the groups and the table of the file system: it is not served here any more.
func (f *FS) Close() error {
	nodes, err := f.Nodes()
	if err != nil {
		return err
	}
	if err := f.Tell(nil); err != nil {
		return err
	}
	if _, err := f.Remove(append(nodes, Rest)...); err != nil {
		return err
	}
	if err := os.RemoveAll(f.dir); err != nil {
		return err
	}
	for _, dir := range []string{f.Groups(), filepath.Dir(f.Groups())} {
		if err := unix.Rmdir(dir); err != nil && !group.Gone(err) && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOTEMPTY) {
			return fmt.Errorf("remove the cgroup %s: %w", dir, err)
		}
	}
	return nil
}

// Known lists the file systems that have a table on this host, sorted.
func Known(l layout.Layout) ([]string, error) {
	all, err := os.ReadDir(filepath.Join(l.Run, "sync"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range all {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, err
}
