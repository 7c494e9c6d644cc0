package nat

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"berth/internal/host/netif"
	"berth/internal/network/address"
	"berth/internal/sys/fault"
	"berth/internal/sys/file"
	"berth/internal/sys/refuse"
)

// ClaimAddress reserves the addresses of a node on the nat bridge until the node is removed: the lowest free IPv4 address,
// and the IPv6 address with its number. The first claim of a root also fixes the network.
type ClaimAddress struct {
	Places  Places     `json:"places"`
	Node    string     `json:"node"`
	If      string     `json:"ifname"`
	Network Network    `json:"network"` // the first choice; after Do, the claimed one
	V4      netip.Addr `json:"v4"`      // the same
}

// Kind implements step.Step.
func (c *ClaimAddress) Kind() string { return "nat.claim-address" }

// Key identifies the claim; fields that Do filled in are no part of it.
func (c *ClaimAddress) Key() string { return c.If }

func (c *ClaimAddress) String() string {
	return fmt.Sprintf("%s %s, the lowest free on bridge %s", c.If, strings.Join(c.Addresses(), ", "), c.Places.Bridge)
}

// Addresses are the node's addresses with their prefix lengths.
func (c *ClaimAddress) Addresses() (all []string) {
	for _, p := range c.Network.Of(c.V4) {
		all = append(all, p.String())
	}
	return all
}

// Do claims the addresses, or finds those that the interface has claimed already.
func (c *ClaimAddress) Do(ctx context.Context) error {
	lock, err := netif.Lock(ctx, c.Places.Lock)
	if err != nil {
		return err
	}
	defer lock.Close()
	if c.Network, err = c.Places.Network(); err != nil {
		return err
	}
	if err := os.MkdirAll(c.Places.addresses(), 0o755); err != nil {
		return fmt.Errorf("claim an address: %w", err)
	}
	var now Network
	if err := c.Places.stored().Read(&now); err != nil || now != c.Network {
		if err := file.WriteJSON(c.Places.stored().Path, c.Network); err != nil {
			return err
		}
	}
	if c.V4, err = c.Places.Free(c.Network, c.owner()); err != nil {
		return err
	}
	if err := os.Symlink(c.owner(), c.path()); err != nil && !errors.Is(err, fs.ErrExist) { // ErrExist: it is ours
		return fmt.Errorf("claim address %s: %w", c.V4, err)
	}
	fault.Point("address claimed")
	return nil
}

// Free returns the address that an owner, NODE/IFNAME, has claimed, else the lowest free one.
func (p Places) Free(n Network, owner string) (netip.Addr, error) {
	taken, err := p.claimed()
	if err != nil {
		return netip.Addr{}, err
	}
	var free netip.Addr
	last := uint32(1)<<(32-n.V4.Bits()) - 2 // the one after it is the broadcast address
	for i := last; i >= 2; i-- {
		a := at(n.V4, i).Addr()
		switch taken[a] {
		case owner:
			return a, nil
		case "":
			free = a
		}
	}
	if !free.IsValid() {
		return free, refuse.Busyf("mode nat: all %d addresses of %s are taken: remove nodes, or give some a bridge of their own (mode bridge with parent)", last-1, n.V4)
	}
	return free, nil
}

// claimed maps the claimed addresses to their owners.
func (p Places) claimed() (map[netip.Addr]string, error) {
	entries, err := os.ReadDir(p.addresses())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list claimed addresses: %w", err)
	}
	all := map[netip.Addr]string{}
	for _, e := range entries {
		a, err := netip.ParseAddr(e.Name())
		if err != nil {
			continue
		}
		if who, err := os.Readlink(filepath.Join(p.addresses(), e.Name())); err == nil {
			all[a] = who
		}
	}
	return all, nil
}

// Verify reads the claim back.
func (c *ClaimAddress) Verify(context.Context) error {
	who, err := os.Readlink(c.path())
	if err != nil {
		return fmt.Errorf("read claim of address %s: %w", c.V4, err)
	}
	if who != c.owner() {
		return refuse.Busyf("address %s of %s is taken by node %s", c.V4, c.If, who)
	}
	return nil
}

// OnDisk implements step.Lasting.
func (c *ClaimAddress) OnDisk() error { return file.SyncDir(c.Places.addresses()) }

// Undo releases the addresses, also if a killed Do did not record which it took.
func (c *ClaimAddress) Undo(ctx context.Context) error {
	if c.Places.Lock == "" {
		return nil
	}
	lock, err := netif.Lock(ctx, c.Places.Lock)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := os.Remove(c.Places.stored().Path + file.Unwritten); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove what a killed writer left: %w", err)
	}
	taken, err := c.Places.claimed()
	if err != nil {
		return err
	}
	for a, who := range taken {
		if who != c.owner() {
			continue
		}
		if err := c.Places.forget(c.Network, a); err != nil {
			return err
		}
		if err := address.GiveBack(filepath.Join(c.Places.addresses(), a.String()), who); err != nil {
			return fmt.Errorf("give address %s back: %w", a, err)
		}
	}
	return nil
}

func (c *ClaimAddress) owner() string { return c.Node + "/" + c.If }

func (c *ClaimAddress) path() string { return filepath.Join(c.Places.addresses(), c.V4.String()) }
