// Package gate puts each process of a file server that forks a process for each client into the group of the node that it serves.
//
// A program of BPF sees, in the thread that receives, the first receive of a process over a connection that was accepted at the
// server's port, from the address of a node. It notes the process, and sends it SIGSTOP: the kernel stops all its threads before any
// of them goes back to its own code, so nothing that was received is done yet. The agent moves the whole process into the node's
// group, and continues it. A stopped process never depends on the agent's life: see [Guard].
//
// The program is compiled in advance, so a host needs no compiler: gate.bpf.c is the source and gate.o the object, made by the
// command below with Debian 12's packages clang-14, llvm-14 and libbpf-dev. The kernel needs its BTF (CONFIG_DEBUG_INFO_BTF) and BPF
// trampolines (x86-64: 5.17; arm64: 6.0). Nothing of the gate stays in the kernel when the agent ends, however it ends.
package gate

//go:generate clang-14 -O2 -g -Wall -Werror -target bpf -mcpu=v3 -fdebug-compilation-dir=. -I/usr/include -c gate.bpf.c -o gate.o
//go:generate llvm-strip-14 -g gate.o
//go:generate sh -c "sha256sum gate.bpf.c gate.o > gate.sum"

import (
	_ "embed" // the object
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"

	"berth/internal/sys/bpf/compiled"
	"berth/internal/sys/refuse"
)

//go:embed gate.o
var object []byte

// Groups is where the processes of a server go.
type Groups interface {
	// Put puts a process into a node's group. No error: also if the process has ended.
	Put(node string, pid int) error
	// Back puts a process that is in a node's group to where its parent is.
	Back(node string, pid int) error
	// Wrong is called with the fault of a process, or of the gate if pid is 0; "" means that the fault is gone.
	Wrong(pid int, what string)
}

// Server is a file server with a gate.
type Server struct {
	Port   int
	Dir    string // keeps the numbers of stopped processes for the next agent
	Guard  string // the program that is the guard
	Groups Groups
	Wake   func() // is called when the gate is lost: Tell says why
	Log    *slog.Logger
}

// Gate stops the processes of one server until it is closed.
type Gate struct {
	of     Server
	all    *compiled.Object
	link   link.Link // of the program; nil while there is none
	events events
	failed map[uint32]bool // processes that could not be put into a group; follow's own
	full   uint64          // how often the events had no room; follow's own
	done   chan struct{}   // closed when no event is handled any more

	guard guard

	mu    sync.Mutex
	table table
	stops Stops
	lost  error // why nothing is stopped any more
}

// events is the reader of the program's events, as far as a gate needs it.
type events interface {
	Read() (ringbuf.Record, error)
	SetDeadline(at time.Time)
	Close() error
}

// Stops says how often processes were stopped, and how long they were.
type Stops struct {
	Times        int
	All, Longest time.Duration
}

// Stops returns the counts since Open.
func (g *Gate) Stops() Stops {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stops
}

// program is one of gate.bpf.c, and its place in the kernel.
type program struct{ name, place string }

// programs are those that see a receive, the best first.
func programs() []program {
	return []program{{"gate_receive", "sock_recv_length"}, {"gate_tcp", "tcp_recvmsg"}}
}

// The places in the map numbers (gate.bpf.c).
const portNumber, networkNumber, agentNumber, fullNumber = uint32(0), uint32(1), uint32(2), uint32(3)

// Open begins to stop processes of a server for the nodes that [Gate.Tell] tells. First it continues processes that an earlier
// agent left stopped. If this kernel cannot do it, the error is a [refuse.Cannot].
func Open(s Server) (*Gate, error) { return open(s, programs()) }

func open(s Server, programs []program) (*Gate, error) {
	if err := onHost(); err != nil {
		return nil, err
	}
	s.Dir = notes(s.Dir)
	if err := errors.Join(os.MkdirAll(s.Dir, 0o700), resume(s.Dir)); err != nil {
		return nil, err
	}
	var st syscall.Stat_t
	if err := syscall.Stat("/proc/self/ns/net", &st); err != nil {
		return nil, fmt.Errorf("find the network namespace of this host: %w", err)
	}
	all, err := compiled.Load(object, "the gate", "; else use way launch or network",
		ebpf.MapKV{Key: portNumber, Value: uint64(s.Port)}, ebpf.MapKV{Key: networkNumber, Value: st.Ino}, ebpf.MapKV{Key: agentNumber, Value: uint64(os.Getpid())})
	if err != nil {
		return nil, err
	}
	g := &Gate{of: s, all: all, failed: map[uint32]bool{}, done: make(chan struct{}), table: newTable(), guard: guard{path: s.Guard}}
	if g.events, err = ringbuf.NewReader(g.all.Maps["events"]); err != nil {
		return nil, errors.Join(fmt.Errorf("listen to the gate: %w", err), all.Close())
	}
	if err := g.begin(programs); err != nil {
		_ = g.events.Close() // begin may have closed it
		return nil, errors.Join(err, g.all.Close())
	}
	return g, nil
}

