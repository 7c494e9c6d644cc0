// Package plan turns a node's spec and the facts of a host into the steps that make the node. It is pure: it reads nothing
// and changes nothing. It refuses what this host or this version cannot do.
package plan

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/host/block"
	"berth/internal/host/group"
	"berth/internal/host/membership"
	"berth/internal/image"
	"berth/internal/limit/cgroup"
	"berth/internal/limit/devgroup"
	"berth/internal/limit/device"
	"berth/internal/limit/sysctl"
	"berth/internal/limit/weight"
	"berth/internal/network/link"
	"berth/internal/node/names"
	"berth/internal/runner"
	"berth/internal/spec/vnode"
	"berth/internal/storage/gateway"
	"berth/internal/storage/ids"
	"berth/internal/storage/mounts"
	"berth/internal/storage/scratch"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// Facts is all that planning a node depends on besides its spec.
type Facts struct {
	Layout   layout.Layout
	Host     host.Facts
	SiteID   string
	Runner   runner.Runner
	Image    image.Image
	Command  Command               // the command of process 1
	Links    link.Facts            // of the host
	Disks    map[string]block.Disk // by name of an io entry
	Devices  []device.Granted      // the devices for which the spec's entries stand
	Limited  []device.Disk         // the disks with limits, and how to recognise them after they are unplugged
	Gateways gateway.Set           // the gateways that this berth has
	Mounts   []gateway.Source      // the sources of the spec's mounts, in the same order
	Scratch  []scratch.Source      // where its scratch volumes are made, in the same order
	Root     image.HostRoot        // of image host
	Site     ids.Site              // which of the host's ids nodes may share; of a node that shares some
	Agent    *membership.Agent     // with which names, MACs and addresses are claimed in the site; nil on a host that is alone
	Resolver string                // the resolv.conf of names.Resolver
	NoQuota  string                // why the delta cannot be limited as the spec asks: see image.ReadLackOfQuota
	Mask     []string              // more files that read as empty inside
	TTY      bool                  // the command gets a terminal
	ForRun   bool                  // the node and its delta end with its command: berth run
}

// Command is the command of a node's process 1, found in its image.
type Command struct {
	Args []string
	Init runner.Init
	User runner.User
	Stop unix.Signal // asks it to end
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
	if err := errors.Join(onSite(n, f.Agent), f.checkInit(n), f.checkOOMScore(n), f.checkUsers(n), f.checkDisks(n), f.checkShares(n), CheckWrites(n, f.Host.Cgroups, f.Disks)); err != nil {
		return nil, err
	}
	steps, err := membership.Claims(f.Agent, n)
	if err != nil {
		return nil, err
	}
	steps = append(steps, f.ids(n)...)
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
	steps = append(steps, delta...)
	return append(steps, scratch.Pools{Dir: f.Layout.Scratch()}.Claims(n, f.Scratch)...), nil
}

// GroupPath returns the path of a node's cgroup, relative to the mount of every hierarchy: in the group of its class.
func GroupPath(l layout.Layout, n *vnode.Node) string {
	return l.StandingCgroup(n.StandingGroup()) + "/" + n.Name
}

// Live returns the steps that make a node run. claims are its claims, done or only planned.
func Live(n *vnode.Node, f Facts, claims []step.Step) ([]step.Step, error) {
	// The admin may have taken back what was allowed, a folder may be another, the host may have booted with other control groups.
	if err := errors.Join(f.checkUsers(n), f.checkShares(n), CheckWrites(n, f.Host.Cgroups, f.Disks)); err != nil {
		return nil, err
	}
	node, err := Range(claims)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", n.Name, err)
	}
	dirs := f.Layout.Node(n.Name)
	groupPath := GroupPath(f.Layout, n)
	// Limits come after the runner's create, because a runtime may reset them there. The command starts later still. An emulator
	// resets nothing, and its create reads and unpacks files: limits come before it.
	limits, err := cgroup.Steps(n, f.Host.Cgroups, groupPath, f.Disks)
	if err != nil {
		return nil, err
	}
	if c := weight.ClassStep(n, f.Host.Cgroups, groupPath); c != nil { // last: an earlier step may make its files appear, as choosing a scheduler does
		limits = append(limits, c)
	}
	groups, err := group.Steps(f.Host.Cgroups, groupPath)
	if err != nil {
		return nil, err
	}
	engines, err := cgroup.Engines(n, f.Host.Cgroups, f.Disks, block.Loans(f.Layout.DiskLoans()), dirs.Run)
	if err != nil {
		return nil, err
	}
	groups = append(groups, engines...)
	if f.Command.Init == runner.Systemd && !n.IsMachine() {
		if d := group.DelegateStep(f.Host.Cgroups, groupPath, node.Base, node.Base); d != nil {
			groups = append(groups, d)
		}
	}
	ways, err := f.ways(n, groupPath)
	if err != nil {
		return nil, err
	}
	served, err := f.serve(n, claims)
	if err != nil {
		return nil, err
	}
	spec, err := f.spec(n, claims, node, groupPath, ways)
	if err != nil {
		return nil, err
	}
	run, err := f.Runner.Steps(spec)
	if err != nil {
		return nil, err
	}
	links, err := link.Live(f.linkInput(n, claims))
	if err != nil {
		return nil, err
	}
	var before, after []step.Step
	for _, w := range ways {
		before, after = append(before, w.Before...), append(after, w.After...)
	}
	volumes := scratch.Opened(scratch.Volumes(claims))
	create := slices.Concat(run.Create, f.devices(n, groupPath, dirs), sysctl.Steps(n, dirs.PIDFile()), limits)
	if n.IsMachine() {
		create = slices.Concat(limits, run.Create, f.devices(n, groupPath, dirs))
	}
	return slices.Concat(groups, volumes, before, create, links, served, after, run.Start), nil
}

