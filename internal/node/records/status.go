package records

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"time"

	"berth/internal/image"
	"berth/internal/network/link"
	"berth/internal/node/health"
	"berth/internal/node/history"
	"berth/internal/node/plan"
	"berth/internal/runner"
	"berth/internal/spec/vnode"
	"berth/internal/storage/gateway"
	"berth/internal/sys/file"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/proc"
	"berth/internal/sys/step"
)

// The states of a node.
const (
	Running = "running"
	Paused  = "paused" // berth pause: it runs, and its processes are stopped where they are
	Stopped = history.Stopped
	Exited  = history.Exited
	Damaged = "damaged" // its journal is lost: Nodes.Lost says what to do
)

// Refusal is history's.
type Refusal = history.Refusal

// Status is the status of a node, as of its last start or end. It is a cache for people: commands act on the journals and the
// kernel alone.
type Status struct {
	Name       string        `json:"name"`
	State      string        `json:"state"`
	PID        int           `json:"pid,omitempty"`
	Start      uint64        `json:"pid_start,omitempty"` // clock ticks since boot
	Boot       string        `json:"boot,omitempty"`
	Started    time.Time     `json:"started,omitzero"`
	Ended      time.Time     `json:"ended,omitzero"`
	Exit       *history.Exit `json:"exit,omitempty"`
	Restarts   int           `json:"restarts,omitempty"`
	Restarting bool          `json:"restarting,omitempty"` // its restart policy wants it again; told, never stored
	Refused    *Refusal      `json:"refused,omitempty"`    // why restarts fail, while it is restarting
	Image      string        `json:"image"`
	Runtime    string        `json:"runtime,omitempty"`
	InitKind   string        `json:"init,omitempty"`        // systemd | busybox | sysv, "" for a command
	StopSignal string        `json:"stop_signal,omitempty"` // the spec's or the image's
	Addresses  []string      `json:"addresses,omitempty"`
	UserNS     bool          `json:"user_namespace"`

	Machine *vnode.Machine `json:"machine,omitempty"` // of a node of kind machine

	Health        *health.Health `json:"health,omitempty"` // of a node that runs and has a check; told, never stored
	Labels        vnode.Labels   `json:"labels,omitempty"`
	NewPrivileges bool           `json:"new_privileges,omitempty"` // its spec says no_new_privileges: false

	SharedIDs  string   `json:"shared_ids,omitempty"`     // those of the host that it has as they are
	Unsafe     []string `json:"unsafe_devices,omitempty"` // that its spec forces on it
	Foreground *proc.ID `json:"foreground,omitempty"`     // the berth run that it belongs to

	Wires    []link.Wire `json:"interfaces,omitempty"` // how it is connected
	MaySpoof []string    `json:"may_spoof,omitempty"`  // interfaces that its spec does not hold to their own addresses
	Ending   bool        `json:"-"`                    // its process 1 has ended a moment ago, and how is not noted yet
	Trouble  []string    `json:"trouble,omitempty"`    // faults of its connections now: "eth0: not connected: bridge br0 is gone"

	Lost []string `json:"lost,omitempty"` // values that another program has changed: "cpu.max is max, not 1.5"; told by berth ls, never stored

	Served []gateway.Served `json:"served,omitempty"` // mounts that daemons serve
}

// Runs reports whether the node has a process 1: it is running or paused.
func (s *Status) Runs() bool { return s.State == Running || s.State == Paused }

// Noted is the status as it was written last.
func (r Nodes) Noted(name string) (Status, error) {
	var s Status
	text := jsonfile.File{Path: r.Layout.Node(name).Status(), Is: "what became of node " + name, Remedy: "the node's next start writes it anew"}
	err := text.Read(&s)
	return s, err
}

// Note writes the status; it is never worth failing a node's life for.
func (r Nodes) Note(s Status) {
	_ = file.WriteJSONForBoot(r.Layout.Node(s.Name).Status(), s)
}

// List returns the status of every node, in the order of their names, as the kernel has it now.
func (r Nodes) List(context.Context) ([]Status, error) {
	names, err := r.Names()
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
				part[i] = r.Status(part[i].Name, boot)
			}
		})
	}
	wg.Wait()
	if err := r.findTrouble(all); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(s Status) bool { return s.Name == "" }), nil
}

// Status reads one node's status, as the kernel has it in this boot; the zero Status if it was removed meanwhile.
func (r Nodes) Status(name, boot string) Status {
	s, err := r.Noted(name)
	was := s.State
	if err == nil {
		if s.State = s.now(boot); s.Runs() {
			if s.State == Paused && !r.Frozen(name) { // another program let it go on
				s.State = Running
			}
			s.Health = health.Read(r.Layout.Node(name).Health(), proc.ID{PID: s.PID, Start: s.Start})
			return s
		}
	}
	// It runs all the same if the command that started it was killed, or the disk was full, before that was noted.
	f, fateErr := r.Fate(name)
	if j, liveErr := r.Live(name); liveErr == nil && j.Phase == step.Up && fateErr == nil && f.Claims.Phase == step.Up {
		if init := runner.FirstProcess(j.Steps()); init != nil && init.First().Alive() {
			return r.StatusFrom(name, init, j)
		}
	}
	if err != nil {
		switch {
		case r.Lost(name) != nil:
			return Status{Name: name, State: Damaged, UserNS: true}
		case errors.Is(fateErr, fs.ErrNotExist):
			return Status{}
		case f.Last == nil && (fateErr != nil || f.Claims.Phase != step.Up): // being made, or half made by a killed command
			return Status{Name: name, State: string(step.Creating), UserNS: true}
		}
		s = r.unnoted(name) // lost in a power cut: the status is only a copy
	}
	s.Name = name
	ran := was == Running || was == Paused
	if f.Last != nil && (!ran || f.Last.Process == proc.ID{PID: s.PID, Start: s.Start}) {
		s.Take(*f.Last) // the written status may be older: the disk was full
	} else {
		s.Ending = ran && s.State == Exited
	}
	if spec, err := r.Stored(name); err == nil {
		s.Restarting = f.Due(spec.Now.Restart, boot) > 0
	}
	if !s.Restarting {
		s.Refused = nil
	}
	return s
}