// onHost refuses an agent that knows processes by other numbers, or other times of their start, than the kernel's program.
func onHost() error {
	var st syscall.Stat_t
	if err := syscall.Stat("/proc/self/ns/pid", &st); err != nil {
		return fmt.Errorf("find the PID namespace of this process: %w", err)
	}
	offsets, err := os.ReadFile("/proc/self/timens_offsets")
	if err != nil && !errors.Is(err, os.ErrNotExist) { // it needs CONFIG_TIME_NS
		return fmt.Errorf("find the time namespace of this process: %w", err)
	}
	return initial(st.Ino, string(offsets))
}

func initial(pidNamespace uint64, offsets string) error {
	const (
		first  = 0xeffffffc // PROC_PID_INIT_INO of the kernel's include/linux/proc_ns.h
		remedy = "start berthd outside containers, in the PID and time namespaces of the host; else use way launch or network"
	)
	if pidNamespace != first {
		return refuse.Cannotf(remedy, "way gate: berthd is not in the first PID namespace of this kernel")
	}
	for line := range strings.Lines(offsets) {
		for i, f := range strings.Fields(line) {
			if i > 0 && f != "0" {
				return refuse.Cannotf(remedy, "way gate: the clocks of berthd's time namespace are set off: %s", strings.Join(strings.Fields(line), " "))
			}
		}
	}
	return nil
}

// begin starts the guard, and only then attaches the program that may stop a process.
func (g *Gate) begin(programs []program) (err error) {
	if err := g.guard.start(g.all.Maps["stopped"], g.guarded); err != nil {
		return err
	}
	go g.follow()
	var errs []error
	for _, p := range programs {
		if err = g.attach(p.name); err == nil {
			return nil
		}
		if lost := g.whyLost(); lost != nil {
			errs = []error{lost}
			break
		}
		errs = append(errs, g.all.Refused("its program at "+p.place, err))
	}
	err = errs[0] // the others are for older kernels
	_ = g.events.Close()
	<-g.done
	return errors.Join(err, g.guard.end())
}

func (g *Gate) attach(program string) error {
	l, err := g.all.Attach(program)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lost != nil {
		return errors.Join(g.lost, l.Close())
	}
	g.link = l
	return nil
}

// whyLost says why nothing is stopped any more; nil while the gate works.
func (g *Gate) whyLost() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.lost
}

// Tell tells the gate which node has which address. The nodes' groups must exist.
func (g *Gate) Tell(all map[netip.Addr]string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lost != nil {
		return g.lost
	}
	if err := g.table.tell(all, g.all.Maps["addresses"], g.all.Maps["nodes"]); err != nil {
		return fmt.Errorf("tell the gate whose address is whose: %w", err)
	}
	return nil
}

// Anew says that the group of a node is a new one: processes that serve it are to be put there again. Tell follows.
func (g *Gate) Anew(node string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.table.forget(node, g.all.Maps["addresses"], g.all.Maps["nodes"])
}

// guarded is called when the guard has ended: again is nil if another one took its place.
func (g *Gate) guarded(again error) {
	if again == nil {
		g.of.Log.Warn("the guard of stopped processes had ended, and was started again")
		return
	}
	g.lose(fmt.Errorf("nothing is stopped any more, because nobody guards what is: %w", again))
}

// lose takes the gate out of the kernel, and says why: another one is to be opened.
func (g *Gate) lose(why error) {
	g.mu.Lock()
	g.lost = why
	if g.link != nil {
		_ = g.link.Close()
	}
	g.mu.Unlock()
	g.of.Groups.Wrong(0, why.Error())
	g.of.Wake()
}

// Close takes the gate out of the kernel, and continues the processes that it stopped. Those that cannot be continued are tried again, by
// the guard if the agent ends before.
func (g *Gate) Close() error {
	g.mu.Lock()
	errs := []error{g.link.Close()}
	g.mu.Unlock()
	_ = g.events.Close()
	<-g.done
	swept := sweeps(g.all.Maps["stopped"], 100*time.Millisecond)
	if s := g.Stops(); s.Times > 0 {
		g.of.Log.Info("the gate is closed", "stops", s.Times, "mean", s.All/time.Duration(s.Times), "longest", s.Longest)
	}
	if swept != nil {
		g.guard.last()
		go g.sweepOn()
		return errors.Join(append(errs, swept)...)
	}
	return errors.Join(append(errs, g.guard.end(), os.RemoveAll(g.of.Dir), g.all.Close())...)
}

// sweepOn continues stopped processes, however long that takes. The notes are left to the next gate.
func (g *Gate) sweepOn() {
	for sweeps(g.all.Maps["stopped"], 0) != nil {
	}
	if err := errors.Join(g.guard.end(), g.all.Close()); err != nil {
		g.of.Log.Error("a gate that was closed is still there", "err", err)
	}
}
