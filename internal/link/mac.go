package link

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"berth/internal/refuse"
	"berth/internal/sriov"
	"berth/internal/step"
	"berth/internal/vnode"
)

// attempts is how many derived MACs of an interface are tried before Berth gives up: with 2^46 of them a second try is
// hardly ever needed.
const attempts = 16

// DeriveMAC returns the MAC of an interface of a node, the same at every start and on every host of the site: the first
// six bytes of SHA-256("berth mac 1\n" SITE "\n" NODE "\n" IFNAME "\n" ATTEMPT "\n"), ATTEMPT in decimal, with the
// group bit (0x01 of the first byte) cleared and the local bit (0x02) set. attempt counts from 0 and is above 0 only if
// the earlier MACs were taken.
func DeriveMAC(siteID, node, ifname string, attempt int) net.HardwareAddr {
	sum := sha256.Sum256(fmt.Appendf(nil, "berth mac 1\n%s\n%s\n%s\n%d\n", siteID, node, ifname, attempt))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^1 | 2
	return mac
}

// ClaimMAC reserves a MAC for an interface of a node until the node is removed. The index is a folder with one symbolic
// link per MAC, whose target names its owner as NODE/IFNAME. Making the link is atomic, including its target, and fails
// if the MAC is taken.
type ClaimMAC struct {
	Dir    string `json:"dir"`       // the index
	Lock   string `json:"host_lock"` // file of the host-wide lock
	SiteID string `json:"site_id"`
	Node   string `json:"node"`
	If     string `json:"ifname"`
	Auto   bool   `json:"auto"`           // derived; otherwise as given
	Lent   string `json:"lent,omitempty"` // host link that is lent as this interface: its MAC is no conflict
	MAC    string `json:"mac"`            // the first choice; after Do, the claimed one

	Pool    string `json:"pool,omitempty"` // name of a pool in PoolDir; the lowest free MAC of it is claimed
	PoolDir string `json:"pool_dir,omitempty"`

	Leases sriov.Leases `json:"leases,omitempty"` // the MACs that virtual functions will have on the host count as taken
}

// Kind implements step.Step.
func (c *ClaimMAC) Kind() string { return "link.claim-mac" }

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
	lock, err := Lock(ctx, c.Lock)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return fmt.Errorf("claim MAC: %w", err)
	}
	mac, err := c.choose(nil)
	if err != nil {
		return err
	}
	if err := os.Symlink(c.owner(), c.path(mac)); err != nil && !errors.Is(err, fs.ErrExist) { // ErrExist: it is ours
		return fmt.Errorf("claim MAC: %w", err)
	}
	c.MAC = mac
	return nil
}

// choose returns the MAC that the interface has claimed, or else its best free one: not in the index, not of a link of
// the host, not reserved for a virtual function, and not in except.
func (c *ClaimMAC) choose(except map[string]string) (string, error) {
	choices, err := c.choices()
	if err != nil {
		return "", err
	}
	if mac, ok := c.mine(); ok {
		return mac, nil
	}
	links, err := hostLinks()
	if err != nil {
		return "", err
	}
	hosts, who := c.taken(links), ""
	for mac := range choices {
		if who = cmp.Or(claimant(c.path(mac)), hosts[mac], except[mac]); who == "" {
			return mac, nil
		}
	}
	switch {
	case c.Pool != "":
		return "", refuse.Busyf("no MAC for %s of node %s: all of pool %s are taken, the last one by %s", c.If, c.Node, c.Pool, who)
	case c.Auto:
		return "", refuse.Busyf("no MAC for %s of node %s: all %d derived ones are taken", c.If, c.Node, attempts)
	}
	return "", refuse.Busyf("MAC %s of %s is taken by %s", c.MAC, c.If, who)
}

