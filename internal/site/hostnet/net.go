package hostnet

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
	"berth/internal/network/address"
	"berth/internal/spec/vnode"
	"berth/internal/sys/file"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
)

// Nodes returns the specs of the nodes that exist.
type Nodes func() ([]*vnode.Node, error)

// Pool is a MAC pool and how much of it is claimed.
type Pool struct {
	Name   string   `json:"name"`
	Ranges []string `json:"ranges"`
	Size   uint64   `json:"size"`
	Used   uint64   `json:"used"` // by nodes, running or not

	Trouble string `json:"trouble,omitempty"` // why its file cannot be read, and the remedy
}

// Pools lists the MAC pools.
func (h Host) Pools() ([]Pool, error) {
	names, err := address.Pools(h.layout.Pools())
	if err != nil {
		return nil, err
	}
	var all []Pool
	for _, name := range names {
		p, err := address.ReadPool(h.layout.Pools(), name)
		if err != nil {
			all = append(all, Pool{Name: name, Ranges: []string{}, Trouble: err.Error()})
			continue
		}
		info, err := h.pool(name, p)
		if err != nil {
			return nil, err
		}
		all = append(all, info)
	}
	return all, nil
}

func (h Host) pool(name string, p address.Pool) (Pool, error) {
	info := Pool{Name: name, Size: p.Size(), Ranges: []string{}}
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

// AddPool adds addresses and ranges FIRST-LAST to a MAC pool, and makes it if need be.
func (h Host) AddPool(ctx context.Context, name string, entries []string) (Pool, error) {
	if err := vnode.CheckName(name); err != nil {
		return Pool{}, refuse.Invalidf("MAC pool %w", err)
	}
	var ranges []address.MACRange
	for _, e := range entries {
		r, err := address.ParseMACRange(e)
		if err != nil {
			return Pool{}, refuse.Invalidf("MAC pool %s: %w", name, err)
		}
		ranges = append(ranges, r)
	}
	if err := h.layout.Make(); err != nil {
		return Pool{}, err
	}
	lock, err := netif.Lock(ctx, h.layout.HostLock())
	if err != nil {
		return Pool{}, err
	}
	defer lock.Close()
	p, err := address.AddToPool(h.layout.Pools(), name, ranges)
	if err != nil {
		return Pool{}, err
	}
	return h.pool(name, p)
}

// RemovePool removes a MAC pool that none of the nodes that exist names.
func (h Host) RemovePool(name string, nodes Nodes) error {
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
