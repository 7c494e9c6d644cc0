package iosync

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"berth/internal/host"
	"berth/internal/host/block"
	"berth/internal/site/iosync/place"
	"berth/internal/site/iosync/want"
	"berth/internal/sys/file"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/proc"
)

// Gate stops processes of a server at their first receive for a node, has them put into the node's group, and continues them.
// That of package gate links the library that loads programs of BPF, which the program berth, whose command ls is here, is to start
// without.
type Gate interface {
	// Tell tells the gate which node has which address, after the nodes' groups were made.
	Tell(all map[netip.Addr]string) error
	// Anew says that the group of a node is a new one.
	Anew(node string) error
	// Close ends it; nothing stays stopped.
	Close() error
}

// Processes is where a gate puts the processes of a server.
type Processes interface {
	// Put puts a process into a node's group.
	Put(node string, pid int) error
	// Back puts a process that is in a node's group to where its parent is.
	Back(node string, pid int) error
	// Wrong is called with the fault of a process, or of the gate if pid is 0; "" means that the fault is gone.
	Wrong(pid int, what string)
}

// OpenGate opens the gate of the server at a port. dir is a folder for the gate's own notes. wake is called when the gate is lost, which
// Tell says then.
type OpenGate func(port int, dir string, to Processes, wake func(), log *slog.Logger) (Gate, error)

// gated is the way gate: groups, into which each process of the server comes by a gate.
type gated struct {
	*groups
	gate Gate
	anew map[string]bool // nodes whose new group was not told to the gate
}

func newGated(f want.Filesystem, at *place.FS, cg host.Cgroups, loans block.Loans, dir string, before []*kept, open OpenGate, wake func(), log *slog.Logger) (*gated, error) {
	g, err := newGroups(f, at, cg, loans)
	if err != nil {
		return nil, err
	}
	says, err := newGateSays(dir)
	if err != nil {
		return nil, err
	}
	w := &gated{groups: g, anew: map[string]bool{}}
	w.gate, err = open(f.Port, dir, processes{at, says}, wake, log)
	if err != nil {
		says.wrong(0, err.Error())
		return nil, fmt.Errorf("file system %s: %w", f.Name, err)
	}
	// Clients on nodes that an earlier agent served do not wait for the site's answer.
	there, err := at.Nodes()
	known := map[netip.Addr]string{}
	for _, h := range before {
		if slices.Contains(there, h.Node) {
			for _, a := range h.Addresses {
				known[a] = h.Node
			}
		}
	}
	if err == nil {
		err = w.gate.Tell(known)
	}
	if err != nil {
		w.close()
		return nil, fmt.Errorf("file system %s: %w", f.Name, err)
	}
	return w, nil
}

func (g *gated) hold(ctx context.Context, h, was *kept) error {
	if was == nil { // the group is a new one
		g.anew[h.Node] = true
	}
	if g.anew[h.Node] {
		if err := g.gate.Anew(h.Node); err != nil {
			return err
		}
		delete(g.anew, h.Node)
	}
	return g.groups.hold(ctx, h, was)
}

func (g *gated) followed(addresses map[netip.Addr]string, _ bool) error {
	if err := g.gate.Tell(addresses); err != nil {
		return fmt.Errorf("%w: %w", err, ErrAnew)
	}
	return nil
}

func (g *gated) close() { _ = g.gate.Close() } // the kernel has closed it, also after an error

// processes is the side of a gate that moves processes: the gate calls it.
type processes struct {
	*place.FS
	says *gateSays
}

func (p processes) Wrong(pid int, what string) { p.says.wrong(pid, what) }

// gateFile is the file, in the folder of a file system, with the faults of its gate.
const gateFile = "gate"

// gateSays is the content of gateFile.
type gateSays struct {
	Agent proc.ID           `json:"agent"` // the agent that has the gate
	Wrong map[int]gateFault `json:"wrong"` // by process; 0: with the gate

	mu   sync.Mutex
	path string
}

// gateFault is a fault of a process, or of the gate.
type gateFault struct {
	Of   proc.ID `json:"of,omitzero"`
	What string  `json:"what"`
}

func newGateSays(dir string) (*gateSays, error) {
	self, err := proc.Self()
	if err != nil {
		return nil, err
	}
	s := &gateSays{Agent: self, Wrong: map[int]gateFault{}, path: filepath.Join(dir, gateFile)}
	return s, s.write()
}

func (s *gateSays) write() error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return file.WriteForBoot(s.path, append(text, '\n'), 0o644)
}

func (s *gateSays) wrong(pid int, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.Wrong)
	maps.DeleteFunc(s.Wrong, func(_ int, f gateFault) bool { return !f.stands() })
	delete(s.Wrong, pid)
	if what != "" {
		f := gateFault{What: what}
		if pid != 0 {
			var err error
			if f.Of, err = proc.Of(pid); err != nil && !proc.Gone(err) {
				slog.Error("what is wrong with a process is not told", "err", err, "wrong", what)
			}
		}
		if f.stands() {
			s.Wrong[pid] = f
		}
	}
	if what == "" && len(s.Wrong) == before {
		return
	}
	if err := s.write(); err != nil {
		slog.Error("what is wrong with a gate is not told", "err", err, "wrong", what)
	}
}

// stands reports whether the fault still exists: a fault of a process ends with the process.
func (f gateFault) stands() bool { return f.Of == proc.ID{} || f.Of.Alive() }

// gateWrong returns the faults of the gate of a file system, and of the first of its processes; "" if there are none.
func gateWrong(dir string) (string, error) {
	var s gateSays
	err := jsonfile.File{Path: filepath.Join(dir, gateFile), Is: "what a gate says", Remedy: "berthd writes it anew when it starts"}.Read(&s)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !s.Agent.Alive() {
		return "berthd does not run: clients that connect now are not held until it does", nil
	}
	if err != nil {
		return "", err
	}
	maps.DeleteFunc(s.Wrong, func(_ int, f gateFault) bool { return !f.stands() })
	var all []string
	for _, pid := range slices.Sorted(maps.Keys(s.Wrong)) {
		all = append(all, s.Wrong[pid].What)
	}
	most := 1
	if _, ok := s.Wrong[0]; ok {
		most = 2 // the gate, and a process
	}
	if more := len(all) - most; more > 0 {
		all = append(all[:most], fmt.Sprintf("and so with %d more processes", more))
	}
	return strings.Join(all, "; "), nil
}