// taken maps the MACs of the host's links, and those reserved for virtual functions, to their owners. The caller lists
// the links first and taken reads the reservations later, so a function on its way home is in at least one of the two:
// it comes home for good only under the host-wide lock.
func (c *ClaimMAC) taken(links []netlink.Link) map[string]string {
	macs := c.Leases.Reserved()
	maps.Copy(macs, hostMACs(links, c.Lent))
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
	if who != c.owner() {
		return fmt.Errorf("MAC %s belongs to %s, not to %s", c.MAC, who, c.owner())
	}
	return nil
}

// Undo releases the MAC, also if a killed Do did not record which one it took.
func (c *ClaimMAC) Undo(context.Context) error {
	for _, mac := range append(c.owned(), c.MAC) {
		if who, err := os.Readlink(c.path(mac)); err != nil || who != c.owner() {
			continue
		}
		if err := os.Remove(c.path(mac)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("give MAC %s back: %w", mac, err)
		}
	}
	return nil
}

// mine finds the claim that this interface has already, from this step or an earlier run.
func (c *ClaimMAC) mine() (string, bool) {
	var pool Pool
	if c.Pool != "" {
		var err error
		if pool, err = ReadPool(c.PoolDir, c.Pool); err != nil {
			return "", false
		}
	}
	for _, mac := range c.owned() {
		if who, err := os.Readlink(c.path(mac)); err == nil && who == c.owner() && (c.Pool == "" || pool.Has(mac)) {
			return mac, true
		}
	}
	return "", false
}

// owned returns the MACs that this interface may have claimed. For a pool it reads the index, since the pool may have
// changed.
func (c *ClaimMAC) owned() []string {
	switch {
	case c.Auto:
		return c.derived()
	case c.Pool == "":
		return []string{c.MAC}
	}
	var macs []string
	entries, _ := os.ReadDir(c.Dir) // without an index nothing is claimed
	for _, e := range entries {
		if who, err := os.Readlink(c.path(e.Name())); err == nil && who == c.owner() {
			macs = append(macs, e.Name())
		}
	}
	return macs
}

// choices yields the MACs that may be claimed, best first.
func (c *ClaimMAC) choices() (iter.Seq[string], error) {
	switch {
	case c.Auto:
		return slices.Values(c.derived()), nil
	case c.Pool == "":
		return slices.Values([]string{c.MAC}), nil
	}
	p, err := ReadPool(c.PoolDir, c.Pool)
	return p.All(), err
}

func (c *ClaimMAC) derived() []string {
	all := make([]string, attempts)
	for i := range all {
		all[i] = DeriveMAC(c.SiteID, c.Node, c.If, i).String()
	}
	return all
}

func (c *ClaimMAC) owner() string          { return c.Node + "/" + c.If }
func (c *ClaimMAC) path(mac string) string { return filepath.Join(c.Dir, mac) }

// HostMACs maps each MAC that is in use on this host to its owner.
func HostMACs() (map[string]string, error) {
	links, err := hostLinks()
	return hostMACs(links, ""), err
}

func hostLinks() ([]netlink.Link, error) {
	h, err := host()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	return listLinks(h)
}

// hostMACs maps the MACs of the host's links, current and permanent, to the link's name, and the MACs that adapters
// keep for virtual functions, whose links may be in nodes, to the function. It leaves out the MACs of the link except.
func hostMACs(links []netlink.Link, except string) map[string]string {
	macs := map[string]string{}
	own := ""
	for _, l := range links {
		a := l.Attrs()
		for _, vf := range a.Vfs {
			if mac := vf.Mac.String(); len(vf.Mac) == 6 && mac != "00:00:00:00:00:00" {
				macs[mac] = fmt.Sprintf("virtual function %d of %s", vf.ID, a.Name)
			}
		}
		if a.Name == except {
			own = a.HardwareAddr.String()
			continue
		}
		for _, mac := range []net.HardwareAddr{a.HardwareAddr, a.PermHWAddr} {
			if len(mac) > 0 {
				macs[mac.String()] = "link " + a.Name
			}
		}
	}
	delete(macs, own) // a virtual function that is lent may keep its MAC
	return macs
}

