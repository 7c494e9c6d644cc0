// Package address gives nodes' interfaces their MACs and IP addresses: it claims them for a node, asks a network whether
// one is in use, leases one by DHCP, and sets addresses and routes.
package address

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"berth/internal/host/membership"
	"berth/internal/host/netif"
	"berth/internal/network/sriov"
	"berth/internal/sys/file"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
)

// attempts is how many derived MACs of an interface are tried before Berth gives up: with 2^46 of them a second try is
// hardly ever needed.
const attempts = 16

// DeriveMAC returns the MAC of an interface of a node, the same at every start and on every host of the site: the first
// six bytes of SHA-256("berth mac 1\n" SITE "\n" NODE "\n" IFNAME "\n" ATTEMPT "\n"), ATTEMPT in decimal, with the
// group bit (0x01 of the first byte) cleared and the local bit (0x02) set. attempt counts from 0 and is above 0 only if
// the earlier MACs were taken.
func DeriveMAC(siteID, node, ifname string, attempt int) mac.Address {
	return mac.Derive(fmt.Sprintf("berth mac 1\n%s\n%s\n%s\n%d\n", siteID, node, ifname, attempt))
}

// ClaimMAC reserves a MAC for an interface of a node until the node is removed. The index is a folder with one symbolic
// link per MAC, whose target names its owner as NODE/IFNAME. Making the link is atomic, including its target, and fails
// if the MAC is taken.
type ClaimMAC struct {
	Dir    string      `json:"dir"`       // the index
	Lock   string      `json:"host_lock"` // file of the host-wide lock
	SiteID string      `json:"site_id"`
	Node   string      `json:"node"`
	If     string      `json:"ifname"`
	Auto   bool        `json:"auto"`           // derived; otherwise as given
	Lent   string      `json:"lent,omitempty"` // host link that is lent as this interface: its MAC is no conflict
	MAC    mac.Address `json:"mac"`            // the first choice; after Do, the claimed one

	Pool    string `json:"pool,omitempty"` // name of a pool in PoolDir; the lowest free MAC of it is claimed
	PoolDir string `json:"pool_dir,omitempty"`

	Site *membership.Agent `json:"site,omitempty"` // claims a chosen MAC in the site too; a given one is claimed by membership.Claim

	Leases sriov.Leases `json:"leases,omitempty"` // the MACs that virtual functions will have on the host count as taken
}

// Kind implements step.Step.
func (c *ClaimMAC) Kind() string { return "link.claim-mac" }

// Key identifies the claim; fields that Do filled in are no part of it.
func (c *ClaimMAC) Key() string {
	key := c.If
	switch {
	case c.Pool != "":
		key += " pool " + c.Pool
	case !c.Auto:
		key += " " + c.MAC.String()
	}
	return strings.TrimSpace(key + " " + c.Lent)
}

func (c *ClaimMAC) String() string {
	how := "as given"
	switch {
	case c.Auto:
		how = "derived from site id and name"
	case c.Pool != "":
		how = "the lowest free of pool " + c.Pool
	}
	return fmt.Sprintf("%s %s, %s", c.If, c.MAC, how)
}

// Do claims a MAC that no node and no link of this host has: the interface's earlier claim, else the given MAC, the
// first free derived one, or the lowest free one of its pool. If none is free the error is refuse.Busy.
func (c *ClaimMAC) Do(ctx context.Context) error {
	lock, err := netif.Lock(ctx, c.Lock)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return fmt.Errorf("claim MAC: %w", err)
	}
	chosen, err := c.choose(ctx)
	if err != nil {
		return err
	}
	if err := os.Symlink(c.Owner(), c.path(chosen)); err != nil && !errors.Is(err, fs.ErrExist) { // ErrExist: it is ours
		return fmt.Errorf("claim MAC: %w", err)
	}
	c.MAC = chosen
	return nil
}

// choose chooses a MAC, and claims it in the site, if the host has one: MACs that another node of the site has are passed over.
func (c *ClaimMAC) choose(ctx context.Context) (mac.Address, error) {
	except := map[mac.Address]string{}
	for {
		chosen, err := c.Choose(except)
		if err != nil || !c.inSite() {
			return chosen, err
		}
		err = c.Site.Claim(ctx, c.Node, c.thing(chosen))
		taken, ok := errors.AsType[*membership.Taken](err)
		if !ok {
			return chosen, err
		}
		if _, ours := c.Claimed(); ours {
			return chosen, err
		}
		except[chosen] = fmt.Sprintf("node %s of host %s", taken.By.Node, taken.By.Host)
	}
}

// inSite reports whether the MAC is claimed in the site by this step.
func (c *ClaimMAC) inSite() bool { return c.Site != nil && (c.Auto || c.Pool != "") }

func (c *ClaimMAC) thing(a mac.Address) membership.Thing {
	return membership.Thing{Kind: membership.MAC, Value: a.String()}
}

