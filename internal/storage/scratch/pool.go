// Package scratch makes local volumes for nodes in the pools that an admin names: of an LVM volume group, of a folder, or of
// memory.
//
// A pool is a record, one file each, that is written once and never changed. Its id is in the tags of its logical volumes and in
// the name of its folder: nothing without that id is ever touched.
package scratch

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"berth/internal/spec/vnode"
	"berth/internal/sys/fault"
	"berth/internal/sys/file"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/lock"
	"berth/internal/sys/quota"
	"berth/internal/sys/refuse"
)

// Pool is where scratch volumes are made. One of VG, Dir and Memory is set.
type Pool struct {
	Name   string `json:"name"`
	ID     string `json:"id"`               // unique; marks the volumes of the pool
	VG     string `json:"vg,omitempty"`     // LVM volume group
	Thin   string `json:"thin,omitempty"`   // its thin pool; "": volumes get their place at once
	Dir    string `json:"dir,omitempty"`    // folder of the host, links resolved
	Quota  bool   `json:"quota,omitempty"`  // volumes are folders in Dir, limited by project quotas; else sized files
	Memory bool   `json:"memory,omitempty"` // file systems in memory

	Removing bool `json:"removing,omitempty"` // it was found empty, and is being removed
}

// String says in words where the pool is.
func (p Pool) String() string {
	switch {
	case p.Memory:
		return "memory"
	case p.Quota:
		return "folder " + p.Dir + " (project quotas)"
	case p.Dir != "":
		return "folder " + p.Dir + " (sized files)"
	case p.Thin != "":
		return "volume group " + p.VG + ", thin pool " + p.Thin
	case p.VG == "":
		return "not known"
	}
	return "volume group " + p.VG
}

// own is the folder that holds the volumes of a pool of kind Dir, and nothing else. Only root can enter it.
func (p Pool) own() string { return filepath.Join(p.Dir, "berth-"+p.ID) }

// Pools is the records of a host's pools, in the folder Dir (layout's Scratch).
type Pools struct{ Dir string }

const suffix = ".json"

func (s Pools) path(name string) string { return filepath.Join(s.Dir, name+suffix) }

// Get reads one pool. The error is refuse.NotFound if there is none.
func (s Pools) Get(name string) (Pool, error) {
	p, f, err := s.open(name)
	if err != nil {
		return Pool{}, err
	}
	return p, f.Close()
}

// open reads one pool, and returns its file for a lock.
func (s Pools) open(name string) (p Pool, f *os.File, err error) {
	if err := vnode.CheckName(name); err != nil {
		return p, nil, refuse.Invalidf("pool: %w", err)
	}
	f, err = os.Open(s.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil, refuse.NotFoundf("there is no scratch pool %s on this host; berth pool ls lists them, berth pool add makes one", name)
	}
	if err != nil {
		return p, nil, fmt.Errorf("read scratch pool %s: %w", name, err)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	data, err := io.ReadAll(f)
	if err != nil {
		return p, nil, fmt.Errorf("read scratch pool %s: %w", name, err)
	}
	record := jsonfile.File{Path: s.path(name), Is: "the scratch pool " + name, Remedy: "berth repair writes it anew if a node has a volume in the pool; if none has, remove the file and add the pool again"}
	strict := json.NewDecoder(strings.NewReader(string(data)))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&p); err != nil {
		return p, nil, record.Damaged(jsonfile.Wrong(data, err), ErrDamaged)
	}
	id, err := hex.DecodeString(p.ID)
	kinds := 0
	for _, there := range []bool{p.VG != "", p.Dir != "", p.Memory} {
		if there {
			kinds++
		}
	}
	if err != nil || len(id) != idBytes || p.Name != name || kinds != 1 || p.Thin != "" && p.VG == "" || p.Quota && p.Dir == "" ||
		p.Dir != "" && (!filepath.IsAbs(p.Dir) || filepath.Clean(p.Dir) != p.Dir) {
		return p, nil, record.Damaged("it is not a pool's record", ErrDamaged)
	}
	return p, f, nil
}

// ErrDamaged is in the error of a pool whose record cannot be read.
var ErrDamaged = errors.New("damaged")

// Restore writes the record of a pool anew, as the journal of a node with a volume in it has it, if it is damaged.
func (s Pools) Restore(ctx context.Context, p Pool) error {
	f, err := lock.OpenDir(ctx, s.Dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := s.Get(p.Name); !errors.Is(err, ErrDamaged) {
		return err
	}
	return file.WriteJSON(s.path(p.Name), p)
}

// hold opens a pool under its lock, which lasts until the file is closed, here and in the programs that got a copy of it.
func (s Pools) hold(ctx context.Context, name string) (Pool, *os.File, error) {
	p, f, err := s.open(name)
	if err != nil {
		return p, nil, err
	}
	err = lock.Wait(ctx, f)
	if err == nil {
		var info fs.FileInfo
		if info, err = f.Stat(); err == nil && info.Sys().(*syscall.Stat_t).Nlink == 0 {
			err = refuse.NotFoundf("scratch pool %s was removed meanwhile", name)
		}
	}
	if err != nil {
		f.Close()
		return p, nil, err
	}
	return p, f, nil
}

// holdIfThere is hold without a refusal if there is no such pool, or its record is damaged: then no command makes volumes in
// it.
func (s Pools) holdIfThere(ctx context.Context, name string) (*os.File, error) {
	_, f, err := s.open(name)
	if err != nil {
		return nil, nil //nolint:nilerr // see above
	}
	if err := lock.Wait(ctx, f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Names lists the pools.
func (s Pools) Names() ([]string, error) {
	entries, err := os.ReadDir(s.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the scratch pools: %w", err)
	}
	var all []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), suffix); ok {
			all = append(all, name)
		}
	}
	return all, nil
}

