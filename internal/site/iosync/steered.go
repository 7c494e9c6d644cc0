package iosync

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/site/intercept/instances"
	"berth/internal/site/iosync/place"
	"berth/internal/sys/fault"
	"berth/internal/sys/file"
	"berth/internal/sys/layout"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
)

// steered is the way instances: groups, in each of which a server of the node's own runs, that new connections of the node go to.
type steered struct {
	*groups
	server *instances.Server
	steer  *instances.Steering
	netns  uint64
	log    *slog.Logger
	wake   func()
	ctx    context.Context // ends with close
	stop   func()

	turns chan struct{} // has an element for each instance that starts now

	mu      sync.Mutex
	before  map[string]instance     // of an agent before, not taken over yet
	all     map[string]*running     // by node
	has     map[string][]netip.Addr // by node: connections from there are its own
	owner   map[netip.Addr]string   // the same, the other way
	orphans map[netip.Addr]bool     // without a node, and refused until it is known that no node has them
	named   map[netip.Addr]string   // the node of each address, as the site said last
	ending  map[string]*ending      // instances of nodes that went
	ports   map[uint16]string       // guarded, by the node whose instance has it
	// complete: when all nodes of the site were looked at last, each could be held, so that no node has the free
	// addresses
	complete bool
}

// A process that starts uses the CPUs: of very many at once, none would listen in time.
func turns() chan struct{} { return make(chan struct{}, max(4, 2*runtime.NumCPU())) }

// steeredFile has the entry of berthd's file by which a file system has instances now.
const steeredFile = "instances.json"

func instancesDir(dir string) string { return filepath.Join(dir, "instances") }

func pinsOf(l layout.Layout, filesystem string) instances.Pins {
	// A bpffs reserves names with dots.
	return instances.PinsOf(strings.ReplaceAll(place.Parent(l), ".", "-"), filesystem, place.Dir(l, filesystem))
}

func newSteered(l layout.Layout, g *groups, before []*kept, log *slog.Logger, wake func()) (w *steered, err error) {
	f, dir := g.conf, place.Dir(l, g.conf.Name)
	w = &steered{
		groups: g, log: log, wake: wake, server: &instances.Server{Dir: instancesDir(dir), Command: f.Command},
		before: map[string]instance{}, all: map[string]*running{}, has: map[string][]netip.Addr{}, owner: map[netip.Addr]string{},
		orphans: map[netip.Addr]bool{}, ending: map[string]*ending{}, ports: map[uint16]string{}, turns: turns(),
	}
	w.ctx, w.stop = context.WithCancel(context.Background())
	made := w
	defer func() {
		if err != nil {
			made.close()
		}
	}()
	if err := w.account(); err != nil {
		return nil, err
	}
	path := f.Namespace
	if path == "" {
		path = "/proc/self/ns/net"
	}
	if w.server.Netns, err = os.Open(path); err != nil {
		return nil, refuse.Cannotf("name the file under filesystems in berthd.yaml", "file system %s: open the server's network namespace: %w", f.Name, err)
	}
	if w.netns, err = inode(path); err != nil {
		return nil, err
	}
	text, err := json.Marshal(steeredOf(f))
	if err == nil {
		err = errors.Join(file.WriteForBoot(filepath.Join(dir, steeredFile), append(text, '\n'), 0o600), os.MkdirAll(w.server.Dir, 0o755)) // before anything is made
	}
	if err != nil {
		return nil, err
	}
	fault.Point("instances of a file server recorded")
	if w.steer, err = instances.Open(pinsOf(l, f.Name), uint16(f.Port), w.server.Netns); err != nil {
		return nil, fmt.Errorf("file system %s: %w", f.Name, err)
	}
	if err = w.resume(before); err != nil {
		return nil, err
	}
	go w.look()
	return w, nil
}

// resume takes over the record of an earlier agent, and what that left in the kernel.
func (w *steered) resume(before []*kept) error {
	guarded := map[uint16]bool{}
	for _, h := range before {
		for _, a := range h.Addresses {
			if w.owner[a] == "" {
				w.owner[a] = h.Node
				w.has[h.Node] = append(w.has[h.Node], a)
			}
		}
		if h.Instance == nil || h.Instance.Netns != w.netns {
			continue
		}
		w.before[h.Node] = *h.Instance
		port := h.Instance.Port
		guarded[port], w.ports[port] = true, h.Node
		if err := w.steer.Guard(port); err != nil {
			return err
		}
	}
	known, err := w.steer.Known()
	for _, a := range known {
		if w.owner[a] == "" {
			w.orphans[a] = true
		}
	}
	return errors.Join(err, w.steer.GuardOnly(guarded))
}