// Choose returns the MAC that the interface has claimed, or else its best free one: not in the index, not of a link of
// the host, not reserved for a virtual function, and not in except.
func (c *ClaimMAC) Choose(except map[mac.Address]string) (mac.Address, error) {
	choices, err := c.choices()
	if err != nil {
		return mac.Address{}, err
	}
	if claimed, ok := c.Claimed(); ok {
		return claimed, nil
	}
	links, err := netif.HostLinks()
	if err != nil {
		return mac.Address{}, err
	}
	hosts, who := c.InUse(links), ""
	for choice := range choices {
		if who = cmp.Or(claimant(c.path(choice)), hosts[choice], except[choice]); who == "" {
			return choice, nil
		}
	}
	switch {
	case c.Pool != "":
		return mac.Address{}, refuse.Busyf("no MAC for %s of node %s: all of pool %s are taken, the last one by %s", c.If, c.Node, c.Pool, who)
	case c.Auto:
		return mac.Address{}, refuse.Busyf("no MAC for %s of node %s: all %d derived ones are taken", c.If, c.Node, attempts)
	}
	return mac.Address{}, refuse.Busyf("MAC %s of %s is taken by %s", c.MAC, c.If, who)
}

// InUse maps the MACs of the host's links, and those reserved for virtual functions, to their owners. The caller lists
// the links first and InUse reads the reservations later, so a function on its way home is in at least one of the two:
// it comes home for good only under the host-wide lock.
func (c *ClaimMAC) InUse(links []netlink.Link) map[mac.Address]string {
	macs := c.Leases.Reserved()
	maps.Copy(macs, netif.MACsOf(links, c.Lent))
	return macs
}

// claimant returns the owner of a claim in an index; "" if there is no such claim.
func claimant(path string) string {
	who, err := os.Readlink(path)
	if err != nil {
		return ""
	}
	return "node " + who
}

// Verify reads the claim back.
func (c *ClaimMAC) Verify(context.Context) error {
	who, err := os.Readlink(c.path(c.MAC))
	if err != nil {
		return fmt.Errorf("read claim of MAC %s: %w", c.MAC, err)
	}
	if who != c.Owner() {
		return fmt.Errorf("MAC %s belongs to %s, not to %s", c.MAC, who, c.Owner())
	}
	return nil
}

// OnDisk implements step.Lasting.
func (c *ClaimMAC) OnDisk() error { return file.SyncDir(c.Dir) }

// Undo releases the MAC, also if a killed Do did not record which one it took.
func (c *ClaimMAC) Undo(ctx context.Context) error {
	all := append(c.owned(), c.MAC)
	if c.inSite() {
		if err := c.Site.Release(ctx, c.Node, c.maybe(all)...); err != nil {
			return err
		}
	}
	for _, owned := range all {
		if err := GiveBack(c.path(owned), c.Owner()); err != nil {
			return fmt.Errorf("give MAC %s back: %w", owned, err)
		}
	}
	return nil
}

// maybe returns the things that this step may have claimed in the site.
func (c *ClaimMAC) maybe(macs []mac.Address) []membership.Thing {
	var all []membership.Thing
	for _, m := range macs {
		if t := c.thing(m); !slices.Contains(all, t) {
			all = append(all, t)
		}
	}
	return all
}

// Claimed finds the claim that this interface has already, from this step or an earlier run.
func (c *ClaimMAC) Claimed() (mac.Address, bool) {
	var pool Pool
	if c.Pool != "" {
		var err error
		if pool, err = ReadPool(c.PoolDir, c.Pool); err != nil {
			return mac.Address{}, false
		}
	}
	for _, owned := range c.owned() {
		if who, err := os.Readlink(c.path(owned)); err == nil && who == c.Owner() && (c.Pool == "" || pool.Has(owned)) {
			return owned, true
		}
	}
	return mac.Address{}, false
}

// owned returns the MACs that this interface may have claimed. For a pool it reads the index, since the pool may have
// changed.
func (c *ClaimMAC) owned() []mac.Address {
	switch {
	case c.Auto:
		return c.Derived()
	case c.Pool == "":
		return []mac.Address{c.MAC}
	}
	var macs []mac.Address
	entries, _ := os.ReadDir(c.Dir) // without an index nothing is claimed
	for _, e := range entries {
		claimed, err := mac.Parse(e.Name())
		if err != nil {
			continue
		}
		if who, err := os.Readlink(c.path(claimed)); err == nil && who == c.Owner() {
			macs = append(macs, claimed)
		}
	}
	return macs
}

// choices yields the MACs that may be claimed, best first.
func (c *ClaimMAC) choices() (iter.Seq[mac.Address], error) {
	switch {
	case c.Auto:
		return slices.Values(c.Derived()), nil
	case c.Pool == "":
		return slices.Values([]mac.Address{c.MAC}), nil
	}
	p, err := ReadPool(c.PoolDir, c.Pool)
	return p.All(), err
}

// Derived returns the MACs that the interface may get by derivation, best first.
func (c *ClaimMAC) Derived() []mac.Address {
	all := make([]mac.Address, attempts)
	for i := range all {
		all[i] = DeriveMAC(c.SiteID, c.Node, c.If, i)
	}
	return all
}

// Owner returns the owner as the index names it: NODE/IFNAME.
func (c *ClaimMAC) Owner() string { return c.Node + "/" + c.If }

func (c *ClaimMAC) path(a mac.Address) string { return filepath.Join(c.Dir, a.String()) }
