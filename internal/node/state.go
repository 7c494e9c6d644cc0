package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/jsonfile"
	"berth/internal/link"
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
	Stopped = "stopped" // berth stop, or a reboot
	Exited  = "exited"  // its process 1 ended by itself
)

// Status is what became of a node, as of its last start or end. It is a cache for people: what a command acts on is
// read from the journals and the kernel.
type Status struct {
	Name       string    `json:"name"`
	State      string    `json:"state"`
	PID        int       `json:"pid,omitempty"`
	Start      uint64    `json:"pid_start,omitempty"` // clock ticks since boot
	Boot       string    `json:"boot,omitempty"`
	Started    time.Time `json:"started,omitzero"`
	Ended      time.Time `json:"ended,omitzero"`
	Exit       *Exit     `json:"exit,omitempty"`
	Restarts   int       `json:"restarts,omitempty"`
	Restarting bool      `json:"restarting,omitempty"` // its restart policy wants it again; told, never stored
	Image      string    `json:"image"`
	Runtime    string    `json:"runtime,omitempty"`
	InitKind   string    `json:"init,omitempty"`        // systemd | busybox | sysv, "" for a command
	StopSignal string    `json:"stop_signal,omitempty"` // the image's
	Addresses  []string  `json:"addresses,omitempty"`
	UserNS     bool      `json:"user_namespace"`
	Unsafe     []string  `json:"unsafe_devices,omitempty"` // that its spec forces on it
	Foreground *holder   `json:"foreground,omitempty"`     // the berth run that it belongs to

	Wires    []link.Wire `json:"interfaces,omitempty"` // how it is connected
	MaySpoof []string    `json:"may_spoof,omitempty"`  // interfaces that its spec does not hold to their own addresses
	Trouble  []string    `json:"trouble,omitempty"`    // what is wrong with its connections now: "eth0: not connected: bridge br0 is gone"
}

// Exit is how a node's process 1 ended.
type Exit struct {
	Code    int    `json:"code"`              // 128 + signal where a signal ended it
	Signal  string `json:"signal,omitempty"`  // SIGKILL …
	OOM     bool   `json:"oom,omitempty"`     // the kernel killed for lack of memory inside the node
	Unknown bool   `json:"unknown,omitempty"` // nobody was there to see, and this kernel does not tell afterwards
	// Where nobody saw it end: the last moment at which it is known to have run. Status.Ended is when it was found.
	After time.Time `json:"after,omitzero"`
}

func (e *Exit) String() string {
	switch {
	case e == nil:
		return ""
	case e.Unknown:
		return "unknown"
	case e.OOM:
		return strconv.Itoa(e.Code) + " (out of memory)"
	case e.Signal != "":
		return strconv.Itoa(e.Code) + " (" + e.Signal + ")"
	}
	return strconv.Itoa(e.Code)
}

// failed reports whether restart policy on-failure applies.
func (e *Exit) failed() bool { return e.Unknown || e.Code != 0 }

func exitFrom(ws unix.WaitStatus, known, oom bool) *Exit {
	switch {
	case !known:
		return &Exit{Unknown: true, OOM: oom, Code: 255}
	case ws.Signaled():
		return &Exit{Code: 128 + int(ws.Signal()), Signal: unix.SignalName(ws.Signal()), OOM: oom}
	}
	return &Exit{Code: ws.ExitStatus(), OOM: oom}
}

// holder names the process of a berth run.
type holder struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
}

func (b *Berth) stored(name string) (*Stored, error) {
	if name != filepath.Base(name) || strings.HasPrefix(name, ".") { // it becomes part of paths
		return nil, refuse.NotFoundf("%q is not a node's name; berth ls lists the nodes", name)
	}
	var s Stored
	file := jsonfile.File{
		Path: b.Layout.Node(name).Spec(), Is: "the spec of node " + name,
		Remedy: fmt.Sprintf("berth rm --force %s removes the node, berth apply -f FILE makes it again", name),
	}
	err := file.Read(&s)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, refuse.NotFoundf("no node %s; berth ls lists the nodes", name)
	case err == nil && (s.Now == nil || s.Applied == nil):
		return nil, file.Damaged("it holds no spec", nil)
	}
	return &s, err
}

func (b *Berth) store(name string, s *Stored) error {
	if err := writeJSON(b.Layout.Node(name).Spec(), s); err != nil {
		return err
	}
	if st, err := b.status(name); err == nil && !slices.Equal(st.Unsafe, unsafeDevices(s.Now)) {
		st.Unsafe = unsafeDevices(s.Now)
		b.setStatus(st)
	}
	return nil
}

func (b *Berth) status(name string) (Status, error) {
	var s Status
	file := jsonfile.File{Path: b.Layout.Node(name).Status(), Is: "what became of node " + name, Remedy: "the node's next start writes it anew"}
	err := file.Read(&s)
	return s, err
}

// setStatus writes the status; it is never worth failing a node's life for.
func (b *Berth) setStatus(s Status) {
	_ = writeJSON(b.Layout.Node(s.Name).Status(), s)
}

// state tells what the node is now: the status as written, checked against the kernel.
func (s *Status) now(boot string) string {
	if s.State == Running && (s.Boot != boot || !alive(s.PID, s.Start)) {
		if s.Boot != boot {
			return Stopped
		}
		return Exited
	}
	return s.State
}

// unwritten ends the name of a file that is being written.
const unwritten = ".tmp"

// writeJSON replaces the file at once: a reader sees the old text or the new one. The caller holds the node's lock, so
// one temporary name does, and a killed writer leaves nothing that the next one would not overwrite.
func writeJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	tmp := path + unwritten
	err = os.WriteFile(tmp, data, 0o600)
	if err == nil {
		step.Fault("written " + filepath.Base(tmp))
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
		return fmt.Errorf("write %s: %w", path, err)
	}
	step.Fault("written " + filepath.Base(path))
	return nil
}
