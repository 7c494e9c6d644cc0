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
	"berth/internal/gateway"
	"berth/internal/ids"
	"berth/internal/image"
	"berth/internal/link"
	"berth/internal/plan"
	"berth/internal/spec"
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
	var wg sync.WaitGroup
	for part := range slices.Chunk(indexes(len(names)), 64) {
		wg.Go(func() {
			for _, i := range part {
				all[i] = b.statusNow(names[i], boot)
			}
		})
	}
	wg.Wait()
	if err := b.findTrouble(all); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(s Status) bool { return s.Name == "" }), nil
}

func indexes(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// statusNow reads one node's status; the zero Status if it was removed meanwhile.
func (b *Berth) statusNow(name, boot string) Status {
	s, err := b.status(name)
	if err == nil {
		if s.State = s.now(boot); s.State == Running {
			return s
		}
	}
	// It runs all the same if the command that started it was killed, or the disk was full, before that was noted.
	if init, initErr := b.liveInit(name); initErr == nil {
		if claims, claimsErr := b.claims(name); claimsErr == nil && claims.Phase == step.Up {
			return b.statusFrom(name, init, boot)
		}
	}
	if err != nil { // being made, or half made by a killed command
		if _, err := b.claims(name); errors.Is(err, fs.ErrNotExist) {
			return Status{}
		}
		return Status{Name: name, State: string(step.Creating), UserNS: true}
	}
	s.Restarting = b.restartOf(name, s, false) > 0
	return s
}

// Detail is what berth show tells of one node.
type Detail struct {
	Status
	Hostname string         `json:"hostname"`
	Phase    string         `json:"phase"` // of its live journal; "down" if it does not run
	Command  []string       `json:"command,omitempty"`
	IDs      string         `json:"ids"` // the node's ids as the host has them
	Cgroup   string         `json:"cgroup"`
	Links    []LinkDetail   `json:"links,omitempty"`
	Exposed  []Exposed      `json:"exposed,omitempty"`
	Devices  []DeviceDetail `json:"devices,omitempty"`
	Limits   []cgroup.Shown `json:"limits,omitempty"`
	Usage    *cgroup.Usage  `json:"usage,omitempty"`
}

// Exposed is a mount whose source the host's users can reach: what the node leaves there may give them root's rights.
type Exposed struct {
	Source string `json:"source"`
	Target string `json:"target"`
	Why    string `json:"why"`
}

// exposed lists the mounts of a node that are exposed now. A source that cannot be looked at is none.
func exposed(n *vnode.Node) (all []Exposed) {
	for _, m := range n.Mounts {
		if why, err := gateway.Exposed(m, n.UserNS()); err == nil && why != "" {
			all = append(all, Exposed{Source: m.Source, Target: m.Target, Why: why})
		}
	}
	return all
}

// LinkDetail is one interface, as the kernel has it while the node runs.
type LinkDetail struct {
	Mode string `json:"mode"`
	link.State
	Lease *LeaseDetail `json:"lease,omitempty"` // what it has by DHCP
	Spoof *SpoofDetail `json:"spoof,omitempty"`
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
		Status: b.statusNow(name, boot), Hostname: n.Host(), Phase: "down", Command: n.Command,
		IDs: "none: root inside is root outside", Cgroup: b.groupPath(name),
	}
	if r, ok, err := ids.Of(b.Layout.IDs(), name); err == nil && ok {
		d.IDs = r.String()
	}
	if len(d.Command) == 0 {
		if img, err := image.Open(b.Layout).Resolve(n.Image); err == nil {
			d.Command = img.Config.Command()
		}
	}
	if j, err := b.liveJournal(name); err == nil {
		d.Phase = string(j.Phase)
	}
	_, initErr := b.liveInit(name)
	d.Links, d.Exposed = b.linkDetails(n, initErr == nil), exposed(n)
	if err := d.findTrouble(link.Look(b.hub())); err != nil {
		return nil, err
	}
	return d, b.showLimits(n, d, initErr == nil)
}

func (b *Berth) linkDetails(n *vnode.Node, running bool) []LinkDetail {
	macs := map[string]string{}
	if j, err := b.claims(n.Name); err == nil {
		macs = link.MACs(j.Steps())
	}
	var all []LinkDetail
	for _, nw := range n.Network {
		if nw.Mode == vnode.None {
			continue
		}
		l := LinkDetail{Mode: string(nw.Mode), State: link.State{Name: nw.Name, MAC: macs[nw.Name], MTU: nw.MTU, Address: nw.Address}}
		if running {
			dirs := b.Layout.Node(n.Name)
			if st, err := link.Read(link.NS{Pin: dirs.NetNS(), PIDFile: dirs.PIDFile()}, nw.Name); err == nil {
				l.State = st
			}
			if nw.DHCP {
				l.Lease = b.leaseDetail(n.Name, nw.Name)
			}
		}
		l.Spoof = b.spoofDetail(n, macs, nw, running)
		all = append(all, l)
	}
	return all
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
	d.Devices = b.deviceDetails(n, cg, known, running)
	if !running {
		known = absent(n)
	}
	here, where, err := b.present(n, cg, known)
	if err != nil {
		return err
	}
	defer func() { d.Limits = append(d.Limits, goneLimits(n, here)...) }()
	limits, err := cgroup.Held(here, cg, d.Cgroup, where)
	if err != nil {
		return err
	}
	rates, err := plan.Rates(n, plan.Facts{Layout: b.Layout})
	if err != nil {
		return err
	}
	class, err := showClass(n, cg, d, running)
	if err != nil {
		return err
	}
	priorities, err := b.showPriorities(n, running)
	if err != nil {
		return err
	}
	pid := 0
	if running {
		pid = d.PID
	}
	rlimits := cgroup.ReadRLimits(n, pid)
	defer func() { d.Limits = slices.Concat(d.Limits, priorities, rlimits, class) }()
	if !running {
		for _, l := range limits {
			d.Limits = append(d.Limits, cgroup.Shown{Key: l.Key, Asked: l.Asked, HonouredBy: l.Mechanism, Note: l.Note})
		}
		for _, r := range rates {
			d.Limits = append(d.Limits, cgroup.Shown(r.Show()))
		}
		return nil
	}
	usage := cgroup.Stats(cg, d.Cgroup)
	d.Usage = &usage
	if d.Limits, err = cgroup.Read(limits); err != nil {
		return err
	}
	shown, err := link.ReadRates(rates)
	for _, r := range shown {
		d.Limits = append(d.Limits, cgroup.Shown(r))
	}
	return err
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
		if err != nil {
			continue // being made or removed
		}
		if s.Now.Image.Kind != vnode.OCIImage && s.Now.Image.Kind != vnode.OCILayoutImage {
			continue
		}
		if b.usesImage(s.Now, name, layers) {
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
		lowers = c.Launch.Plan.Root.Lower
	} else if img, err := store.Resolve(n.Image); err == nil { // else it cannot start anyway
		lowers = img.Lowers
	}
	return slices.ContainsFunc(layers, func(l string) bool {
		return slices.ContainsFunc(lowers, func(dir string) bool { return filepath.Base(dir) == strings.TrimPrefix(l, "sha256:") })
	})
}
