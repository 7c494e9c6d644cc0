// Package plan turns a node's spec and the facts of a host into the steps that make the node. It is pure: it reads nothing
// and changes nothing. It refuses what this host or this version cannot do.
package plan

import (
	"errors"
	"hash/fnv"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"berth/internal/block"
	"berth/internal/cgroup"
	"berth/internal/device"
	"berth/internal/gateway"
	"berth/internal/host"
	"berth/internal/ids"
	"berth/internal/image"
	"berth/internal/layout"
	"berth/internal/link"
	"berth/internal/mounts"
	"berth/internal/names"
	"berth/internal/oci"
	"berth/internal/refuse"
	"berth/internal/sriov"
	"berth/internal/step"
	"berth/internal/vnode"
)

// Facts is all that planning a node depends on besides its spec.
type Facts struct {
	Layout   layout.Layout
	Host     host.Facts
	SiteID   string
	Runtime  oci.Runtime
	Image    image.Image
	Command  Command               // what runs as process 1
	Links    link.Facts            // of the host
	Disks    map[string]block.Disk // by name of an io entry
	Devices  []device.Granted      // the devices for which the spec's entries stand
	Limited  []device.Disk         // the disks with limits, and how to recognise them after they are unplugged
	Mounts   []gateway.Source      // the sources of the spec's mounts, in the same order
	Root     image.HostRoot        // of image host
	Resolver string                // the resolv.conf of names.Resolver
	Mask     []string              // more files that read as empty inside
	TTY      bool                  // the command gets a terminal
	ForRun   bool                  // the node and its delta end with its command: berth run
}

// Command is what runs as a node's process 1, found in its image.
type Command struct {
	Args []string
	Init oci.Init
	User oci.User
}

// All returns the lasting and the live steps of a new node, or refuses it.
func All(n *vnode.Node, f Facts) (claims, live []step.Step, err error) {
	if claims, err = Claims(n, f); err != nil {
		return nil, nil, err
	}
	live, err = Live(n, f, claims)
	return claims, live, err
}

// Claims returns the steps that last until the node is removed: its id range, its MACs, its delta.
func Claims(n *vnode.Node, f Facts) ([]step.Step, error) {
	if err := Supported(n); err != nil {
		return nil, err
	}
	if err := errors.Join(f.checkInit(n), f.checkOOMScore(n)); err != nil {
		return nil, err
	}
	var steps []step.Step
	if n.UserNS() {
		steps = append(steps, &ids.Claim{Dir: f.Layout.IDs(), Node: n.Name})
	}
	macs, err := link.Claims(f.linkInput(n, nil))
	if err != nil {
		return nil, err
	}
	steps = append(steps, macs...)
	steps = append(steps, image.Open(f.Layout).Steps(f.Image)...)
	delta, err := f.delta(n)
	if err != nil {
		return nil, err
	}
	return append(steps, delta...), nil
}

// GroupPath returns the path of a node's cgroup, relative to the mount of every hierarchy: in the group of its class.
func GroupPath(l layout.Layout, n *vnode.Node) string { return l.CgroupPlace(n.Place()) + "/" + n.Name }

// Live returns the steps that make a node run. claims are its claims, done or only planned.
func Live(n *vnode.Node, f Facts, claims []step.Step) ([]step.Step, error) {
	node := Range(claims)
	dirs := f.Layout.Node(n.Name)
	groupPath := GroupPath(f.Layout, n)
	groups, err := cgroup.Steps(n, f.Host.Cgroups, groupPath, f.Disks)
	if err != nil {
		return nil, err
	}
	// Limits come after the runtime's create, because crun resets v1's memory limit. The command starts later still.
	first := slices.IndexFunc(groups, func(s step.Step) bool { return s.Kind() == "cgroup.limit" })
	if first < 0 {
		first = len(groups)
	}
	groups, limits := groups[:first:first], groups[first:]
	engines, err := cgroup.Engines(n, f.Host.Cgroups, f.Disks, block.Loans(f.Layout.DiskLoans()), dirs.Run)
	if err != nil {
		return nil, err
	}
	groups = append(groups, engines...)
	if f.Command.Init == oci.Systemd {
		if d := cgroup.DelegateStep(f.Host.Cgroups, groupPath, node.Base, node.Base); d != nil {
			groups = append(groups, d)
		}
	}
	staged, in, err := f.input(n, node, groupPath)
	if err != nil {
		return nil, err
	}
	spec, err := oci.Config(in)
	if err != nil {
		return nil, err
	}
	launch := oci.Launch{
		Runtime: f.Runtime, State: f.Layout.RuntimeState(), ID: n.Name, Bundle: dirs.Bundle(),
		PIDFile: dirs.PIDFile(), Log: dirs.RuntimeLog(), Plan: staged,
	}
	EnterGroups(&launch, f.Host.Cgroups, groupPath)
	links, err := link.Live(f.linkInput(n, claims))
	if err != nil {
		return nil, err
	}
	return slices.Concat(
		groups,
		[]step.Step{
			&oci.Bundle{Dir: dirs.Bundle(), Spec: spec},
			&oci.Create{Launch: launch, CgroupsPath: "/" + groupPath},
		},
		f.devices(groupPath, dirs),
		limits,
		links,
		[]step.Step{&oci.Start{Launch: launch, Args: in.Args, Env: in.Env, Cwd: in.Cwd, OOMScore: min(in.OOMScoreAdj, 0), IOIdle: n.Standing().IOPolicy == "idle"}},
	), nil
}