// devices returns the steps for the devices that the node's group allows besides the standard ones, and for the record of its
// devices and disks. On v2 the step replaces the runtime's own program.
func (f *Facts) devices(n *vnode.Node, groupPath string, dirs layout.Node) []step.Step {
	var steps []step.Step
	t := device.Table{Devices: slices.Clone(f.Devices), Disks: f.Limited}
	for i := range t.Devices {
		t.Devices[i].Held = n.IsMachine()
	}
	if d := devgroup.Of(f.Host.Cgroups, groupPath); d != nil {
		d.Allow = t.Rules()
		steps = append(steps, d)
	}
	if !t.Empty() {
		steps = append(steps, &device.Record{Path: dirs.Devices(), New: t})
	}
	return steps
}

// spec describes the node to its runner.
func (f *Facts) spec(n *vnode.Node, claims []step.Step, node mounts.IDs, groupPath string, ways []gateway.Way) (runner.Spec, error) {
	dirs := f.Layout.Node(n.Name)
	s := runner.Spec{
		Node: n.Name, Hostname: n.Host(), Init: f.Command.Init, Args: f.Command.Args, Env: runner.MergeEnv(f.Image.Config.Env, n.Env.List()), EnvFrom: n.EnvFrom, NewPrivs: n.NewPrivileges(), KeepPrivs: n.KeepsPrivileges(),
		Cwd: cmp.Or(n.Workdir, f.Image.Config.WorkingDir), User: f.Command.User, Terminal: f.TTY, Stop: f.Command.Stop,
		Content: mounts.Plan{Dir: dirs.Stage(), IDs: node, Root: f.MountedRoot(n)}, Mask: f.Mask,
		RLimits: n.RLimits, OOMScoreAdj: f.oomScore(n), IOIdle: n.Standing().IOPolicy == "idle",
		Groups: runner.Groups{Path: group.Container(f.Host.Cgroups, groupPath), Host: f.Host.Cgroups},
		Dir:    dirs.Run, State: f.Layout.RuntimeState(), PIDFile: dirs.PIDFile(), Log: dirs.RuntimeLog(),
	}
	if n.IsMachine() {
		s.Machine = f.machine(n, claims)
	}
	if s.Init == runner.Systemd {
		s.Cgroup = runner.ReadWrite
	}
	p := &s.Content
	if f.Image.Plain {
		for i, b := range f.Root.Binds() {
			// Staged without submounts: in a user namespace the kernel refuses to leave them out.
			at := filepath.Join(dirs.Stage(), "h"+strconv.Itoa(i))
			p.Stage = append(p.Stage, mounts.Stage{At: at, Source: b.Source, ReadOnly: b.ReadOnly})
			s.Mounts = append(s.Mounts, runner.Mount{Source: at, Target: b.Target, Type: "bind", Options: []string{"bind"}})
		}
	}
	s.Mounts = append(s.Mounts, f.own(f.known(n, claims), p)...)
	staged, huge := hugePageMounts(n, dirs.Stage())
	p.Stage, s.Mounts = append(p.Stage, staged...), append(s.Mounts, huge...)
	var last []runner.Mount
	if n.IsMachine() { // nothing of it is mounted on the host
		s.Machine.Shares = stages(ways)
		return s, nil
	}
	for _, w := range ways {
		if w.Stage != nil {
			p.Stage = append(p.Stage, *w.Stage)
		}
		if w.Mount != nil {
			last = append(last, runner.Mount(*w.Mount))
		}
	}
	for i, v := range scratch.Volumes(claims) {
		at := filepath.Join(dirs.Stage(), "s"+strconv.Itoa(i))
		p.Stage = append(p.Stage, v.Stage(at))
		last = append(last, runner.Mount{Source: at, Target: v.Target, Type: "bind", Options: []string{"rbind", "rprivate"}})
	}
	s.Mounts = append(s.Mounts, withTmpfs(last, n, scratch.InMemory(n, f.Scratch))...)
	for i, d := range f.Devices {
		at := filepath.Join(dirs.Stage(), "d"+strconv.Itoa(i))
		p.Stage = append(p.Stage, mounts.Stage{At: at, Device: &mounts.DeviceNode{Type: d.Type, Major: d.Major, Minor: d.Minor}})
		s.Devices = append(s.Devices, runner.Device{
			Target: d.Path, Source: at, Block: d.Type == "b", Major: int64(d.Major), Minor: int64(d.Minor), Access: d.Access,
		})
	}
	return s, p.Validate()
}