const idBytes = 4

// Add makes a pool; its ID and Quota are filled in, and links in Dir are resolved. Errors: refuse.Busy if there is a pool of
// that name, refuse.NotFound without the volume group, thin pool or folder, refuse.Cannot without LVM.
func (s Pools) Add(ctx context.Context, p Pool) (Pool, error) {
	if err := vnode.CheckName(p.Name); err != nil {
		return p, refuse.Invalidf("pool: %w", err)
	}
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return p, fmt.Errorf("make the folder of the scratch pools: %w", err)
	}
	f, err := lock.OpenDir(ctx, s.Dir)
	if err != nil {
		return p, err
	}
	defer f.Close()
	if _, err := os.Lstat(s.path(p.Name)); err == nil {
		return p, refuse.Busyf("there is a scratch pool %s already; berth pool ls lists it", p.Name)
	}
	id := make([]byte, idBytes)
	_, _ = rand.Read(id) // never fails: crypto/rand
	p.ID = hex.EncodeToString(id)
	switch {
	case p.VG != "":
		err = checkGroup(ctx, p)
	case p.Dir != "":
		p, err = checkFolder(p)
		err = errors.Join(err, jsonfile.CheckText("the path", p.Dir))
	}
	if err != nil {
		return p, err
	}
	if p.Dir != "" {
		if err := os.Mkdir(p.own(), 0o700); err != nil {
			return p, fmt.Errorf("make the pool's folder: %w", err)
		}
		fault.Point("pool folder made")
		if err := file.SyncDir(p.Dir); err != nil {
			return p, errors.Join(err, os.Remove(p.own()))
		}
	}
	if err := file.WriteJSON(s.path(p.Name), p); err != nil {
		if p.Dir != "" {
			err = errors.Join(err, os.Remove(p.own()))
		}
		return p, err
	}
	return p, nil
}

// checkFolder refuses a folder that others than root can change, resolves its links, and looks how it can limit volumes.
func checkFolder(p Pool) (Pool, error) {
	path, err := file.RootOnly(p.Dir)
	if _, open := errors.AsType[*file.NotRootOnly](err); open {
		return p, refuse.Invalidf("%s cannot be a pool: %w", p.Dir, err)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return p, refuse.NotFoundf("there is no folder %s", p.Dir)
	}
	if err != nil {
		return p, fmt.Errorf("find the folder of the pool: %w", err)
	}
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return p, refuse.Invalidf("%s is not a folder", p.Dir)
	}
	p.Dir = path
	p.Quota, _ = quota.Support(path)
	return p, nil
}

// Remove removes a pool that has no volumes and that none of the given nodes names. Nothing but the pool's own folder and
// record is removed.
func (s Pools) Remove(ctx context.Context, name string, nodes []*vnode.Node) error {
	p, f, err := s.hold(ctx, name)
	if err != nil {
		return err
	}
	defer f.Close()
	var users []string
	for _, n := range nodes {
		if slices.ContainsFunc(n.Scratch, func(v vnode.Scratch) bool { return poolOf(v) == name }) {
			users = append(users, n.Name)
		}
	}
	if len(users) > 0 {
		return refuse.Busyf("scratch pool %s is used by node %s", name, strings.Join(users, ", "))
	}
	if err := p.present(ctx); err != nil && !p.Removing { // volumes on a disk that is away would have no owner when it is back
		return refuse.Cannotf("attach its disks; if they are gone for good, remove "+s.path(name), "scratch pool %s cannot be removed: it may hold volumes: %w", name, err)
	}
	all, err := p.volumes(ctx)
	if err != nil {
		return err
	}
	if len(all) > 0 {
		return refuse.Busyf("scratch pool %s still has %s of node %s; berth repair removes what no node has", name, all[0].Name, all[0].Node)
	}
	if p.Dir != "" {
		p.Removing = true // else a killed command would leave a pool whose folder seems to be away
		if err := file.WriteJSON(s.path(name), p); err != nil {
			return err
		}
		fault.Point("pool noted as being removed")
		if err := os.Remove(p.own()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the pool's folder: %w", err)
		}
		fault.Point("pool folder removed")
	}
	if err := file.Remove(s.path(name)); err != nil {
		return fmt.Errorf("remove scratch pool %s: %w", name, err)
	}
	return nil
}

// poolOf returns the pool of a volume.
func poolOf(s vnode.Scratch) string {
	if s.Pool == "" {
		return vnode.DefaultPool
	}
	return s.Pool
}