// EnterGroups makes crun on v1 start in the existing groups at a path and leave them alone. crun by itself refuses a hybrid
// hierarchy whose v2 tree has a controller, and resets v1's memory limit. Joining the groups afterwards would take longer
// than everything else. Other launches stay as they are.
func EnterGroups(l *oci.Launch, cg host.Cgroups, groupPath string) {
	if l.Runtime.Name != "crun" || cg.Mode() == "v2" {
		return
	}
	for _, controller := range slices.Sorted(maps.Keys(cg.V1)) {
		mount := cg.V1[controller]
		if !slices.ContainsFunc(l.V1, func(g oci.V1Group) bool { return g.Mount == mount }) {
			l.V1 = append(l.V1, oci.V1Group{Mount: mount, Controller: controller, Path: groupPath})
		}
	}
	if cg.Mode() == "hybrid" {
		l.Plan.Hide = []string{cg.V2}
		l.Group = cgroup.V2Dir(cg, groupPath)
	}
}

// devices returns the steps for what the node's group allows besides the standard devices, and for the record of its
// devices and disks. On v2 the step replaces the runtime's own program.
func (f *Facts) devices(groupPath string, dirs layout.Node) []step.Step {
	var steps []step.Step
	t := device.Table{Devices: f.Devices, Disks: f.Limited}
	if d := cgroup.DevicesStep(f.Host.Cgroups, groupPath); d != nil {
		d.Allow = t.Rules()
		steps = append(steps, d)
	}
	if !t.Empty() {
		steps = append(steps, &device.Record{Path: dirs.Devices(), New: t})
	}
	return steps
}

// PooledMACs returns the MACs that a node's interfaces would get from their pools. It refuses to start a node whose MACs
// the host has taken since: see link.CheckHeld.
func PooledMACs(n *vnode.Node, f Facts) (map[string]string, error) {
	in := f.linkInput(n, nil)
	if err := link.CheckHeld(in); err != nil {
		return nil, err
	}
	return link.ReadPooled(in)
}

// MACs returns the MACs that a node's interfaces would claim now, and adds them to taken: see link.Choose.
func MACs(n *vnode.Node, f Facts, taken map[string]string) (map[string]string, error) {
	return link.Choose(f.linkInput(n, nil), taken)
}

// Rates returns the rates that a node asks for.
func Rates(n *vnode.Node, f Facts) ([]*link.Rate, error) { return link.Rates(f.linkInput(n, nil)) }

// Priorities returns the priorities of a node's interfaces: as asked and, if it runs, as the kernel has them.
func Priorities(n *vnode.Node, f Facts, running bool) []link.Shown {
	return link.ShowPriorities(f.linkInput(n, nil), running)
}

// Wires returns how a node's interfaces are connected.
func Wires(n *vnode.Node, f Facts) []link.Wire { return link.Wires(f.linkInput(n, nil)) }

// LinkInput returns what link needs to know of a node's interfaces, which have these MACs.
func LinkInput(n *vnode.Node, f Facts, macs map[string]string) link.Input {
	in := f.linkInput(n, nil)
	in.MACs = macs
	return in
}

func (f *Facts) linkInput(n *vnode.Node, claims []step.Step) link.Input {
	dirs := f.Layout.Node(n.Name)
	return link.Input{
		Node: n.Name, Hostname: n.Host(), Networks: n.Network, Priority: n.Standing().NetPriority, SiteID: f.SiteID, MACDir: f.Layout.MACs(), HostLock: f.Layout.HostLock(), PoolDir: f.Layout.Pools(), AddressDir: f.Layout.Addresses(),
		Leases: sriov.Leases(f.Layout.VFLeases()), Run: dirs.Run,
		Bridge: f.Layout.Bridge(), Hub: link.Hub(f.Layout.Hub()), NS: link.NS{Pin: dirs.NetNS(), PIDFile: dirs.PIDFile()}, MACs: link.MACs(claims), Facts: f.Links,
	}
}

