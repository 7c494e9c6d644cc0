package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"berth/internal/address"
	"berth/internal/image"
	"berth/internal/nat"
	"berth/internal/plan"
	"berth/internal/refuse"
	"berth/internal/roster"
	"berth/internal/scratch"
	"berth/internal/step"
	"berth/internal/vnode"
)

// rewrite writes those records of the host anew that a power cut has emptied, by what the journals of nodes say of them.
func (b *Berth) rewrite(ctx context.Context, names []string) (did []Repaired, err error) {
	_, siteErr := b.siteID()
	errs := []error{siteErr}
	pools := scratch.Pools{Dir: b.Layout.Scratch()}
	known, err := pools.Names()
	errs = append(errs, err)
	for _, pool := range known {
		if _, err := pools.Get(pool); !errors.Is(err, scratch.ErrDamaged) {
			continue
		}
		var as []scratch.Pool
		for _, v := range scratch.Volumes(b.claimed(names)) {
			if v.Pool.Name == pool && !slices.Contains(as, v.Pool) {
				as = append(as, v.Pool)
			}
		}
		if len(as) != 1 { // whoever looks into the pools says what to do
			continue
		}
		if err := pools.Restore(ctx, as[0]); err != nil {
			errs = append(errs, err)
			continue
		}
		did = append(did, Repaired{Did: fmt.Sprintf("wrote the record of scratch pool %s anew, as the nodes with volumes in it have it", pool)})
	}
	for _, s := range b.claimed(names) {
		if c, ok := s.(*nat.ClaimAddress); ok && c.V4.IsValid() {
			done, err := c.Places.Restore(c.Network)
			errs = append(errs, err)
			if done {
				did = append(did, Repaired{Did: "wrote the record of the private network of mode nat anew, as its nodes have it"})
			}
		}
	}
	return did, errors.Join(errs...)
}

// claimed returns what nodes have, as far as their journals can be read.
func (b *Berth) claimed(names []string) (all []step.Step) {
	for _, name := range names {
		if j, err := b.Claims(name); err == nil {
			all = append(all, j.Steps()...)
		}
	}
	return all
}

// siteID is the site's id. One that was lost is written anew, as the journal of a node with a MAC has it.
func (b *Berth) siteID() (string, error) {
	id, lost := address.SiteID(b.Layout)
	if !errors.Is(lost, address.ErrNoSiteID) {
		return id, lost
	}
	names, err := b.Names()
	if err != nil {
		return "", err
	}
	for _, s := range b.claimed(names) {
		if c, ok := s.(*address.ClaimMAC); ok && c.SiteID != "" {
			return c.SiteID, address.RestoreSiteID(b.Layout, c.SiteID)
		}
	}
	return "", lost
}

// applyAnew gives a node that does not run a new spec in the place of one that cannot be read, and starts it. What the node wrote
// stays: a spec by which it would lose some of that is refused. The caller holds the node's lock.
func (b *Berth) applyAnew(ctx context.Context, l *lock, n *vnode.Node, damaged error) error {
	if _, err := b.LiveInit(n.Name); err == nil {
		return refuse.Busyf("node %s runs, and its spec cannot be read; berth stop %s, then apply again: %w", n.Name, n.Name, damaged)
	}
	facts, err := b.facts(ctx, n)
	if err != nil {
		return err
	}
	wanted, _, err := plan.All(n, facts)
	if err != nil {
		return err
	}
	claims, err := b.Claims(n.Name)
	if err != nil {
		return err
	}
	for _, c := range claims.Steps() {
		room, _, _ := strings.Cut(c.Kind(), ".")
		if _, cache := c.(*image.Unpack); !cache && slices.Contains([]string{"ids", "image", "scratch"}, room) && !slices.ContainsFunc(wanted, same(c)) {
			return refuse.Busyf("node %s has %s, and would lose it by this spec; put it into the spec, or remove the node (berth rm %s)", n.Name, c, n.Name)
		}
	}
	if was, err := b.Noted(n.Name); err == nil && was.Image != "" && was.Image != n.Image.String() {
		return refuse.Busyf("node %s was made of image %s, and what it wrote covers that; name it in the spec, or remove the node (berth rm %s)", n.Name, was.Image, n.Name)
	}
	next := &roster.Stored{Applied: n, Now: n}
	if err := b.Store(n.Name, next); err != nil {
		return err
	}
	return b.renew(ctx, l, n, next)
}
