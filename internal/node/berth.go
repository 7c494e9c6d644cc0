// Package node composes a node's life, a file an act (apply.go, set.go, end.go, repair.go …), and is what commands and the agent
// call: locks, journals, phases, state, repair, and the keeper. It is the only place that runs steps; what they are is the
// mechanisms' affair, and in which order the planner's.
package node

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/host/membership"
	"berth/internal/image"
	"berth/internal/limit/device"
	"berth/internal/network/link"
	"berth/internal/network/sriov"
	"berth/internal/node/events"
	"berth/internal/node/inspect"
	"berth/internal/node/keeper"
	"berth/internal/node/mechanisms"
	"berth/internal/node/names"
	"berth/internal/node/nodelog"
	"berth/internal/node/plan"
	"berth/internal/node/records"
	"berth/internal/node/rescue"
	"berth/internal/runner"
	"berth/internal/runner/choose"
	"berth/internal/spec/envfile"
	"berth/internal/spec/vnode"
	"berth/internal/storage/gateway"
	"berth/internal/storage/scratch"
	"berth/internal/storage/siteusers"
	"berth/internal/sys/inherit"
	"berth/internal/sys/layout"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
)

// Berth is the nodes of one host, kept under one root.
type Berth struct {
	records.Nodes
	beside   Beside
	gateways gateway.Set
	logs     *nodelog.Set                // in the keeper, which starts runtimes itself: what nodes write; else nil
	guard    func(*records.Stored) error // nil: none
	hold     *Hold                       // nil: none
	rights   map[string]string           // of the template that nodes are made from; nil: free specs
	byPolicy bool                        // nodes start because their specs say so
}

// Hold keeps the commands of nodes from beginning before a time. The rest of their start is done meanwhile.
type Hold struct {
	Until  time.Time
	Waited time.Duration // how long a command was ready, and did not begin
}

// Holding returns these nodes, whose starts observe a hold.
func (b *Berth) Holding(h *Hold) *Berth {
	own := *b
	own.hold = h
	return &own
}

