// Package hostapi does on this host what the API is asked for: it is the Host of package server, and calls package node and the
// packages of images, pools and networks.
package hostapi

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/image"
	"berth/internal/network/sriov"
	"berth/internal/node"
	"berth/internal/node/autostart"
	"berth/internal/node/protect"
	"berth/internal/site/api"
	"berth/internal/spec"
	"berth/internal/spec/roles"
	"berth/internal/spec/vnode"
	"berth/internal/storage/scratch"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
	"berth/internal/sys/version"
)

// Nodes opens the nodes of a layout, with the acts of node.Beside. tell is called at once with what the user who ends a
// node should know.
func Nodes(l layout.Layout, tell func(name, what string)) *node.Berth {
	services := protect.New(l)
	return node.Open(l, node.Beside{
		Weigh:      services.Weigh,
		Tell:       tell,
		RestoreVFs: func(ctx context.Context) ([]string, error) { return sriov.OnHost(l).RestoreVFs(ctx, 0) },
		Repair: func(ctx context.Context) (all []node.Repaired, err error) {
			did, err := services.Repair(ctx)
			for _, d := range did {
				all = append(all, node.Repaired{Node: d.Name, Did: d.Did})
			}
			return all, err
		},
	})
}

// Host is this host. Its nodes are those of a Berth: it adds what the API asks for in another form.
type Host struct {
	*node.Berth
	berth string

	mu     sync.Mutex
	making map[made]int // nodes of templates that are made now, or changed
}

// Open opens the host. berth is the path of the program berth.
func Open(l layout.Layout, berth string) *Host {
	return &Host{making: map[made]int{}, Berth: Nodes(l, func(name, what string) { fmt.Fprintf(os.Stderr, "node %s: %s\n", name, what) }), berth: berth}
}

// Program is the command line of berth for this host's nodes.
func (h *Host) Program() []string { return append([]string{h.berth}, h.Layout.Args()...) }

// Facts are those that other hosts get to know.
func (h *Host) Facts(ctx context.Context) (api.HostFacts, error) {
	f := api.HostFacts{Version: version.Berth, CPUs: runtime.NumCPU()}
	facts, err := host.ReadFacts()
	if err != nil {
		return f, err
	}
	f.Kernel, f.Cgroups = facts.Kernel, facts.Cgroups.Mode()
	if f.Name, err = os.Hostname(); err != nil {
		return f, err
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return f, err
	}
	f.Memory = int64(info.Totalram) * int64(info.Unit)
	all, err := h.List(ctx)
	for _, s := range all {
		f.Nodes++
		if s.Runs() {
			f.Running++
		}
	}
	return f, err
}

// Nodes lists the nodes.
func (h *Host) Nodes(ctx context.Context) ([]node.Status, error) { return h.List(ctx) }

