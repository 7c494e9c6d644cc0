package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"berth/internal/cgroup"
	"berth/internal/counters"
	"berth/internal/detail"
	"berth/internal/health"
	"berth/internal/image"
	"berth/internal/limit"
	"berth/internal/link"
	"berth/internal/mounts"
	"berth/internal/plan"
	"berth/internal/proc"
	"berth/internal/refuse"
	"berth/internal/rlimit"
	"berth/internal/runner"
	"berth/internal/scratch"
	"berth/internal/shape"
	"berth/internal/spec"
	"berth/internal/standing"
	"berth/internal/step"
	"berth/internal/vnode"
)

// List returns the status of every node, in the order of their names, as the kernel has it now.
func (b *Berth) List(context.Context) ([]Status, error) {
	names, err := b.names()
	if err != nil {
		return nil, err
	}
	boot, err := step.BootID()
	if err != nil {
		return nil, fmt.Errorf("read the boot id: %w", err)
	}
	all := make([]Status, len(names))
	for i, name := range names {
		all[i].Name = name
	}
	var wg sync.WaitGroup
	for part := range slices.Chunk(all, 64) {
		wg.Go(func() {
			for i := range part {
				part[i] = b.Status(part[i].Name, boot)
			}
		})
	}
	wg.Wait()
	if err := b.findTrouble(all); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(s Status) bool { return s.Name == "" }), nil
}

// Status reads one node's status, as the kernel has it in this boot; the zero Status if it was removed meanwhile.
func (b *Berth) Status(name, boot string) Status {
	s, err := b.status(name)
	was := s.State
	if err == nil {
		if s.State = s.now(boot); s.Runs() {
			if s.State == Paused && !b.frozen(name) { // somebody else let it go on
				s.State = Running
			}
			s.Health = health.Read(b.Layout.Node(name).Health(), proc.ID{PID: s.PID, Start: s.Start})
			return s
		}
	}
	// It runs all the same if the command that started it was killed, or the disk was full, before that was noted.
	f, fateErr := b.fate(name)
	if j, liveErr := b.liveJournal(name); liveErr == nil && j.Phase == step.Up && fateErr == nil && f.Claims.Phase == step.Up {
		if init := runner.FirstProcess(j.Steps()); init != nil && init.First().Alive() {
			return b.statusFrom(name, init, j)
		}
	}
	if err != nil && f.Last == nil { // being made, or half made by a killed command
		if errors.Is(fateErr, fs.ErrNotExist) {
			return Status{}
		}
		return Status{Name: name, State: string(step.Creating), UserNS: true}
	}
	s.Name = name
	if f.Last != nil && (was != Running && was != Paused || f.Last.Process == proc.ID{PID: s.PID, Start: s.Start}) {
		s.take(*f.Last) // what is written may be older: the disk was full
	}
	if spec, err := b.stored(name); err == nil {
		s.Restarting = f.Due(spec.Now.Restart, boot) > 0
	}
	return s
}

// Detail is what berth show tells of one node.
type Detail struct {
	Status
	detail.Within
	Hostname string          `json:"hostname"`
	Phase    string          `json:"phase"` // of its live journal; "down" if it does not run
	Command  []string        `json:"command,omitempty"`
	IDs      string          `json:"ids"` // the node's ids as the host has them
	Cgroup   string          `json:"cgroup"`
	Links    []detail.Link   `json:"links,omitempty"`
	Devices  []detail.Device `json:"devices,omitempty"`
	Limits   []limit.Limit   `json:"limits,omitempty"`
	Scratch  []scratch.Place `json:"scratch,omitempty"`
	Usage    *counters.Usage `json:"usage,omitempty"`
}

// Show tells everything of one node.
func (b *Berth) Show(_ context.Context, name string) (*Detail, error) {
	s, err := b.stored(name)
	if err != nil {
		return nil, err
	}
	boot, err := step.BootID()
	if err != nil {
		return nil, err
	}
	n := s.Now
	d := &Detail{
		Status: b.Status(name, boot), Hostname: n.Host(), Phase: "down", Command: n.Command,
		IDs: detail.IDs(b.Layout, n), Cgroup: b.groupPath(name),
	}
	img, _ := image.Open(b.Layout).Resolve(n.Image) // without it, the spec's own words are shown
	if len(d.Command) == 0 {
		d.Command = img.Config.Command()
	}
	if j, err := b.liveJournal(name); err == nil {
		d.Phase = string(j.Phase)
	}
	_, initErr := b.liveInit(name)
	var claims []step.Step
	if j, err := b.claims(name); err == nil {
		claims = j.Steps()
	}
	macs := link.MACs(claims)
	d.Scratch = scratch.Pools{Dir: b.Layout.Scratch()}.Places(b.host.Sys, n, scratch.Volumes(claims))
	d.Links, d.Within = detail.Links(b.Layout, n, macs, initErr == nil), detail.Inside(n, img.Config.User)
	if err := d.findTrouble(link.NewSnapshot(b.hub())); err != nil {
		return nil, err
	}
	return d, b.showLimits(n, d, initErr == nil)
}