// Range returns the id range of the claims; the zero value without a user namespace.
func Range(claims []step.Step) mounts.IDs {
	for _, s := range claims {
		if c, ok := s.(*ids.Claim); ok {
			if r := c.Range(); r.Size != 0 {
				return mounts.IDs{Base: r.Base, Size: r.Size}
			}
			return mounts.IDs{Base: ids.First, Size: ids.Size} // not claimed yet: any range will do to show the plan
		}
	}
	return mounts.IDs{}
}

// input returns the input of the node's runtime configuration, and the plan of what is staged for it.
func (f *Facts) input(n *vnode.Node, r mounts.IDs, groupPath string) (mounts.Plan, oci.Input, error) {
	dirs := f.Layout.Node(n.Name)
	p := mounts.Plan{Dir: dirs.Stage(), IDs: r, Root: f.root(n)}
	in := oci.Input{
		Hostname: n.Host(), Init: f.Command.Init, Args: f.Command.Args, Env: f.Image.Config.Env,
		Cwd: f.Image.Config.WorkingDir, User: f.Command.User, Rootfs: dirs.Root(),
		IDBase: r.Base, IDSize: r.Size, RLimits: n.RLimits, OOMScoreAdj: f.oomScore(n), CgroupsPath: "/" + groupPath, Mask: f.Mask, Terminal: f.TTY,
	}
	if in.Init == oci.Systemd {
		in.Cgroup = oci.ReadWrite
	}
	if f.Image.Plain {
		for i, b := range f.Root.Binds() {
			// Staged without submounts: in a user namespace the kernel refuses to leave them out.
			at := filepath.Join(dirs.Stage(), "h"+strconv.Itoa(i))
			p.Stage = append(p.Stage, mounts.Stage{At: at, Source: b.Source, ReadOnly: b.ReadOnly})
			in.Mounts = append(in.Mounts, oci.Mount{Source: at, Target: b.Target, Type: "bind", Options: []string{"bind"}})
		}
	}
	in.Mounts = append(in.Mounts, f.own(n, &p)...)
	staged, huge := hugePageMounts(n, dirs.Stage())
	p.Stage, in.Mounts = append(p.Stage, staged...), append(in.Mounts, huge...)
	for i, m := range n.Mounts {
		gw, err := gateway.For(m.Gateway)
		if err != nil {
			return p, in, err
		}
		to := gateway.Node{UserNS: n.UserNS(), Layout: f.Layout}
		way, err := gw.Plan(m, f.Mounts[i], to, filepath.Join(dirs.Stage(), "m"+strconv.Itoa(i)))
		if err != nil {
			return p, in, err
		}
		p.Stage = append(p.Stage, way.Stage)
		in.Mounts = append(in.Mounts, oci.Mount(way.Mount))
	}
	for i, d := range f.Devices {
		at := filepath.Join(dirs.Stage(), "d"+strconv.Itoa(i))
		p.Stage = append(p.Stage, mounts.Stage{At: at, Device: &mounts.DeviceNode{Type: d.Type, Major: d.Major, Minor: d.Minor}})
		in.Devices = append(in.Devices, oci.Device{
			Target: d.Path, Source: at, Block: d.Type == "b", Major: int64(d.Major), Minor: int64(d.Minor), Access: d.Access,
		})
	}
	return p, in, p.Validate()
}

// own adds the node's own files in /etc to the plan, below what the spec mounts there. With image host the runtime mounts
// the host's /etc, so own also returns mounts over its files; only regular files can be covered.
func (f *Facts) own(n *vnode.Node, p *mounts.Plan) []oci.Mount {
	var by []oci.Mount
	for _, own := range names.Files(n, f.Resolver) {
		file := mounts.File{Path: "etc/" + own.Name, Text: own.Text}
		if !f.Image.Plain {
			file.Root = p.Root.At
		} else if slices.Contains(f.Root.Files, own.Name) {
			by = append(by, oci.Mount{Source: p.FileAt(len(p.Files)), Target: "/" + file.Path, Type: "bind", Options: []string{"bind"}})
		} else {
			continue
		}
		p.Files = append(p.Files, file)
	}
	return by
}

