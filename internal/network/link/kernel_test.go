package link

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/host/netif"
	"berth/internal/network/nat"
	"berth/internal/spec/vnode"
	"berth/internal/sys/mac"
	"berth/internal/sys/step"
	"berth/internal/sys/thread"
	"berth/test/testkit"
)

// lab is a simulated host: the test's goroutine runs in network and mount namespaces of its own, which end with it.
type lab struct {
	t    testing.TB
	dir  string
	host *os.File
	mnt  *os.File
	h    *netlink.Handle
}

func newLab(t testing.TB) *lab {
	t.Helper()
	testkit.NeedsRoot(t)
	dir := t.TempDir()
	runtime.LockOSThread() // and never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(netif.Self)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	mnt, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mnt.Close() })
	h, err := netif.Host()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	b := &lab{t: t, dir: dir, host: f, mnt: mnt, h: h}
	t.Cleanup(func() { _ = unix.Unmount(string(b.hub()), unix.MNT_DETACH) })
	return b
}

func (b *lab) hub() netif.Hub { return netif.Hub(filepath.Join(b.dir, "bridge")) }

// inside runs f on a thread of its own in the lab's namespaces.
func (b *lab) inside(f func() error) error {
	return thread.Own(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return err
		}
		if err := unix.Setns(int(b.mnt.Fd()), unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := unix.Setns(int(b.host.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	})
}

// need skips the test unless this kernel makes links like l.
func (b *lab) need(l netlink.Link) {
	b.t.Helper()
	if err := b.h.LinkAdd(l); err != nil {
		b.t.Skipf("this kernel makes no %s: %v", l.Type(), err)
	}
}

func (b *lab) lock() string { return filepath.Join(b.dir, "host.lock") }

// stand is a stand-in for a running node: a process in user and network namespaces of its own.
type stand struct {
	*lab
	name string
	ns   netif.NS
	cmd  *exec.Cmd

	machine bool        // what runs in it is a machine
	claims  []step.Step // those of the last plan
	macs    map[string]mac.Address
	given   Given
}

func (b *lab) node(name string) *stand {
	b.t.Helper()
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 700000, Size: 65536}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 700000, Size: 65536}},
		Pdeathsig:   unix.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	s := &stand{lab: b, name: name, cmd: cmd, ns: netif.NS{Pin: filepath.Join(b.dir, name+".netns"), PIDFile: filepath.Join(b.dir, name+".pid")}}
	b.t.Cleanup(s.kill)
	if err := os.WriteFile(s.ns.PIDFile, fmt.Appendln(nil, cmd.Process.Pid), 0o600); err != nil {
		b.t.Fatal(err)
	}
	return s
}

func (s *stand) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// steps claims MACs and returns the live steps.
func (s *stand) steps(nets ...vnode.Network) []step.Step {
	s.t.Helper()
	live, err := s.plan(nets...)
	if err != nil {
		s.t.Fatal(err)
	}
	return live
}

func (s *stand) plan(nets ...vnode.Network) ([]step.Step, error) {
	s.t.Helper()
	n := vnode.Node{Name: s.name, Network: nets}
	vnode.Defaults(&n)
	facts, err := ReadFacts(nets, "", "")
	if err != nil {
		s.t.Fatal(err)
	}
	in := Input{
		Node: s.name, Networks: n.Network, Machine: s.machine, SiteID: "site", MACDir: filepath.Join(s.dir, "macs"), HostLock: s.lock(),
		PoolDir: filepath.Join(s.dir, "pools"), AddressDir: filepath.Join(s.dir, "addresses"),
		Bridge: "berthtest", Hub: s.hub(), NS: s.ns, Facts: facts, Run: s.dir,
		NAT: nat.Places{
			Bridge: "berthtest-nat", Lib: filepath.Join(s.dir, "nat"), Run: filepath.Join(s.dir, "nat.run"),
			Forward: filepath.Join(s.dir, "forwarding"), Lock: s.lock(), SiteID: "site",
		},
	}
	if err := in.Facts.readNAT(in); err != nil {
		return nil, err
	}
	if s.claims, err = Claims(in); err != nil {
		return nil, err
	}
	if err := do(s.claims); err != nil {
		return nil, err
	}
	s.macs, s.given = MACs(s.claims), GivenBy(s.claims)
	in.MACs, in.Given = s.macs, s.given
	return Live(in)
}

// do runs steps as package node does.
func do(steps []step.Step) error {
	ctx := context.Background()
	for _, s := range steps {
		if p, ok := s.(step.Preparer); ok {
			if err := p.Prepare(ctx); err != nil {
				return fmt.Errorf("%s: prepare: %w", s.Kind(), err)
			}
		}
		if err := s.Do(ctx); err != nil {
			return fmt.Errorf("%s: do: %w", s.Kind(), err)
		}
		if err := s.Verify(ctx); err != nil {
			return fmt.Errorf("%s: verify: %w", s.Kind(), err)
		}
	}
	return nil
}

func (s *stand) do(steps []step.Step) {
	s.t.Helper()
	if err := do(steps); err != nil {
		s.t.Fatal(err)
	}
}

// undo undoes steps twice, from their journal records alone.
func undo(steps []step.Step) error {
	for range 2 {
		for _, step := range slices.Backward(steps) {
			rec, err := json.Marshal(step)
			if err != nil {
				return err
			}
			s, err := Kinds().Decode(step.Kind(), rec)
			if err != nil {
				return err
			}
			if err := s.Undo(context.Background()); err != nil {
				return fmt.Errorf("undo %s: %w", s.Kind(), err)
			}
		}
	}
	return nil
}

func (s *stand) undo(steps []step.Step) {
	s.t.Helper()
	if err := undo(steps); err != nil {
		s.t.Fatal(err)
	}
}

// in runs f on a thread in the network namespace ns.
func in(ns *os.File, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

func (s *stand) open() *os.File {
	s.t.Helper()
	f, err := s.ns.Open()
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { f.Close() })
	return f
}

// reach connects by TCP from one namespace to an address in another.
func reach(t testing.TB, from, to *os.File, addr string) error {
	t.Helper()
	var ln net.Listener
	if err := in(to, func() (err error) {
		ln, err = net.Listen("tcp", net.JoinHostPort(addr, "0"))
		return err
	}); err != nil {
		return err
	}
	defer ln.Close()
	return in(from, func() error {
		c, err := net.DialTimeout("tcp", ln.Addr().String(), 2*time.Second)
		if err == nil {
			c.Close()
		}
		return err
	})
}

// links returns the names of the host's links and of those in the host-only bridge's namespace, except lo.
func (b *lab) links() []string {
	b.t.Helper()
	names := b.linksOf(b.h)
	if netif.IsPinned(string(b.hub())) {
		h, err := b.hub().Open()
		if err != nil {
			b.t.Fatal(err)
		}
		defer h.Close()
		for _, name := range b.linksOf(h) {
			names = append(names, "hub/"+name)
		}
	}
	return names
}

func (b *lab) linksOf(h *netlink.Handle) []string {
	b.t.Helper()
	all, err := netif.Dump(h.LinkList)
	if err != nil {
		b.t.Fatal(err)
	}
	var names []string
	for _, l := range all {
		if l.Attrs().Name != "lo" {
			names = append(names, l.Attrs().Name)
		}
	}
	return names
}

func (b *lab) get(name string) netlink.Link {
	b.t.Helper()
	l, err := b.h.LinkByName(name)
	if err != nil {
		b.t.Fatal(err)
	}
	return l
}

// htons returns v in network byte order.
func htons(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}