// unnoted is the status of a node that does not run, as far as its spec tells it.
func (r Nodes) unnoted(name string) Status {
	s := Status{Name: name, State: Stopped, UserNS: true}
	if spec, err := r.Stored(name); err == nil {
		n := spec.Now
		s.Image, s.Machine, s.UserNS, s.Labels, s.Unsafe = n.Image.String(), n.AsMachine(), n.UserNS(), n.Labels, UnsafeDevices(n)
		s.NewPrivileges, s.SharedIDs, s.MaySpoof = n.NewPrivileges(), vnode.Extents(n.SharedIDs()), maySpoof(n)
	}
	return s
}

// now returns the node's status now: the one that was written, checked against the kernel.
func (s *Status) now(boot string) string {
	if s.Runs() && (s.Boot != boot || !proc.ID{PID: s.PID, Start: s.Start}.Alive()) {
		if s.Boot != boot {
			return Stopped
		}
		return Exited
	}
	return s.State
}

// Take copies into the status how a node ended.
func (s *Status) Take(last history.End) {
	s.State, s.Ended, s.Exit, s.Restarts, s.Refused = last.State, last.Ended, last.Exit, last.Restarts, nil
	if last.Refused.Times > 0 {
		s.Refused = &last.Refused
	}
	if last.Process.PID != 0 {
		s.PID, s.Start, s.Boot, s.Started = last.Process.PID, last.Process.Start, last.Boot, last.Started
	}
}

// StatusOf is the status of a node that runs, whose live journal is j.
func (r Nodes) StatusOf(n *vnode.Node, f plan.Facts, init runner.Holder, j *step.Journal, is history.Fate) Status {
	s := Status{
		Name: n.Name, State: Running, PID: init.First().PID, Start: init.First().Start, Boot: j.Boot,
		Machine: n.AsMachine(), Image: n.Image.String(), Runtime: init.Runner(), UserNS: n.UserNS(), InitKind: string(f.Command.Init), Foreground: is.Owner,
		StopSignal: cmp.Or(n.Stop.Signal, f.Image.Config.StopSignal), Restarts: is.Restarts(), Unsafe: UnsafeDevices(n), Labels: n.Labels, NewPrivileges: n.NewPrivileges(), SharedIDs: vnode.Extents(n.SharedIDs()),
		Addresses: r.Addresses(n), Wires: plan.Wires(n, plan.Facts{Layout: r.Layout}), MaySpoof: maySpoof(n),
	}
	s.Served = gateway.ServedBy(j.Steps())
	s.Started, _ = history.Started(j) // damaged: not known
	if history.IsPaused(j) {
		s.State = Paused
	}
	return s
}

// StatusFrom finds the status of a node that runs in its journals and its spec.
func (r Nodes) StatusFrom(name string, init runner.Holder, j *step.Journal) Status {
	s, err := r.Stored(name)
	if err != nil {
		return Status{Name: name, State: Running, PID: init.First().PID, Start: init.First().Start, Boot: j.Boot}
	}
	f := plan.Facts{}
	if f.Image, err = image.Open(r.Layout).Resolve(s.Now.Image); err == nil {
		f.Command, _ = r.CommandOf(s.Now, f.Image) // without it, only the signal that stops the init is a guess
	}
	is, _ := r.Fate(name) // without it, only its owner and the restarts before are not shown
	return r.StatusOf(s.Now, f, init, j, is)
}

// UnsafeDevices are those that a spec forces on a node.
func UnsafeDevices(n *vnode.Node) []string {
	var all []string
	for _, d := range n.Devices {
		if d.Unsafe {
			all = append(all, d.Path)
		}
	}
	return all
}

// maySpoof names the interfaces of a spec that are not held to their own addresses.
func maySpoof(n *vnode.Node) []string {
	var names []string
	for _, nw := range n.Network {
		if nw.Spoof {
			names = append(names, nw.Name)
		}
	}
	return names
}

// findTrouble notes the faults of the connections of the nodes that run.
func (r Nodes) findTrouble(all []Status) error {
	sight := link.NewSnapshot(r.Hub())
	for i := range all {
		if err := all[i].FindTrouble(sight); err != nil {
			return err
		}
	}
	return nil
}

// FindTrouble notes the faults of the node's connections, if it runs.
func (s *Status) FindTrouble(sight *link.Snapshot) error {
	s.Trouble = nil
	if !s.Runs() {
		return nil
	}
	for _, w := range s.Wires {
		text, err := sight.Trouble(w, s.PID)
		if err != nil {
			return err
		}
		if text != "" {
			s.Trouble = append(s.Trouble, text)
		}
	}
	for _, m := range s.Served {
		if text := m.Trouble(); text != "" {
			s.Trouble = append(s.Trouble, text)
		}
	}
	return nil
}

// Troubled returns the nodes that run and have lost a connection.
func (r Nodes) Troubled(ctx context.Context) ([]Status, error) {
	all, err := r.List(ctx)
	if err != nil {
		return nil, err
	}
	var some []Status
	for _, s := range all {
		if len(s.Trouble) > 0 {
			some = append(some, s)
		}
	}
	return some, nil
}
