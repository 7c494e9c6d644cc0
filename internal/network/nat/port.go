package nat

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"berth/internal/host/netif"
	"berth/internal/network/address"
	"berth/internal/spec/vnode"
	"berth/internal/sys/fault"
	"berth/internal/sys/file"
	"berth/internal/sys/refuse"
)

// ClaimPort reserves an entry of a node's ports until the node is removed. The index is a folder with one symbolic link for
// each entry. Its name says which ports of the host they are, its target is NODE/IFNAME.
type ClaimPort struct {
	Places Places `json:"places"`
	Node   string `json:"node"`
	If     string `json:"ifname"`
	Port   string `json:"port"` // as vnode.ParsePort reads it
}

// Kind implements step.Step.
func (c *ClaimPort) Kind() string { return "nat.claim-port" }

func (c *ClaimPort) String() string { return c.Port + ", for " + c.If }

// Do claims the ports; refuse.Busy if another node has one of them.
func (c *ClaimPort) Do(ctx context.Context) error {
	lock, err := netif.Lock(ctx, c.Places.Lock)
	if err != nil {
		return err
	}
	defer lock.Close()
	p, err := vnode.ParsePort(c.Port)
	if err != nil {
		return refuse.Invalidf("port %w", err)
	}
	if err := os.MkdirAll(c.Places.PortIndex(), 0o755); err != nil {
		return fmt.Errorf("claim port %s: %w", c.Port, err)
	}
	if who := c.Places.PortOwner(p, c.owner()); who != "" {
		return portTaken(c.Port, "node "+who)
	}
	if err := os.Symlink(c.owner(), c.path(p)); err != nil && !errors.Is(err, fs.ErrExist) { // ErrExist: it is ours
		return fmt.Errorf("claim port %s: %w", c.Port, err)
	}
	fault.Point("port claimed")
	return nil
}

func portTaken(port, who string) error {
	return refuse.Busyf("port %s is taken by %s: publish another port of the host", port, who)
}

// PortOwner returns the owner, NODE/IFNAME, that has claimed one of these ports, one owner left out; "" if there is none.
func (p Places) PortOwner(port vnode.Port, except string) string {
	entries, _ := os.ReadDir(p.PortIndex()) // without an index nothing is claimed
	for _, e := range entries {
		o, err := parseEntry(e.Name())
		if err != nil || !o.Overlaps(port) {
			continue
		}
		if who, err := os.Readlink(filepath.Join(p.PortIndex(), e.Name())); err == nil && who != except {
			return who
		}
	}
	return ""
}

// entryName is the name of a claim in the index: tcp,8000,11, or udp,53,1,192.0.2.1.
func entryName(p vnode.Port) string {
	s := fmt.Sprintf("%s,%d,%d", p.Proto, p.Host, p.Count)
	if p.Address.IsValid() {
		s += "," + p.Address.String()
	}
	return s
}

func parseEntry(name string) (p vnode.Port, err error) {
	f := append(strings.Split(name, ","), "")
	if len(f) < 4 {
		return p, errors.New("not a claim of ports")
	}
	first, err := strconv.ParseUint(f[1], 10, 16)
	if err != nil {
		return p, err
	}
	p.Proto, p.Host = f[0], uint16(first)
	if p.Count, err = strconv.Atoi(f[2]); err == nil && f[3] != "" {
		p.Address, err = netip.ParseAddr(f[3])
	}
	return p, err
}

// Verify reads the claim back.
func (c *ClaimPort) Verify(context.Context) error {
	p, err := vnode.ParsePort(c.Port)
	if err != nil {
		return refuse.Invalidf("port %w", err)
	}
	who, err := os.Readlink(c.path(p))
	if err != nil {
		return fmt.Errorf("read claim of port %s: %w", c.Port, err)
	}
	if who != c.owner() {
		return portTaken(c.Port, "node "+who)
	}
	return nil
}

// OnDisk implements step.Lasting.
func (c *ClaimPort) OnDisk() error { return file.SyncDir(c.Places.PortIndex()) }

// Undo releases the ports.
func (c *ClaimPort) Undo(context.Context) error {
	p, err := vnode.ParsePort(c.Port)
	if err != nil {
		return nil //nolint:nilerr // such a port was never claimed
	}
	if err := address.GiveBack(c.path(p), c.owner()); err != nil {
		return fmt.Errorf("give port %s back: %w", c.Port, err)
	}
	return nil
}

func (c *ClaimPort) owner() string { return c.Node + "/" + c.If }

func (c *ClaimPort) path(p vnode.Port) string {
	return filepath.Join(c.Places.PortIndex(), entryName(p))
}
