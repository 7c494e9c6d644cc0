package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/link"
	"berth/internal/plan"
	"berth/internal/refuse"
	"berth/internal/vnode"
)

// NetRow is an interface of a node, as a managed network must know it beforehand.
type NetRow struct {
	Node      string   `json:"node"`
	Hostname  string   `json:"hostname"`
	Interface string   `json:"interface"`
	Mode      string   `json:"mode"`
	Parent    string   `json:"parent,omitempty"`
	MAC       string   `json:"mac"` // "" of a lent adapter that is not there
	Address   []string `json:"addresses,omitempty"`
	Exists    bool     `json:"exists"` // else it is what the node would get if it were made now
}

// NetTable returns the interfaces of the nodes that there are, and of specs: of nodes that are not made yet, what they
// would claim, in this order.
func (b *Berth) NetTable(_ context.Context, specs []*vnode.Node) ([]NetRow, error) {
	if os.Geteuid() != 0 {
		return nil, refuse.Cannotf("run berth as root", "only root sees the nodes")
	}
	if err := b.makeDirs(); err != nil {
		return nil, err
	}
	f := plan.Facts{Layout: b.Layout}
	var err error
	if f.SiteID, err = b.siteID(); err != nil {
		return nil, err
	}
	names, err := b.names()
	if err != nil {
		return nil, err
	}
	exists := map[string]bool{}
	all := []*vnode.Node{}
	for _, name := range names {
		s, err := b.stored(name)
		if err != nil {
			continue // being made or removed
		}
		exists[name] = true
		if !slices.ContainsFunc(specs, func(n *vnode.Node) bool { return n.Name == name }) {
			all = append(all, s.Now)
		}
	}
	var rows []NetRow
	taken := map[string]string{}
	for _, n := range append(all, specs...) {
		macs, err := plan.MACs(n, f, taken) // of a node that exists: those that it has
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", n.Name, err)
		}
		rows = append(rows, b.netRows(n, macs, exists[n.Name])...)
	}
	return rows, nil
}

func (b *Berth) netRows(n *vnode.Node, macs map[string]string, exists bool) []NetRow {
	var rows []NetRow
	running := false
	if exists {
		_, err := b.liveInit(n.Name)
		running = err == nil
	}
	for i, d := range b.linkDetails(n, running) {
		nw := n.Network[i] // mode none, which linkDetails leaves out, stands alone
		mac := cmp.Or(macs[nw.Name], d.MAC)
		if mac == "" {
			mac = link.MACOf(nw.Parent)
		}
		rows = append(rows, NetRow{
			Node: n.Name, Hostname: n.Host(), Interface: nw.Name, Mode: string(nw.Mode), Parent: nw.Parent,
			MAC: mac, Address: nw.Address, Exists: exists,
		})
	}
	return rows
}

// PoolInfo is a MAC pool and how much of it is claimed.
type PoolInfo struct {
	Name   string   `json:"name"`
	Ranges []string `json:"ranges"`
	Size   uint64   `json:"size"`
	Used   uint64   `json:"used"` // by nodes, running or not
}

// Pools lists the MAC pools.
func (b *Berth) Pools() ([]PoolInfo, error) {
	names, err := link.Pools(b.Layout.Pools())
	if err != nil {
		return nil, err
	}
	var all []PoolInfo
	for _, name := range names {
		p, err := link.ReadPool(b.Layout.Pools(), name)
		if err != nil {
			return nil, err
		}
		info, err := b.poolInfo(name, p)
		if err != nil {
			return nil, err
		}
		all = append(all, info)
	}
	return all, nil
}

func (b *Berth) poolInfo(name string, p link.Pool) (PoolInfo, error) {
	info := PoolInfo{Name: name, Size: p.Size(), Ranges: []string{}}
	for _, r := range p {
		info.Ranges = append(info.Ranges, r.String())
	}
	claimed, err := os.ReadDir(b.Layout.MACs())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return info, fmt.Errorf("list claimed MACs: %w", err)
	}
	for _, c := range claimed {
		if p.Has(c.Name()) {
			info.Used++
		}
	}
	return info, nil
}

// AddPool adds addresses and ranges FIRST-LAST to a MAC pool, and makes it if need be.
func (b *Berth) AddPool(ctx context.Context, name string, entries []string) (PoolInfo, error) {
	if err := vnode.CheckName(name); err != nil {
		return PoolInfo{}, refuse.Invalidf("MAC pool %w", err)
	}
	var ranges []link.MACRange
	for _, e := range entries {
		r, err := link.ParseMACRange(e)
		if err != nil {
			return PoolInfo{}, refuse.Invalidf("MAC pool %s: %w", name, err)
		}
		ranges = append(ranges, r)
	}
	if err := b.makeDirs(); err != nil {
		return PoolInfo{}, err
	}
	lock, err := link.Lock(ctx, b.Layout.HostLock())
	if err != nil {
		return PoolInfo{}, err
	}
	defer lock.Close()
	p, err := link.AddToPool(b.Layout.Pools(), name, ranges)
	if err != nil {
		return PoolInfo{}, err
	}
	return b.poolInfo(name, p)
}

// RemovePool removes a MAC pool that no node's spec names.
func (b *Berth) RemovePool(_ context.Context, name string) error {
	path := filepath.Join(b.Layout.Pools(), name)
	if _, err := os.Stat(path); vnode.CheckName(name) != nil || errors.Is(err, fs.ErrNotExist) {
		return refuse.NotFoundf("no MAC pool %s; berth net pool ls lists the pools", name)
	}
	names, err := b.names()
	if err != nil {
		return err
	}
	var users []string
	for _, n := range names {
		s, err := b.stored(n)
		if err == nil && slices.ContainsFunc(s.Now.Network, func(nw vnode.Network) bool { return nw.MAC == "pool "+name }) {
			users = append(users, n)
		}
	}
	if len(users) > 0 {
		return refuse.Busyf("MAC pool %s is used by %s", name, strings.Join(users, ", "))
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove MAC pool: %w", err)
	}
	return nil
}
