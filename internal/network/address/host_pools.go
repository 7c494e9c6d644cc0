package address

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/host/netif"
	"berth/internal/spec/vnode"
	"berth/internal/sys/file"
	"berth/internal/sys/layout"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
)

// HostPools are the pools of MACs of this host, as berth net pool shows and changes them.
type HostPools struct{ layout layout.Layout }

// PoolsOf returns the pools of one layout. It makes nothing.
func PoolsOf(l layout.Layout) HostPools { return HostPools{layout: l} }

// ListedPool is a MAC pool and how much of it is claimed.
type ListedPool struct {
	Name   string   `json:"name"`
	Ranges []string `json:"ranges"`
	Size   uint64   `json:"size"`
	Used   uint64   `json:"used"` // by nodes, running or not

	Trouble string `json:"trouble,omitempty"` // why its file cannot be read, and the remedy
}

// List lists the MAC pools.
func (h HostPools) List() ([]ListedPool, error) {
	names, err := Pools(h.layout.Pools())
	if err != nil {
		return nil, err
	}
	var all []ListedPool
	for _, name := range names {
		p, err := ReadPool(h.layout.Pools(), name)
		if err != nil {
			all = append(all, ListedPool{Name: name, Ranges: []string{}, Trouble: err.Error()})
			continue
		}
		info, err := h.listed(name, p)
		if err != nil {
			return nil, err
		}
		all = append(all, info)
	}
	return all, nil
}

func (h HostPools) listed(name string, p Pool) (ListedPool, error) {
	info := ListedPool{Name: name, Size: p.Size(), Ranges: []string{}}
	for _, r := range p {
		info.Ranges = append(info.Ranges, r.String())
	}
	claimed, err := os.ReadDir(h.layout.MACs())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return info, fmt.Errorf("list claimed MACs: %w", err)
	}
	for _, c := range claimed {
		if a, err := mac.Parse(c.Name()); err == nil && p.Has(a) {
			info.Used++
		}
	}
	return info, nil
}

// Add adds addresses and ranges FIRST-LAST to a MAC pool, and makes it if need be.
func (h HostPools) Add(ctx context.Context, name string, entries []string) (ListedPool, error) {
	if err := vnode.CheckName(name); err != nil {
		return ListedPool{}, refuse.Invalidf("MAC pool %w", err)
	}
	var ranges []MACRange
	for _, e := range entries {
		r, err := ParseMACRange(e)
		if err != nil {
			return ListedPool{}, refuse.Invalidf("MAC pool %s: %w", name, err)
		}
		ranges = append(ranges, r)
	}
	if err := h.layout.Make(); err != nil {
		return ListedPool{}, err
	}
	lock, err := netif.Lock(ctx, h.layout.HostLock())
	if err != nil {
		return ListedPool{}, err
	}
	defer lock.Close()
	p, err := AddToPool(h.layout.Pools(), name, ranges)
	if err != nil {
		return ListedPool{}, err
	}
	return h.listed(name, p)
}

// Remove removes a MAC pool that no node names. nodes returns the specs of the nodes that exist.
func (h HostPools) Remove(name string, nodes func() ([]*vnode.Node, error)) error {
	path := filepath.Join(h.layout.Pools(), name)
	if _, err := os.Stat(path); vnode.CheckName(name) != nil || errors.Is(err, fs.ErrNotExist) {
		return refuse.NotFoundf("no MAC pool %s; berth net pool ls lists the pools", name)
	}
	existing, err := nodes()
	if err != nil {
		return err
	}
	var users []string
	for _, n := range existing {
		if slices.ContainsFunc(n.Network, func(nw vnode.Network) bool { return poolOf(nw) == name }) {
			users = append(users, n.Name)
		}
	}
	if len(users) > 0 {
		return refuse.Busyf("MAC pool %s is used by %s", name, strings.Join(users, ", "))
	}
	if err := file.Remove(path); err != nil {
		return fmt.Errorf("remove MAC pool: %w", err)
	}
	return nil
}

// poolOf returns the pool that an interface takes its MAC from; "" for none.
func poolOf(nw vnode.Network) string {
	from, _ := nw.MACFrom() // a node's spec is valid
	return from.Pool
}