// oomScore returns the node's oom_score_adj, as far as this host lets Berth set it: a value below 0 needs CAP_SYS_RESOURCE,
// which a container as host may lack. checkOOMScore refuses such a value if the spec asks for it by name.
func (f *Facts) oomScore(n *vnode.Node) int {
	score := n.Standing().OOMScore
	if score < 0 && !f.Host.SysRes {
		return 1
	}
	return score
}

func (f *Facts) checkOOMScore(n *vnode.Node) error {
	if n.OOMScoreAdj == nil || *n.OOMScoreAdj >= 0 || f.Host.SysRes {
		return nil
	}
	return refuse.Cannotf("run berth with CAP_SYS_RESOURCE", "node %s: oom_score_adj %d: this process may not protect others when memory is short",
		n.Name, *n.OOMScoreAdj)
}

// root says how the node's root is mounted.
func (f *Facts) root(n *vnode.Node) mounts.Root {
	dirs := f.Layout.Node(n.Name)
	r := mounts.Root{At: dirs.Root(), NoSUID: f.Command.Init == oci.Command} // on the same condition as no_new_privileges
	if n.Delta.In == vnode.InMemory {
		r.Lower, r.Memory, r.Size = f.Image.Lowers, true, image.MemorySize(n.Delta, n.Memory)
		if f.Image.Plain {
			r.Lower = []string{skeletonInMemory(dirs)}
		}
		return r
	}
	d := image.Delta{Path: dirs.Delta()}
	if f.Image.Plain {
		r.Plain = filepath.Join(d.Path, "root")
		return r
	}
	r.Lower, r.Upper, r.Work, r.Volatile = f.Image.Lowers, d.Upper(), d.Work(), f.ForRun
	return r
}

// skeletonInMemory returns the path of the empty root for image host that a delta in memory covers.
func skeletonInMemory(dirs layout.Node) string { return filepath.Join(dirs.Lib, "root") }

// delta returns the steps that make the delta, which takes the node's writes.
func (f *Facts) delta(n *vnode.Node) ([]step.Step, error) {
	dirs := f.Layout.Node(n.Name)
	if err := image.CheckDelta(n.Delta, f.Layout.LibNodes()); err != nil {
		return nil, err
	}
	var steps []step.Step
	memory := n.Delta.In == vnode.InMemory
	if !memory {
		steps = append(steps, &image.Delta{Path: dirs.Delta(), Size: n.Delta.Size})
	}
	if f.Image.Plain {
		path := filepath.Join(dirs.Delta(), "root")
		if memory {
			path = skeletonInMemory(dirs)
		}
		steps = append(steps, f.Root.Skeleton(path, 0))
	}
	return steps, nil
}

// Own sets the owner of a claim, which depends on the id range claimed before it.
func Own(s step.Step, r mounts.IDs) {
	switch c := s.(type) {
	case *image.Delta:
		c.Owner = r.Base
		if c.Size > 0 {
			// A range belongs to one node, so its number makes a unique project. Without a range the project comes from the path.
			c.Project = r.Base / ids.Size
			if r.Size == 0 {
				h := fnv.New32a()
				_, _ = h.Write([]byte(c.Path)) // never fails: hash.Hash
				c.Project = h.Sum32() | 1<<31
			}
		}
	case *image.Skeleton:
		if filepath.Base(filepath.Dir(c.Path)) == "delta" { // else it is an overlay layer, and idmapped
			c.Owner = r.Base
		}
	}
}

// checkInit refuses a node without a command, and an init system that cannot work on this host.
func (f *Facts) checkInit(n *vnode.Node) error {
	if len(f.Command.Args) == 0 {
		return refuse.Invalidf("node %s: image %s has no command of its own; give one", n.Name, n.Image)
	}
	if f.Command.Init == oci.Systemd && f.Host.Cgroups.Mode() != "v2" {
		return refuse.Cannotf("boot the host with systemd.unified_cgroup_hierarchy=1, or use a command or another init",
			"node %s: systemd needs cgroup groups of its own, and on cgroup v1 they cannot be delegated safely (this host: %s)",
			n.Name, f.Host.Cgroups.Mode())
	}
	return image.CheckHost(n)
}

// ClaimKey returns what identifies a claim: two claims of one kind and key are the same, whatever fields Do filled in.
func ClaimKey(s step.Step) string {
	switch c := s.(type) {
	case *ids.Claim:
		return c.Node
	case *link.ClaimMAC:
		key := c.If
		switch {
		case c.Pool != "":
			key += " pool " + c.Pool
		case !c.Auto:
			key += " " + c.MAC
		}
		return strings.TrimSpace(key + " " + c.Lent)
	case *image.Unpack:
		return c.Manifest
	}
	return s.String()
}
