package link

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"

	"berth/internal/refuse"
	"berth/internal/sriov"
	"berth/internal/step"
)

// VFClaim reserves a virtual function of an adapter for an interface of a node, until the node ends: one that neither a
// node nor the host uses.
type VFClaim struct {
	Leases sriov.Leases `json:"leases"`    // the host's index
	Lock   string       `json:"host_lock"` // file of the host-wide lock
	Owner  sriov.Owner  `json:"owner"`
	PF     string       `json:"pf"`
	Token  string       `json:"token,omitempty"`
	PCI    string       `json:"pci,omitempty"` // the VF's address, after Do
}

// Kind implements step.Step.
func (c *VFClaim) Kind() string { return "sriov.claim" }

func (c *VFClaim) String() string {
	return fmt.Sprintf("%s is a free virtual function of %s", c.Owner.If, c.PF)
}

// Prepare chooses the token that identifies this claim.
func (c *VFClaim) Prepare(context.Context) error {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // crypto/rand never fails
	c.Token = hex.EncodeToString(b)
	return nil
}

// Do claims the free VF with the lowest number; Busy if there is none.
func (c *VFClaim) Do(ctx context.Context) error {
	lock, err := Lock(ctx, c.Lock)
	if err != nil {
		return err
	}
	defer lock.Close()
	pf, err := sriov.Find(sriov.Sys, c.PF)
	if err != nil {
		return err
	}
	if len(pf.VFs) == 0 {
		return noVFs(pf)
	}
	h, err := host()
	if err != nil {
		return err
	}
	defer h.Close()
	links, err := listLinks(h)
	if err != nil {
		return err
	}
	users, err := newVFUsers(h, c.Leases, links)
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
	if err := c.Leases.Take(sriov.Lease{Owner: c.Owner, PCI: vf.PCI, Token: c.Token, Boot: boot}); err != nil {
		return err
	}
	c.PCI = vf.PCI
	return nil
}

// free returns the first VF that nobody uses.
func (c *VFClaim) free(users *vfUsers, pf sriov.PF) (sriov.VF, error) {
	var why []string
	for _, vf := range pf.VFs {
		user, err := users.of(vf)
		if err != nil {
			return vf, err
		}
		if user == "" {
			return vf, nil
		}
		why = append(why, fmt.Sprintf("%d by %s", vf.Index, user))
	}
	return sriov.VF{}, refuse.Busyf("no free virtual function on %s for %s: all %d are in use (%s)", pf.Name, c.Owner, len(pf.VFs), strings.Join(why, ", "))
}

func noVFs(pf sriov.PF) error {
	return refuse.Cannotf(fmt.Sprintf("berth vf enable %s N (it can have %d)", pf.Name, pf.Total), "adapter %s has no virtual functions now", pf.Name)
}

// Verify reads the claim back.
func (c *VFClaim) Verify(context.Context) error {
	if l, ok := c.Leases.Read(c.PCI); !ok || l.Token != c.Token {
		return fmt.Errorf("virtual function %s of %s is not %s's", c.PCI, c.PF, c.Owner)
	}
	return nil
}

// Undo releases the VF, also if a killed Do did not record which one it took.
func (c *VFClaim) Undo(ctx context.Context) error {
	if c.Token == "" {
		return nil
	}
	lock, err := Lock(ctx, c.Lock)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := c.Leases.Release(c.Token); err != nil {
		return err
	}
	step.Fault("VF released")
	return nil
}

// Claimed is the common part of the later steps of a virtual function: the VF that the claim before them took.
type Claimed struct {
	Leases sriov.Leases `json:"leases"`
	Owner  sriov.Owner  `json:"owner"`
	Lease  sriov.Lease  `json:"lease,omitzero"` // after Prepare
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

// mine reports whether the VF still belongs to this claim. If not, it must not be touched.
func (c *Claimed) mine() bool { return c.Leases.Held(c.Lease) }