// account fills in the user that instances run as.
func (w *steered) account() error {
	uid, err := account(w.conf)
	if err != nil || uid == 0 {
		return err
	}
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return err
	}
	w.server.UID, w.server.GID = uint32(uid), uint32(gid)
	more, err := u.GroupIds()
	for _, id := range more {
		if n, err := strconv.ParseUint(id, 10, 32); err == nil {
			w.server.Groups = append(w.server.Groups, uint32(n))
		}
	}
	return err
}

func inode(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, fmt.Errorf("look at %s: %w", path, err)
	}
	return st.Ino, nil
}

// procs is the file with the processes of a node's group.
func procs(at *place.FS, node string) string {
	return filepath.Join(at.Groups(), node, "cgroup.procs")
}

// hold refuses the node's new connections before anything else, until its instance listens in a group that has the limits.
func (w *steered) hold(ctx context.Context, h, was *kept) error {
	w.mu.Lock()
	err := w.claim(h.Node, h.Addresses)
	w.mu.Unlock()
	if err != nil {
		return err
	}
	if err := w.groups.hold(ctx, h, was); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if e := w.ending[h.Node]; e != nil && !e.done { // a node of its name went just now
		h.Failed = "the instance of a node before it ends: its connections are refused until its own one listens"
		return nil
	}
	delete(w.ending, h.Node)
	one, err := w.one(h.Node)
	if err != nil {
		return err
	}
	if one.ended {
		h.Failed = fmt.Sprintf("its instance does not run: %s; its connections are refused until another one listens", one.why)
		return nil
	}
	one.leaving = false
	if one.PID != 0 {
		now := one.instance // while it starts it is written to
		h.Instance = &now
	}
	if one.listens && !one.served(w.has[h.Node]) { // an address came
		one.seek()
	}
	if !one.listens {
		h.Failed = "its instance does not listen yet: its connections are refused until it does"
		return nil
	}
	switch in, err := w.at.In(h.Node, one.PID); {
	case proc.Gone(err): // follow sees its end
	case err != nil:
		return err
	case !in && one.Alive():
		h.Failed = "somebody moved its instance out of its group: it is ended, and its connections are refused until another one listens"
		return w.stray(h.Node, one)
	}
	return nil
}

// one returns the instance of a node, which is taken over or started if need be. The caller holds the lock.
func (w *steered) one(node string) (one *running, err error) {
	one = w.all[node]
	if left, ok := w.before[node]; ok && one == nil {
		if one, err = w.adopt(node, left); err != nil {
			return nil, err // it may run, so none is started in its place
		}
	}
	delete(w.before, node)
	if one == nil || one.ended && !time.Now().Before(one.next) {
		one = w.start(node, one)
	}
	return one, nil
}

// stray ends an instance that is not where its limits are; follow sees its end. The caller holds the lock.
func (w *steered) stray(node string, one *running) error {
	var errs []error
	for a := range one.serves {
		errs = append(errs, w.steer.Withdraw(a))
	}
	clear(one.serves)
	pidfd, err := one.Open()
	if err != nil {
		return errors.Join(errs...) // it has ended
	}
	defer pidfd.Close()
	w.log.Warn("the instance of a node is not in its group: it is ended", "node", node, "pid", one.PID)
	return errors.Join(append(errs, proc.Signal(pidfd, unix.SIGKILL))...)
}

func (w *steered) stands(node string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	one := w.all[node]
	if one == nil || !one.listens || one.ended || !one.served(w.has[node]) {
		return false
	}
	in, err := w.at.In(node, one.PID)
	return in && err == nil
}

func (w *steered) followed(addresses map[netip.Addr]string, whole bool) error {
	if now, err := inode(w.server.Netns.Name()); err != nil || now != w.netns {
		return fmt.Errorf("the network namespace %s was made anew: %w", w.server.Netns.Name(), errors.Join(err, ErrAnew))
	}
	if err := w.steer.Whole(w.server.Netns); err != nil {
		return fmt.Errorf("%w: %w", err, ErrAnew)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.named, w.complete = addresses, whole
	return w.pass()
}

func (w *steered) close() {
	w.stop()
	if w.steer != nil {
		w.steer.Close()
	}
	_ = w.server.Netns.Close() // nil is allowed
}