func (b *Berth) showLimits(n *vnode.Node, d *Detail, running bool) error {
	cg, err := b.cgroups()
	if err != nil {
		return err
	}
	known, err := b.table(n.Name)
	if err != nil {
		return err
	}
	var dev *mounts.Running
	if in, err := b.running(n.Name); err == nil {
		dev = &in
	}
	d.Devices = detail.Devices(b.Layout, n, cg, known, running, dev)
	if !running {
		known = b.absent(n)
	}
	here, where, err := b.present(n, cg, known)
	if err != nil {
		return err
	}
	defer func() { d.Limits = append(d.Limits, detail.GoneLimits(n, here)...) }()
	limits, err := cgroup.Held(here, cg, d.Cgroup, where)
	if err != nil {
		return err
	}
	rates, err := plan.Rates(n, plan.Facts{Layout: b.Layout})
	if err != nil {
		return err
	}
	class, err := standing.Show(b.host, n, cg, d.Cgroup, d.PID, running)
	if err != nil {
		return err
	}
	priorities, err := detail.Priorities(b.Layout, n, running)
	if err != nil {
		return err
	}
	pid := 0
	if running {
		pid = d.PID
	}
	rlimits, err := rlimit.Read(n, pid)
	if err != nil {
		return err
	}
	defer func() { d.Limits = slices.Concat(d.Limits, priorities, rlimits, class) }()
	if !running {
		for _, l := range limits {
			d.Limits = append(d.Limits, l.Limit)
		}
		for _, r := range rates {
			d.Limits = append(d.Limits, r.Limit)
		}
		return nil
	}
	usage := counters.Stats(cg, d.Cgroup)
	d.Usage = &usage
	if d.Limits, err = cgroup.Read(limits); err != nil {
		return err
	}
	shown, err := shape.ReadRates(rates)
	d.Limits = append(d.Limits, shown...)
	return err
}

// Specs returns the specs of all nodes, as they are now. One that is being made or removed is left out.
func (b *Berth) Specs() ([]*vnode.Node, error) {
	names, err := b.names()
	if err != nil {
		return nil, err
	}
	var all []*vnode.Node
	for _, name := range names {
		if s, err := b.stored(name); err == nil {
			all = append(all, s.Now)
		}
	}
	return all, nil
}

// Spec is the node's spec as it is now, with what berth set changed.
func (b *Berth) Spec(name string) (*vnode.Node, error) {
	s, err := b.stored(name)
	if err != nil {
		return nil, err
	}
	return s.Now, nil
}

// SpecText is Spec as YAML.
func (b *Berth) SpecText(name string) ([]byte, error) {
	n, err := b.Spec(name)
	if err != nil {
		return nil, err
	}
	return spec.Marshal(n)
}

// ImageUsers names the nodes that use an image of the store by its name, or one of the layers: by what they were started
// with if they run, else by what they would start with.
func (b *Berth) ImageUsers(name string, layers []string) ([]string, error) {
	nodes, err := b.names()
	if err != nil {
		return nil, err
	}
	var users []string
	for _, n := range nodes {
		s, err := b.stored(n)
		if refuse.KindOf(err) == refuse.NotFound {
			continue // being made or removed
		}
		if err != nil { // a node whose spec is damaged may run, and cannot start
			c, noInit := b.createdInit(n)
			switch {
			case noInit == nil && holds(c.Layers(), layers):
				users = append(users, n)
			case noInit != nil && !errors.Is(noInit, fs.ErrNotExist) && !errors.Is(noInit, errRebooted):
				return nil, fmt.Errorf("which image node %s uses is not known: %w", n, errors.Join(err, noInit))
			}
			continue
		}
		if k := s.Now.Image.Kind; k != vnode.HostImage && k != vnode.DirImage && b.usesImage(s.Now, name, layers) {
			users = append(users, n)
		}
	}
	return users, nil
}

func (b *Berth) usesImage(n *vnode.Node, name string, layers []string) bool {
	store := image.Open(b.Layout)
	if r, err := store.Get(n.Image.Ref); err == nil && n.Image.Kind == vnode.OCIImage && r.Name == name {
		return true
	}
	var lowers []string
	if c, err := b.createdInit(n.Name); err == nil {
		lowers = c.Layers()
	} else if img, err := store.Resolve(n.Image); err == nil { // else it cannot start anyway
		lowers = append(img.Lowers, img.Layers...)
	}
	return holds(lowers, layers)
}

// holds reports whether one of the layers is among a node's lower folders.
func holds(lowers, layers []string) bool {
	return slices.ContainsFunc(layers, func(l string) bool {
		return slices.ContainsFunc(lowers, func(dir string) bool { return dir == l || filepath.Base(dir) == strings.TrimPrefix(l, "sha256:") })
	})
}
