package link

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"berth/internal/refuse"
	"berth/internal/step"
	"berth/internal/vnode"
)

// attempts is how many derived MACs of an interface are tried before Berth gives up: with 2^46 of them a second one is
// hardly ever needed.
const attempts = 16

// DeriveMAC returns the MAC of an interface of a node, the same at every start and on every host of the site: the first
// six bytes of SHA-256("berth mac 1\n" SITE "\n" NODE "\n" IFNAME "\n" ATTEMPT "\n"), ATTEMPT in decimal, with the
// group bit (0x01 of the first byte) cleared and the local bit (0x02) set. attempt counts from 0 and is above 0 only
// where an earlier MAC was taken.
func DeriveMAC(siteID, node, ifname string, attempt int) net.HardwareAddr {
	sum := sha256.Sum256(fmt.Appendf(nil, "berth mac 1\n%s\n%s\n%s\n%d\n", siteID, node, ifname, attempt))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^1 | 2
	return mac
}

// ClaimMAC keeps a MAC for an interface of a node until the node is removed. The index is a folder with one symbolic
// link a MAC, whose target names its owner as NODE/IFNAME: making it is atomic, content included, and fails if the MAC
// is taken.
type ClaimMAC struct {
	Dir    string `json:"dir"`       // the index
	Lock   string `json:"host_lock"` // file of the host-wide lock
	SiteID string `json:"site_id"`
	Node   string `json:"node"`
	If     string `json:"ifname"`
	Auto   bool   `json:"auto"`           // derived, else as given
	Lent   string `json:"lent,omitempty"` // the host's link that this interface is, if it is lent: its MAC may be the same
	MAC    string `json:"mac"`            // the first choice; after Do, the one claimed
}

// Kind implements step.Step.
func (c *ClaimMAC) Kind() string { return "link.claim-mac" }

func (c *ClaimMAC) String() string {
	how := "as given"
	if c.Auto {
		how = "derived from site id and name"
	}
	return fmt.Sprintf("%s %s, %s", c.If, c.MAC, how)
}

// Do claims the MAC: the one it has already, or the given one, or the first derived one that no node and no link of
// this host has. A given MAC that is taken is refuse.Busy.
func (c *ClaimMAC) Do(ctx context.Context) error {
	if mac, ok := c.mine(); ok {
		c.MAC = mac
		return nil
	}
	lock, err := Lock(ctx, c.Lock)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return fmt.Errorf("claim MAC: %w", err)
	}
	links, err := hostMACs(c.Lent)
	if err != nil {
		return err
	}
	for _, mac := range c.choices() {
		who, onHost := links[mac]
		if !onHost {
			err := os.Symlink(c.owner(), c.path(mac))
			if err == nil {
				c.MAC = mac
				return nil
			}
			if !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("claim MAC: %w", err)
			}
			who, err = os.Readlink(c.path(mac))
			if err != nil {
				return fmt.Errorf("read who has MAC %s: %w", mac, err)
			}
			who = "node " + who
		}
		if !c.Auto {
			return refuse.Busyf("MAC %s of %s is taken by %s", mac, c.If, who)
		}
	}
	return refuse.Busyf("no MAC for %s of node %s: all %d derived ones are taken", c.If, c.Node, attempts)
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

// Undo gives the MAC back, also if Do did not come to say which one it took.
func (c *ClaimMAC) Undo(context.Context) error {
	for _, mac := range append(c.choices(), c.MAC) {
		if who, err := os.Readlink(c.path(mac)); err != nil || who != c.owner() {
			continue
		}
		if err := os.Remove(c.path(mac)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("give MAC %s back: %w", mac, err)
		}
	}
	return nil
}

// mine finds the claim that this interface has already, from this step or an earlier run of it.
func (c *ClaimMAC) mine() (string, bool) {
	for _, mac := range c.choices() {
		if who, err := os.Readlink(c.path(mac)); err == nil && who == c.owner() {
			return mac, true
		}
	}
	return "", false
}

// choices lists the MACs that may be claimed, best first.
func (c *ClaimMAC) choices() []string {
	if !c.Auto {
		return []string{c.MAC}
	}
	all := make([]string, attempts)
	for i := range all {
		all[i] = DeriveMAC(c.SiteID, c.Node, c.If, i).String()
	}
	return all
}

func (c *ClaimMAC) owner() string          { return c.Node + "/" + c.If }
func (c *ClaimMAC) path(mac string) string { return filepath.Join(c.Dir, mac) }

// hostMACs maps each MAC of the host's links, the one it has and the one it was made with, to the link's name.
func hostMACs(except string) (map[string]string, error) {
	h, err := host()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	links, err := whole(h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	macs := map[string]string{}
	for _, l := range links {
		a := l.Attrs()
		if a.Name == except {
			continue
		}
		for _, mac := range []net.HardwareAddr{a.HardwareAddr, a.PermHWAddr} {
			if len(mac) > 0 {
				macs[mac.String()] = "link " + a.Name
			}
		}
	}
	return macs, nil
}

// Claims returns the steps that last until the node is removed: one a MAC. It reads Node, Networks, SiteID, MACDir and
// HostLock of in.
func Claims(in Input) ([]step.Step, error) {
	var steps []step.Step
	for _, n := range in.Networks {
		if err := unsupported(n); err != nil {
			return nil, err
		}
		if n.Mode == vnode.None || n.MAC == "" {
			continue
		}
		c := &ClaimMAC{Dir: in.MACDir, Lock: in.HostLock, SiteID: in.SiteID, Node: in.Node, If: n.Name}
		if n.Mode == vnode.Phys {
			c.Lent = n.Parent
		}
		if c.Auto = n.MAC == vnode.AutoMAC; c.Auto {
			c.MAC = c.choices()[0]
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

// MACs maps interfaces to MACs as claims say: those claimed where the steps are done, else those that they will try
// first. It is what Live takes as Input.MACs.
func MACs(claims []step.Step) map[string]string {
	macs := map[string]string{}
	for _, s := range claims {
		if c, ok := s.(*ClaimMAC); ok {
			macs[c.If] = c.MAC
		}
	}
	return macs
}
