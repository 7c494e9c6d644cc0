package iosync

import (
	"context"
	"errors"
	"net/netip"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"berth/internal/host"
	"berth/internal/host/block"
	"berth/internal/host/counters"
	"berth/internal/limit/cgroup"
	"berth/internal/site/intercept/preload"
	"berth/internal/site/iosync/allot"
	"berth/internal/site/iosync/place"
	"berth/internal/site/iosync/want"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// groups implements the ways launch and preload, and the part of the way instances that is the same: threads or processes that work for a
// node are in the node's group, which has the limits.
type groups struct {
	conf  want.Filesystem
	at    *place.FS
	cg    host.Cgroups
	loans block.Loans
	uid   int // preload: the server's user, who may put its threads into groups
}

func newGroups(f want.Filesystem, at *place.FS, cg host.Cgroups, loans block.Loans) (*groups, error) {
	g := &groups{conf: f, at: at, cg: cg, loans: loans}
	if f.WayOf() != want.Preload {
		return g, nil
	}
	if !at.V1() {
		return nil, refuse.Cannotf("serve it by a process a client (way: launch), or boot this host with cgroup v1",
			"file system %s: way preload needs cgroup v1: v2 limits block I/O of whole processes only", f.Name)
	}
	var err error
	if g.uid, err = account(f); err != nil {
		return nil, err
	}
	return g, g.enterable(place.Rest)
}

// enterable lets the server's threads into a group, if they go by themselves.
func (g *groups) enterable(node string) error {
	if g.conf.WayOf() != want.Preload {
		return nil
	}
	return preload.Own(filepath.Join(g.at.Groups(), node), g.uid)
}

func (g *groups) hold(ctx context.Context, h, was *kept) (err error) {
	if err := g.enterable(h.Node); err != nil {
		return err
	}
	h.Written, err = g.limit(ctx, h.Node, was, h.Part)
	if h.Part.Weight > 0 && refuse.KindOf(err) == refuse.Cannot { // the rates hold all the same
		what := "weight: "
		if h.Want.Weight == 0 {
			what = "class: "
		}
		h.Missing, h.Unweighed = strings.TrimPrefix(h.Missing+"; ", "; ")+what+err.Error(), true
		part := h.Part
		part.Weight = 0
		h.Written, err = g.limit(ctx, h.Node, was, part)
	}
	return err
}

func (g *groups) followed(map[netip.Addr]string, bool) error { return nil }
func (g *groups) stands(string) bool                         { return true }
func (g *groups) free(nodes []string) ([]string, error)      { return nodes, nil } // the processes in them are not Berth's
func (g *groups) close()                                     {}
func (g *groups) drop(string) error                          { return nil } // the group is gone

func (g *groups) missing(want.Entry) string {
	if g.at.V1() {
		return "cgroup v1 does not limit writes through the page cache"
	}
	return ""
}

func (g *groups) counted() func(node string) (sum allot.Rates, ok bool) {
	meter := counters.NewMeter(g.cg, false)
	return func(node string) (sum allot.Rates, ok bool) {
		c, ok := meter.Read(g.at.Group(node))
		for _, d := range c.Disks {
			for k, n := range [...]int64{allot.ReadBytes: d.ReadBytes, allot.ReadOps: d.ReadOps, allot.WriteBytes: d.WriteBytes, allot.WriteOps: d.WriteOps} {
				sum[k] += float64(max(0, n))
			}
		}
		return sum, ok
	}
}

// limit sets the limits of a node's group as its entry asks, and reads them back.
func (g *groups) limit(ctx context.Context, node string, was *kept, part want.Entry) ([]*cgroup.Limit, error) {
	old := everything() // of a group that a killed agent left, any limit may be set
	if was != nil && was.Failed == "" {
		old = was.Part
	}
	before, err := g.limits(node, old, cgroup.Held)
	if err != nil {
		return nil, err
	}
	after, err := g.limits(node, part, cgroup.Limits)
	if err != nil {
		return nil, err
	}
	for _, c := range cgroup.Changes(before, after) {
		if err := errors.Join(c.Do(ctx), c.Verify(ctx)); err != nil {
			return nil, err
		}
	}
	for _, l := range after {
		if err := l.Verify(ctx); err != nil {
			return nil, err
		}
	}
	return after, nil
}

// everything asks for each rate, so that the limits that replace it clear the rates that are not asked for.
func everything() want.Entry {
	r := vnode.IORate{Rate: 1, IOPS: 1}
	return want.Entry{Read: r, Write: r, Weight: 1}
}

// limits plans the limits of a node on the disk of the file system.
func (g *groups) limits(node string, e want.Entry, plan func(*vnode.Node, host.Cgroups, string, map[string]block.Disk) ([]*cgroup.Limit, error)) ([]*cgroup.Limit, error) {
	io := vnode.IO{Name: g.conf.Name, Path: g.conf.Path, Read: e.Read, Write: e.Write, Weight: e.Weight}
	disk := g.at.Disk
	// Its scheduler may be another one now.
	if now, err := block.Under("/sys", g.conf.Path); err == nil && now.Number() == disk.Number() {
		disk = now
	}
	if err := disk.LookFor(io, g.cg, g.loans); err != nil {
		return nil, err
	}
	n := &vnode.Node{Name: node, IO: []vnode.IO{io}}
	return plan(n, g.cg, g.at.Group(node), map[string]block.Disk{g.conf.Name: disk})
}

// account returns the user that a file system's server runs as.
func account(f want.Filesystem) (int, error) {
	if f.User == "" {
		return 0, nil
	}
	u, err := user.Lookup(f.User)
	if err != nil {
		return 0, refuse.Cannotf("name under filesystems in berthd.yaml the user that the server runs as", "file system %s: there is no user %s on this host: %w", f.Name, f.User, err)
	}
	return strconv.Atoi(u.Uid)
}