// Node returns a node with its limits; for an owner, there are no nodes but its own.
func (h *Host) Node(ctx context.Context, name string, owner roles.Owner) (*node.Detail, error) {
	d, err := h.Show(ctx, name)
	if err == nil {
		err = h.still(name, owner)
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

// still refuses a node that is not, or no longer, the owner's; "" owns all. What was opened or read of a node before is of the owner's then: another's
// node that came in its place meanwhile would be there now.
func (h *Host) still(name string, owner roles.Owner) error {
	if owner == "" {
		return nil
	}
	labels, err := h.Labels(name)
	if err == nil && roles.OwnerOf(labels) != owner {
		err = refuse.NotFoundf("no node %s", name)
	}
	return err
}

// Labels returns the labels of a node.
func (h *Host) Labels(name string) (map[string]string, error) {
	n, err := h.Spec(name)
	if err != nil {
		return nil, err
	}
	return n.Labels, nil
}

// Apply makes the nodes of a spec. The result has the nodes that are done, also if one fails.
func (h *Host) Apply(ctx context.Context, file string, text []byte, restart bool) ([]*node.Outcome, error) {
	if err := h.Layout.Reachable(); err != nil {
		return nil, err
	}
	nodes, err := spec.ParseHinted(file, text, func(text string) string { return image.Open(h.Layout).Hint(text, "/") })
	if err != nil {
		return nil, err
	}
	var all []*node.Outcome
	var errs []error
	for _, n := range nodes {
		if err := spec.Resolve(n, "/"); err != nil {
			return nil, err
		}
		vnode.Defaults(n)
		o, err := h.Berth.Apply(ctx, n, restart)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, o)
	}
	_, err = autostart.Applied(h.Layout, nodes)
	if err != nil {
		errs = append(errs, err)
	}
	return all, refuse.Join(errs)
}

// of returns the nodes for a caller who may act only on those of this owner; "" may act on all.
func (h *Host) of(owner roles.Owner) *node.Berth {
	if owner == "" {
		return h.Berth
	}
	return h.Guarded(func(s *node.Stored) error {
		if roles.OwnerOf(s.Now.Labels) != owner {
			return refuse.NotFoundf("no node %s", s.Now.Name)
		}
		return nil
	})
}

// mostGrace is how long an owner's stop may wait, unless the node's spec says longer: others' commands for the node wait behind it.
const mostGrace = 5 * time.Minute

// mayWait refuses a longer grace than an owner may ask for.
func (h *Host) mayWait(name string, grace time.Duration, owner roles.Owner) error {
	if owner == "" || grace <= mostGrace {
		return nil
	}
	most := mostGrace
	if n, err := h.Spec(name); err == nil { // else there is nothing to stop
		most = max(most, n.Stop.Wait())
	}
	if grace > most {
		return refuse.Invalidf("grace: an operator may wait at most %s for the end of node %s; an admin, whose template may say stop.grace, any time", most, name)
	}
	return nil
}

// Stop stops a node. For an owner, here and in the acts below, there are no nodes but its own.
func (h *Host) Stop(ctx context.Context, name string, grace time.Duration, owner roles.Owner) (bool, error) {
	if err := h.mayWait(name, grace, owner); err != nil {
		return false, err
	}
	return h.of(owner).Stop(ctx, name, grace)
}

// Restart stops a node and starts it.
func (h *Host) Restart(ctx context.Context, name string, grace time.Duration, owner roles.Owner) (bool, error) {
	if err := h.mayWait(name, grace, owner); err != nil {
		return false, err
	}
	return h.of(owner).Restart(ctx, name, grace)
}

// Start starts a node.
func (h *Host) Start(ctx context.Context, name string, owner roles.Owner) (bool, error) {
	if err := h.Layout.Reachable(); err != nil {
		return false, err
	}
	return h.of(owner).Start(ctx, name)
}

// Remove removes a node.
func (h *Host) Remove(ctx context.Context, name string, force bool, owner roles.Owner) error {
	return h.remove(ctx, h.of(owner), name, force)
}

// RemoveMade removes a node that was made at this time, also if it runs. One that has come in its place is another: NotFound.
func (h *Host) RemoveMade(ctx context.Context, name string, made time.Time) error {
	return h.remove(ctx, h.Guarded(func(*node.Stored) error {
		if at, err := h.Made(name); err != nil || !at.Equal(made) {
			return refuse.NotFoundf("no node %s that was made at %s", name, made.Format(time.RFC3339Nano))
		}
		return nil
	}), name, true)
}

// Ended says how a node that does not run any more ended, with the last line that it wrote if its command did by itself; "" for all others.
func (h *Host) Ended(ctx context.Context, name string) string {
	d, err := h.Show(ctx, name)
	switch {
	case err != nil || d.Restarting:
		return ""
	case d.State == node.Stopped:
		return "it was stopped, or its host was"
	case d.State != node.Exited:
		return ""
	}
	var last strings.Builder
	_ = h.Logs(ctx, name, "", api.Logs{Lines: 1}, &last) // if nothing can be read, nothing is said
	return strings.TrimSuffix(fmt.Sprintf("its command ended with %s: %s", d.Exit, strings.TrimSpace(last.String())), ": ")
}

func (h *Host) remove(ctx context.Context, nodes *node.Berth, name string, force bool) error {
	n, err := h.Spec(name)
	last := err == nil && n.Autostart
	err = nodes.Remove(ctx, name, force)
	if last && err == nil {
		err = autostart.Settle(h.Berth)
	}
	return err
}

// Pools lists the pools of scratch volumes.
func (h *Host) Pools(ctx context.Context) ([]scratch.Listed, error) {
	return scratch.Pools{Dir: h.Layout.Scratch()}.List(ctx)
}

// Functions lists the adapters that have virtual functions.
func (h *Host) Functions(context.Context) ([]sriov.PF, error) { return sriov.OnHost(h.Layout).VFs() }

// Protected lists the protected services.
func (h *Host) Protected(ctx context.Context) ([]protect.Service, error) {
	return protect.New(h.Layout).All(ctx)
}
