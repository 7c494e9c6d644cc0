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
	"berth/internal/network/link"
	"berth/internal/node/plan"
	"berth/internal/spec/vnode"
	"berth/internal/sys/file"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
)

// Row is an interface of a node, as a managed network must know it beforehand.
type Row struct {
	Node      string      `json:"node"`
	Hostname  string      `json:"hostname"`
	Interface string      `json:"interface"`
	Mode      string      `json:"mode"`
	Parent    string      `json:"parent,omitempty"`
	MAC       mac.Address `json:"mac"` // "" of a lent adapter that is not there
	Address   []string    `json:"addresses,omitempty"`
	Exists    bool        `json:"exists"` // else it is what the node would get if it were made now
}

// Nodes returns the specs of the nodes that exist.
type Nodes func() ([]*vnode.Node, error)

// Table returns the interfaces of the nodes that exist, and of specs: of nodes that are not made yet, what they would
// claim, in this order.
func (h Host) Table(nodes Nodes, specs []*vnode.Node) ([]Row, error) {
	if os.Geteuid() != 0 {
		return nil, refuse.Cannotf("run berth as root", "only root sees the nodes")
	}
	if err := h.layout.Make(); err != nil {
		return nil, err
	}
	f := plan.Facts{Layout: h.layout}
	var err error
	if f.SiteID, err = address.SiteID(h.layout); err != nil {
		return nil, err
	}
	existing, err := nodes()
	if err != nil {
		return nil, err
	}
	exists := map[string]bool{}
	all := []*vnode.Node{}
	for _, n := range existing {
		exists[n.Name] = true
		if !slices.ContainsFunc(specs, func(s *vnode.Node) bool { return s.Name == n.Name }) {
			all = append(all, n)
		}
	}
	var rows []Row
	taken := map[mac.Address]string{}
	for _, n := range append(all, specs...) {
		macs, err := link.ChooseMACs(plan.LinkInput(n, f, nil), taken) // of a node that exists: those that it has
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", n.Name, err)
		}
		for _, nw := range n.Network {
			if nw.Mode == vnode.None {
				continue
			}
			own := macs[nw.Name]
			if own.IsZero() {
				own = h.lentMAC(n.Name, nw)
			}
			rows = append(rows, Row{
				Node: n.Name, Hostname: n.Host(), Interface: nw.Name, Mode: string(nw.Mode), Parent: nw.Parent,
				MAC: own, Address: link.Addresses(n.Name, nw, plan.NAT(h.layout, "")), Exists: exists[n.Name],
			})
		}
	}
	return rows, nil
}

// lentMAC is the MAC of an adapter that is lent to a node, or will be: it is in the node's network namespace while the
// node has it, else on the host.
func (h Host) lentMAC(node string, nw vnode.Network) mac.Address {
	if st, err := netif.Read(netif.NS{Pin: h.layout.Node(node).NetNS()}, nw.Name); err == nil {
		return st.MAC
	}
	return netif.MACOf(nw.Parent)
}

// Pool is a MAC pool and how much of it is claimed.
type Pool struct {
	Name   string   `json:"name"`
	Ranges []string `json:"ranges"`
	Size   uint64   `json:"size"`
	Used   uint64   `json:"used"` // by nodes, running or not

	Trouble string `json:"trouble,omitempty"` // why its file cannot be read, and what to do
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