func (h *Hold) wait(ctx context.Context) error {
	if h == nil || !time.Now().Before(h.Until) {
		return nil
	}
	h.Waited = time.Until(h.Until)
	select {
	case <-time.After(h.Waited):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Granting returns these nodes, made and changed from a template with these rights: see template.Rights.
func (b *Berth) Granting(rights map[string]string) *Berth {
	own := *b
	own.rights = rights
	return &own
}

// Guarded returns these nodes for a caller who may act on some of them only. Each act on an existing node calls guard once it holds
// the node's lock, so that guard judges the very node that the act changes; the error of guard refuses the act.
func (b *Berth) Guarded(guard func(*records.Stored) error) *Berth {
	own := *b
	own.guard = guard
	return &own
}

// allowed asks the guard. With a guard, a node whose spec is damaged refuses every act.
func (b *Berth) allowed(s *records.Stored, damaged error) error {
	if b.guard == nil || damaged != nil {
		return damaged
	}
	return b.guard(s)
}

// Beside has the acts of Berth outside of its nodes that a node's life needs.
type Beside struct {
	// Weigh gives the groups of classes and the protected services their weights again. It is called after a disk was
	// switched to another I/O engine.
	Weigh func(context.Context) error
	// RestoreVFs makes virtual functions again that are gone, because the driver of their adapter was reloaded.
	RestoreVFs func(context.Context) (did []string, err error)
	// Tell is called at once with what the user who ends a node should know: data that a file server did not get, rates
	// that were lifted.
	Tell func(node, what string)
	// Repair completes or undoes what killed commands left of protected services.
	Repair func(context.Context) ([]Repaired, error)
}

// Open opens the nodes of one layout. It makes nothing.
func Open(l layout.Layout, beside Beside) *Berth {
	return &Berth{
		Nodes:  records.Nodes{Layout: l, Host: host.New(), Kinds: mechanisms.Kinds()},
		beside: beside, gateways: gateway.All(),
	}
}

// lockNode locks a node that is there, and completes or undoes what a killed command left of it.
func (b *Berth) lockNode(ctx context.Context, name string) (*lock, error) {
	if name != filepath.Base(name) || strings.HasPrefix(name, ".") {
		return nil, refuse.NotFoundf("%q is not a node's name; berth ls lists the nodes", name)
	}
	if _, err := os.Stat(b.Layout.Node(name).Lib); errors.Is(err, fs.ErrNotExist) {
		return nil, refuse.NotFoundf("no node %s; berth ls lists the nodes", name)
	}
	l, err := b.lock(ctx, name)
	if err != nil {
		return nil, err
	}
	err = b.settle(ctx, name)
	if err == nil {
		s, damaged := b.Stored(name)
		if err = b.allowed(s, damaged); b.guard == nil && refuse.KindOf(err) != refuse.NotFound {
			err = nil // a node whose spec is damaged can be stopped and removed
		}
	}
	if err != nil {
		l.release()
		return nil, err
	}
	return l, nil
}

func (b *Berth) cgroups() (host.Cgroups, error) { return host.ReadCgroups(b.Host.Proc) }

// facts reads what the planner must know of this host to start the node, and frees this process of what the node would inherit from its
// caller: what cannot be taken off is refused before anything is changed.
func (b *Berth) facts(ctx context.Context, n *vnode.Node) (plan.Facts, error) {
	if err := inherit.Free(); err != nil {
		return plan.Facts{}, err
	}
	return b.factsKnowing(ctx, n, device.Table{})
}

// factsKnowing is facts for a node that has devices already, unless known is empty.
func (b *Berth) factsKnowing(ctx context.Context, n *vnode.Node, known device.Table) (plan.Facts, error) {
	f := plan.Facts{Layout: b.Layout, Gateways: b.gateways}
	if err := plan.Supported(n); err != nil {
		return f, err
	}
	if os.Geteuid() != 0 {
		return f, refuse.Cannotf("run berth as root", "only root can make nodes")
	}
	if err := b.Layout.Make(); err != nil {
		return f, err
	}
	var err error
	if f.Host, err = hostFacts(n); err != nil {
		return f, err
	}
	if f.SiteID, err = rescue.SiteID(b.Nodes); err != nil {
		return f, err
	}
	member, err := membership.Read(b.Layout)
	if err != nil {
		return f, err
	}
	f.Agent = membership.AgentOf(b.Layout, member)
	if f.Runner, err = choose.New(b.Layout, mechanisms.Of(n)).Fastest(ctx); err != nil {
		return f, err
	}
	if f.Image, err = image.Open(b.Layout).Resolve(n.Image); err != nil {
		return f, err
	}
	if f.Image.Plain {
		if f.Root, err = image.ReadHostRoot("/"); err != nil {
			return f, err
		}
	}
	if f.Command, err = b.CommandOf(n, f.Image); err != nil {
		return f, err
	}
	if f.Site, err = siteusers.Of(b.Layout, n); err != nil {
		return f, err
	}
	if _, err := envfile.Secret(n.EnvFrom); err != nil { // read again by the process that starts the runtime
		return f, err
	}
	f.Resolver = names.Resolver("/")
	if !n.IsMachine() { // its delta is a disk, which has its size
		f.NoQuota = image.ReadLackOfQuota(n.Delta, b.Layout.LibNodes())
	}
	f.Mask = b.Host.HeatCounters()
	if f.Links, err = link.ReadFacts(n.Network, n.Standing().NetPriority, sriov.Leases(b.Layout.VFLeases())); err != nil {
		return f, err
	}
	if err = f.Links.ReadClaims(plan.LinkInput(n, f, nil)); err != nil {
		return f, err
	}
	if err = inspect.FindDevices(&f, b.Host, n, known); err != nil {
		return f, err
	}
	if f.Scratch, err = (scratch.Pools{Dir: b.Layout.Scratch()}).Look(n); err != nil {
		return f, err
	}
	for _, m := range n.Mounts {
		gw, err := f.Gateways.Of(n, &m)
		if err != nil {
			return f, err
		}
		r, err := gw.Look(ctx, m, gateway.Node{Name: n.Name, UserNS: n.UserNS(), Layout: b.Layout})
		if err != nil {
			return f, err
		}
		f.Mounts = append(f.Mounts, r)
	}
	return f, nil
}

// hostFacts reads the facts of the host, and those that only some nodes ask for.
func hostFacts(n *vnode.Node) (host.Facts, error) {
	f, err := host.ReadFacts()
	if err == nil && len(n.HugePages) > 0 {
		f.Cgroups.ReadHugeFree()
	}
	return f, err
}

func (b *Berth) keeper() keeper.Client { return keeper.Client{Layout: b.Layout} }

// launcher is how this process starts runtimes: by the keeper, unless it is the keeper.
func (b *Berth) launcher(name string) func(context.Context, *runner.Launch) error {
	if b.logs == nil {
		// The keeper is the parent of the runtime, so that it learns how the node's process 1 ends.
		return func(ctx context.Context, l *runner.Launch) error {
			return b.keeper().Create(ctx, name, l, [4]*os.File{l.Stdin, l.Stdout, l.Stderr, l.Lock})
		}
	}
	return func(ctx context.Context, l *runner.Launch) error {
		if err := b.logs.Open(name, b.log(name)); err != nil {
			return err
		}
		return mechanisms.Create(ctx, l)
	}
}

// exitStatus learns how an ended init ended: from the keeper, its parent, or else from the kernel. In this order, as only a
// parent is told that an init powered its namespace off (SIGINT, reboot(2)): the pidfd has the SIGKILL that followed.
func (b *Berth) exitStatus(ctx context.Context, name string, first proc.ID, pidfd *os.File) (e keeper.Ending) {
	if b.keeper().Runs() {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		told, err := b.keeper().Exit(ctx, name, first.PID)
		if err == nil && told.Known {
			return keeper.Ending{Status: told.Status, Known: true}
		}
		e.After = told.After
	} else if pidfd == nil {
		e.After = b.keeper().Acted()
	}
	if pidfd != nil {
		e.Status, e.Known = proc.Exit(pidfd, first)
	}
	return e
}

// lastKnown is the last moment at which a node is known to have run, beside those given: it wrote to its output, which
// the kernel notes in the inode of the pipe, and a node cannot change that.
func (b *Berth) lastKnown(name string, times ...time.Time) (last time.Time) {
	var st unix.Stat_t
	if unix.Stat(b.Layout.Node(name).LogPipe(), &st) == nil {
		times = append(times, time.Unix(st.Ctim.Unix()))
	}
	for _, t := range times {
		if t.After(last) {
			last = t
		}
	}
	return last
}

// Events is the file of what happens to nodes.
func (b *Berth) Events() events.File { return events.File{Dir: b.Layout.Events()} }

// closeAll closes the files that are there.
func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}