// CheckHeld refuses (Busy) to start a node if a link or virtual function of the host has got the node's MAC since the
// node claimed it: a claim binds other nodes, not the host. It does not check a running node. It reads from in what
// Claims reads, Run, and the links in Facts; it lists the links if Facts has none.
func CheckHeld(in Input) error {
	if _, err := os.Stat(in.Run); err == nil {
		return nil
	}
	steps, err := Claims(in)
	if err != nil {
		return err
	}
	links := in.Facts.list
	for _, s := range steps {
		c, ok := s.(*ClaimMAC)
		if !ok {
			continue
		}
		mac, ok := c.mine()
		if !ok {
			continue
		}
		if links == nil {
			if links, err = hostLinks(); err != nil {
				return err
			}
		}
		if who := c.taken(links)[mac]; who != "" {
			return refuse.Busyf("MAC %s, which %s of node %s holds, is that of %s now: two alike would lose each other's packets; give %s another", mac, c.If, c.Node, who, who)
		}
	}
	return nil
}

// Claims returns the steps whose results last until the node is removed: one per MAC, one per address on the host-only
// bridge. It reads from in Node, Networks, SiteID, the folders, HostLock, Leases and Facts.Pooled.
func Claims(in Input) ([]step.Step, error) {
	var steps []step.Step
	for _, n := range in.Networks {
		if err := unsupported(n); err != nil {
			return nil, err
		}
		addrs, err := in.addressClaims(n)
		if err != nil {
			return nil, err
		}
		steps = append(steps, addrs...)
		if n.Mode == vnode.None || n.MAC == "" {
			continue
		}
		c := &ClaimMAC{Dir: in.MACDir, Lock: in.HostLock, SiteID: in.SiteID, Node: in.Node, If: n.Name, Leases: in.Leases}
		if n.Mode == vnode.Phys {
			c.Lent = n.Parent
		}
		pool, isPool := strings.CutPrefix(n.MAC, poolPrefix)
		if c.Auto = n.MAC == vnode.AutoMAC; c.Auto {
			c.MAC = c.derived()[0]
		} else if isPool {
			c.Pool, c.PoolDir, c.MAC = pool, in.PoolDir, in.Facts.Pooled[n.Name]
		} else {
			mac, err := net.ParseMAC(n.MAC)
			if err != nil {
				return nil, refuse.Invalidf("MAC of network %s: %w", n.Name, err)
			}
			c.MAC = mac.String()
		}
		steps = append(steps, c)
	}
	return steps, nil
}

// poolPrefix begins the MAC setting of a network that takes one from a pool.
const poolPrefix = "pool "

// Choose returns by interface the MAC that each network would claim now, and adds these MACs to taken, which maps MACs
// to their owners. It claims nothing. It leaves out networks without a MAC of their own.
func Choose(in Input, taken map[string]string) (map[string]string, error) {
	steps, err := Claims(in)
	if err != nil {
		return nil, err
	}
	macs := map[string]string{}
	for _, s := range steps {
		c, ok := s.(*ClaimMAC)
		if !ok {
			continue
		}
		mac, err := c.choose(taken)
		if err != nil {
			return nil, err
		}
		macs[c.If], taken[mac] = mac, "node "+c.owner()
	}
	return macs, nil
}

// ReadPooled returns by interface the MACs that networks with a pool would get.
func ReadPooled(in Input) (map[string]string, error) {
	in.Networks = slices.DeleteFunc(slices.Clone(in.Networks), func(n vnode.Network) bool { return !strings.HasPrefix(n.MAC, poolPrefix) })
	if len(in.Networks) == 0 {
		return nil, nil
	}
	return Choose(in, map[string]string{})
}

// MACs returns the MACs of claims by interface: the claimed MAC if the step is done, else its first choice. Live takes
// the result as Input.MACs.
func MACs(claims []step.Step) map[string]string {
	macs := map[string]string{}
	for _, s := range claims {
		if c, ok := s.(*ClaimMAC); ok {
			macs[c.If] = c.MAC
		}
	}
	return macs
}
