// Package rescue restores records of the host that a power cut has emptied (the site id, pools of MACs) from the journals of
// nodes.
package rescue

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"berth/internal/network/address"
	"berth/internal/network/nat"
	"berth/internal/node/records"
	"berth/internal/storage/scratch"
	"berth/internal/sys/step"
)

// Records rebuilds those records of the host that are empty and that follow from the journals of these nodes. did has a
// sentence for each.
func Records(ctx context.Context, nodes records.Nodes, names []string) (did []string, err error) {
	_, siteErr := SiteID(nodes)
	errs := []error{siteErr}
	pools := scratch.Pools{Dir: nodes.Layout.Scratch()}
	known, err := pools.Names()
	errs = append(errs, err)
	for _, pool := range known {
		if _, err := pools.Get(pool); !errors.Is(err, scratch.ErrDamaged) {
			continue
		}
		var as []scratch.Pool
		for _, v := range scratch.Volumes(claimed(nodes, names)) {
			if v.Pool.Name == pool && !slices.Contains(as, v.Pool) {
				as = append(as, v.Pool)
			}
		}
		if len(as) != 1 { // a command that reads the pools gives the remedy
			continue
		}
		if err := pools.Restore(ctx, as[0]); err != nil {
			errs = append(errs, err)
			continue
		}
		did = append(did, fmt.Sprintf("wrote the record of scratch pool %s anew, as the nodes with volumes in it have it", pool))
	}
	for _, s := range claimed(nodes, names) {
		if c, ok := s.(*nat.ClaimAddress); ok && c.V4.IsValid() {
			done, err := c.Places.Restore(c.Network)
			errs = append(errs, err)
			if done {
				did = append(did, "wrote the record of the private network of mode nat anew, as its nodes have it")
			}
		}
	}
	return did, errors.Join(errs...)
}

// claimed returns the claims of nodes, as far as their journals can be read.
func claimed(nodes records.Nodes, names []string) (all []step.Step) {
	for _, name := range names {
		if j, err := nodes.Claims(name); err == nil {
			all = append(all, j.Steps()...)
		}
	}
	return all
}

// SiteID is the site's id. One that was lost is written anew, as the journal of a node with a MAC has it.
func SiteID(nodes records.Nodes) (string, error) {
	id, lost := address.SiteID(nodes.Layout)
	if !errors.Is(lost, address.ErrNoSiteID) {
		return id, lost
	}
	names, err := nodes.Names()
	if err != nil {
		return "", err
	}
	for _, s := range claimed(nodes, names) {
		if c, ok := s.(*address.ClaimMAC); ok && c.SiteID != "" {
			return c.SiteID, address.RestoreSiteID(nodes.Layout, c.SiteID)
		}
	}
	return "", lost
}