// ways returns how the spec's mounts get into the node.
func (f *Facts) ways(n *vnode.Node, groupPath string) ([]gateway.Way, error) {
	var all []gateway.Way
	for i, m := range n.Mounts {
		gw, err := f.Gateways.Of(n, &m)
		if err != nil {
			return nil, err
		}
		to := gateway.Node{Name: n.Name, UserNS: n.UserNS(), Layout: f.Layout, Cgroups: f.Host.Cgroups, Group: groupPath}
		way, err := gw.Plan(m, f.Mounts[i], to, filepath.Join(f.Layout.Node(n.Name).Stage(), "m"+strconv.Itoa(i)))
		if err != nil {
			return nil, err
		}
		all = append(all, way)
	}
	return all, nil
}

// own adds the node's own files in /etc to the plan, below what the spec mounts there. With image host the runtime mounts
// the host's /etc, so own also returns mounts over its files; only regular files can be covered.
func (f *Facts) own(files []names.File, p *mounts.Plan) []runner.Mount {
	var by []runner.Mount
	for _, own := range files {
		file := mounts.File{Path: "etc/" + own.Name, Text: own.Text}
		if !f.Image.Plain {
			file.Root = p.Root.At
		} else if slices.Contains(f.Root.Files, own.Name) {
			by = append(by, runner.Mount{Source: p.FileAt(len(p.Files)), Target: "/" + file.Path, Type: "bind", Options: []string{"bind"}})
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

// MountedRoot says how the node's root is mounted. Of the facts it reads Layout, Image, Command and ForRun.
func (f *Facts) MountedRoot(n *vnode.Node) mounts.Root {
	dirs := f.Layout.Node(n.Name)
	r := mounts.Root{At: dirs.Root(), NoSUID: n.KeepsPrivileges() || f.Command.Init == runner.NoInit && !n.NewPrivileges()} // on the same condition as no_new_privileges
	r.Packed = f.Image.Packed
	if n.IsMachine() && n.Delta.In != vnode.InMemory {
		return r // its kernel mounts it
	}
	if n.Delta.In == vnode.InMemory {
		r.Lower, r.Memory, r.Size = f.Image.Lowers, true, image.MemorySize(n.Delta, n.Memory)
		if n.IsMachine() {
			r.Size = n.Delta.Size // else half of the guest's memory, as its kernel does it
		}
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
	if err := image.CheckDelta(f.NoQuota); err != nil {
		return nil, err
	}
	if n.Delta.Size != 0 && n.Delta.In != vnode.InMemory && !n.UserNS() {
		return nil, refuse.Cannotf("leave user_namespace or delta.size out, or say delta.in: memory",
			"node %s: delta.size does not hold a node with user_namespace: false, whose root can take files out of their project quota", n.Name)
	}
	if n.IsMachine() {
		if n.Delta.In == vnode.InMemory {
			return nil, nil
		}
		return []step.Step{&scratch.Disk{Path: dirs.Delta(), Size: n.Delta.Size}}, nil
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
	if c, ok := s.(interface{ Own(base, size uint32) }); ok {
		c.Own(r.Base, r.Size)
	}
}

// checkInit refuses a node without a command, and an init system that cannot work on this host.
func (f *Facts) checkInit(n *vnode.Node) error {
	if len(f.Command.Args) == 0 {
		return refuse.Invalidf("node %s: image %s has no command of its own; give one", n.Name, n.Image)
	}
	if f.Command.Init != runner.NoInit && n.User != "" && f.Command.User.UID != 0 {
		return refuse.Invalidf("node %s: user %s: an init system runs as root, and starts its services as their own users", n.Name, n.User)
	}
	if f.Command.Init == runner.Systemd && f.Host.Cgroups.Mode() != "v2" && !n.IsMachine() {
		return refuse.Cannotf("boot the host with systemd.unified_cgroup_hierarchy=1, or use a command or another init",
			"node %s: systemd needs cgroup groups of its own, and on cgroup v1 they cannot be delegated safely (this host: %s)",
			n.Name, f.Host.Cgroups.Mode())
	}
	return image.CheckHost(n)
}

// ClaimKey returns the key of a claim: two claims of one kind and key are the same, even if Do has filled in fields of one of
// them.
func ClaimKey(s step.Step) string {
	if c, ok := s.(interface{ Key() string }); ok {
		return c.Key()
	}
	return s.String()
}
