package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth/internal/fate"
	"berth/internal/file"
	"berth/internal/health"
	"berth/internal/jsonfile"
	"berth/internal/link"
	"berth/internal/proc"
	"berth/internal/refuse"
	"berth/internal/step"
	"berth/internal/vnode"
)

// Stored is a node's spec as Berth keeps it.
type Stored struct {
	Applied *vnode.Node `json:"applied"` // as apply was given it
	Now     *vnode.Node `json:"now"`     // with what berth set changed since
}

// The states of a node.
const (
	Running = "running"
	Paused  = "paused" // berth pause: it runs, and its processes are stopped where they are
	Stopped = fate.Stopped
	Exited  = fate.Exited
)

// Status is what became of a node, as of its last start or end. It is a cache for people: what a command acts on is
// read from the journals and the kernel.
type Status struct {
	Name       string     `json:"name"`
	State      string     `json:"state"`
	PID        int        `json:"pid,omitempty"`
	Start      uint64     `json:"pid_start,omitempty"` // clock ticks since boot
	Boot       string     `json:"boot,omitempty"`
	Started    time.Time  `json:"started,omitzero"`
	Ended      time.Time  `json:"ended,omitzero"`
	Exit       *fate.Exit `json:"exit,omitempty"`
	Restarts   int        `json:"restarts,omitempty"`
	Restarting bool       `json:"restarting,omitempty"` // its restart policy wants it again; told, never stored
	Image      string     `json:"image"`
	Runtime    string     `json:"runtime,omitempty"`
	InitKind   string     `json:"init,omitempty"`        // systemd | busybox | sysv, "" for a command
	StopSignal string     `json:"stop_signal,omitempty"` // the spec's or the image's
	Addresses  []string   `json:"addresses,omitempty"`
	UserNS     bool       `json:"user_namespace"`

	Health        *health.Health `json:"health,omitempty"` // of a node that runs and has a check; told, never stored
	Labels        vnode.Labels   `json:"labels,omitempty"`
	NewPrivileges bool           `json:"new_privileges,omitempty"` // its spec says no_new_privileges: false

	SharedIDs  string   `json:"shared_ids,omitempty"`     // those of the host that it has as they are
	Unsafe     []string `json:"unsafe_devices,omitempty"` // that its spec forces on it
	Foreground *proc.ID `json:"foreground,omitempty"`     // the berth run that it belongs to

	Wires    []link.Wire `json:"interfaces,omitempty"` // how it is connected
	MaySpoof []string    `json:"may_spoof,omitempty"`  // interfaces that its spec does not hold to their own addresses
	Trouble  []string    `json:"trouble,omitempty"`    // what is wrong with its connections now: "eth0: not connected: bridge br0 is gone"
}

func (b *Berth) stored(name string) (*Stored, error) {
	if name != filepath.Base(name) || strings.HasPrefix(name, ".") { // it becomes part of paths
		return nil, refuse.NotFoundf("%q is not a node's name; berth ls lists the nodes", name)
	}
	var s Stored
	text := jsonfile.File{
		Path: b.Layout.Node(name).Spec(), Is: "the spec of node " + name,
		Remedy: fmt.Sprintf("berth rm --force %s removes the node, berth apply -f FILE makes it again", name),
	}
	err := text.Read(&s)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, refuse.NotFoundf("no node %s; berth ls lists the nodes", name)
	case err == nil && (s.Now == nil || s.Applied == nil):
		return nil, text.Damaged("it holds no spec", nil)
	}
	return &s, err
}

func (b *Berth) store(name string, s *Stored) error {
	if err := file.WriteJSON(b.Layout.Node(name).Spec(), s); err != nil {
		return err
	}
	if st, err := b.status(name); err == nil && !(slices.Equal(st.Unsafe, unsafeDevices(s.Now)) && maps.Equal(st.Labels, s.Now.Labels)) {
		st.Unsafe, st.Labels = unsafeDevices(s.Now), s.Now.Labels
		b.setStatus(st)
	}
	return nil
}

func (b *Berth) status(name string) (Status, error) {
	var s Status
	text := jsonfile.File{Path: b.Layout.Node(name).Status(), Is: "what became of node " + name, Remedy: "the node's next start writes it anew"}
	err := text.Read(&s)
	return s, err
}

// setStatus writes the status; it is never worth failing a node's life for.
func (b *Berth) setStatus(s Status) {
	_ = file.WriteJSON(b.Layout.Node(s.Name).Status(), s)
}

// Runs reports whether the node has a process 1: it is running or paused.
func (s *Status) Runs() bool { return s.State == Running || s.State == Paused }

// state tells what the node is now: the status as written, checked against the kernel.
func (s *Status) now(boot string) string {
	if s.Runs() && (s.Boot != boot || !proc.ID{PID: s.PID, Start: s.Start}.Alive()) {
		if s.Boot != boot {
			return Stopped
		}
		return Exited
	}
	return s.State
}

// replugging is the name of a live change that follows the host's devices, in place of a spec's.
const replugging = "replug"

// settleSet ends a live change whose process was killed: at the new values if the new spec was stored, else at the old.
func (b *Berth) settleSet(ctx context.Context, name string, j *step.Journal) (string, error) {
	s, err := b.stored(name)
	if err != nil {
		return "", err
	}
	if j.Set.Spec == replugging { // done again by whoever looks at the devices next
		return "", j.EndSet()
	}
	if specID(s) == j.Set.Spec {
		return "set was interrupted: the new values are in force", j.EndSet()
	}
	return "set was interrupted: the old values are in force", j.UndoSet(ctx)
}

// specID identifies a stored spec.
func specID(s *Stored) string {
	text, _ := json.Marshal(s) // of plain data: cannot fail
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
