package sriov

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"

	"berth/internal/host/netif"
	"berth/internal/sys/fault"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// Claim reserves a virtual function of an adapter for an interface of a node, until the node ends: one that neither a
// node nor the host uses.
type Claim struct {
	Leases Leases `json:"leases"`    // the host's index
	Lock   string `json:"host_lock"` // file of the host-wide lock
	Owner  Owner  `json:"owner"`
	PF     string `json:"pf"`
	Token  string `json:"token,omitempty"`
	PCI    string `json:"pci,omitempty"` // the VF's address, after Do
}

// Kind implements step.Step.
func (c *Claim) Kind() string { return "sriov.claim" }

func (c *Claim) String() string {
	return fmt.Sprintf("%s is a free virtual function of %s", c.Owner.If, c.PF)
}

// Prepare chooses the token that identifies this claim.
func (c *Claim) Prepare(context.Context) error {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // crypto/rand never fails
	c.Token = hex.EncodeToString(b)
	return nil
}

// Do claims the free VF with the lowest number; Busy if there is none.
func (c *Claim) Do(ctx context.Context) error {
	lock, err := netif.Lock(ctx, c.Lock)
	if err != nil {
		return err
	}
	defer lock.Close()
	pf, err := Find(Sys, c.PF)
	if err != nil {
		return err
	}
	if len(pf.VFs) == 0 {
		return noVFs(pf)
	}
	h, err := netif.Host()
	if err != nil {
		return err
	}
	defer h.Close()
	links, err := netif.List(h)
	if err != nil {
		return err
	}
	users, err := NewUsers(h, c.Leases, links)
	if err != nil {
		return err
	}
	vf, err := c.free(users, pf)
	if err != nil {
		return err
	}
	boot, err := step.BootID()
	if err != nil {
		return err
	}
	if err := c.Leases.Take(Lease{Owner: c.Owner, PCI: vf.PCI, Token: c.Token, Boot: boot}); err != nil {
		return err
	}
	c.PCI = vf.PCI
	return nil
}

// free returns the first VF without a user.
func (c *Claim) free(users *Users, pf PF) (VF, error) {
	var why []string
	for _, vf := range pf.VFs {
		user, err := users.Of(vf)
		if err != nil {
			return vf, err
		}
		if user == "" {
			return vf, nil
		}
		why = append(why, fmt.Sprintf("%d by %s", vf.Index, user))
	}
	return VF{}, refuse.Busyf("no free virtual function on %s for %s: all %d are in use (%s)", pf.Name, c.Owner, len(pf.VFs), strings.Join(why, ", "))
}

func noVFs(pf PF) error {
	return refuse.Cannotf(fmt.Sprintf("berth vf enable %s N (it can have %d)", pf.Name, pf.Total), "adapter %s has no virtual functions now", pf.Name)
}

// Verify reads the claim back.
func (c *Claim) Verify(context.Context) error {
	if l, ok := c.Leases.Read(c.PCI); !ok || l.Token != c.Token {
		return fmt.Errorf("virtual function %s of %s is not %s's", c.PCI, c.PF, c.Owner)
	}
	return nil
}

// Undo releases the VF, also if a killed Do did not record which one it took.
func (c *Claim) Undo(ctx context.Context) error {
	if c.Token == "" {
		return nil
	}
	lock, err := netif.Lock(ctx, c.Lock)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := c.Leases.Release(c.Token); err != nil {
		return err
	}
	fault.Point("VF released")
	return nil
}

// Claimed is the common part of the later steps of a virtual function: the VF that the claim before them took.
type Claimed struct {
	Leases Leases `json:"leases"`
	Owner  Owner  `json:"owner"`
	Lease  Lease  `json:"lease,omitzero"` // after Prepare
}

// prepare finds the claim.
func (c *Claimed) prepare() error {
	l, ok := c.Leases.Of(c.Owner)
	if !ok {
		return fmt.Errorf("%s has no virtual function", c.Owner)
	}
	c.Lease = l
	return nil
}

// Held reports whether the VF still belongs to this claim. If not, it must not be touched.
func (c *Claimed) Held() bool { return c.Leases.Held(c.Lease) }
