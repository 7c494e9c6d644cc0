package nat

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host/netif"
	"berth/internal/spec/vnode"
	"berth/internal/sys/step"
	"berth/internal/sys/thread"
	"berth/test/testkit"
)

// bed is a simulated host: the test's goroutine runs in a network namespace of its own, with two neighbours on two links.
// Its nodes are network namespaces on the bridge.
type bed struct {
	testing.TB
	Places
	live       string
	boot       string   // of the journals of its nodes
	near, far  *os.File // the neighbours: 192.0.2.2 and 198.51.100.2, 2001:db8::2 and 2001:db8:1::2
	undoLater  []step.Step
	nodes      int
	theNetwork Network
}

func newBed(t testing.TB) *bed {
	t.Helper()
	testkit.NeedsRoot(t)
	if _, err := findNFT(); err != nil {
		t.Skip("needs nft: nftables is not installed")
	}
	runtime.LockOSThread() // and never unlocked: the thread and its namespace end with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	boot, err := step.BootID()
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{TB: t, live: filepath.Join(dir, "live"), boot: boot, Places: Places{
		Bridge: "berth-nat", Lib: filepath.Join(dir, "lib"), Run: filepath.Join(dir, "run"), Forward: filepath.Join(dir, "forwarding"),
		Lock: filepath.Join(dir, "lock"), SiteID: "site",
	}}
	// A new network namespace has IPv4 settings of the host: Docker, for one, switches forwarding on.
	b.sh("cd /proc/sys/net; echo 0 >ipv4/ip_forward; echo 0 >ipv6/conf/all/forwarding; for f in ipv[46]/conf/default/forwarding ipv[46]/conf/*/force_forwarding ipv4/conf/*/rp_filter ipv6/conf/*/disable_ipv6; do if [ -e $f ]; then echo 0 >$f; fi; done; echo 1 >ipv6/conf/default/accept_ra")
	b.sh("ip link set lo up")
	b.near, b.far = b.neighbour("up0", "192.0.2", "2001:db8"), b.neighbour("up1", "198.51.100", "2001:db8:1")
	t.Cleanup(func() { b.undo() })
	return b
}

// sh runs commands on the host. They must succeed.
func (b *bed) sh(script string) string {
	b.Helper()
	out, err := exec.Command("sh", "-ec", script).CombinedOutput()
	if err != nil {
		b.Fatalf("%s: %v: %s", script, err, out)
	}
	return string(out)
}

// in runs commands in a namespace. They must succeed.
func (b *bed) in(ns *os.File, script string) {
	b.Helper()
	err := netif.Within(ns, func() error {
		out, err := exec.Command("sh", "-ec", script).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w: %s", script, err, out)
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
}

// namespace makes a network namespace.
func (b *bed) namespace() (ns *os.File) {
	b.Helper()
	err := thread.Own(func() (err error) {
		if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
			ns, err = os.Open(netif.Self)
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { ns.Close() })
	b.in(ns, "ip link set lo up")
	return ns
}

// wire connects the host to eth0 of a namespace.
func (b *bed) wire(link string, ns *os.File) {
	b.Helper()
	b.sh(fmt.Sprintf("ip link add %s type veth peer name eth0 netns /proc/%d/fd/%d; ip link set %[1]s up", link, os.Getpid(), ns.Fd()))
	b.in(ns, "ip link set eth0 up")
}

func (b *bed) neighbour(link, v4, v6 string) *os.File {
	b.Helper()
	ns := b.namespace()
	b.wire(link, ns)
	b.sh(fmt.Sprintf("ip addr add %s.1/24 dev %s; ip addr add %s::1/64 dev %[2]s nodad", v4, link, v6))
	b.in(ns, fmt.Sprintf("ip addr add %s.2/24 dev eth0; ip addr add %s::2/64 dev eth0 nodad; ip route add default via %[1]s.1; ip route add default via %[2]s::1", v4, v6))
	return ns
}

// guest is a node: a namespace on the bridge.
type guest struct {
	ns     *os.File
	v4, v6 netip.Addr
	live   *step.Journal // has the step that publishes its ports
}

// node makes a node that publishes ports.
func (b *bed) node(ports ...string) guest {
	b.Helper()
	b.nodes++
	name := fmt.Sprintf("n%d", b.nodes)
	claim := &ClaimAddress{Places: b.Places, Node: name, If: "eth0"}
	b.do(claim)
	all := claim.Network.Of(claim.V4)
	g := guest{ns: b.namespace(), v4: all[0].Addr(), v6: all[1].Addr()}
	b.theNetwork = claim.Network
	if err := os.MkdirAll(filepath.Join(b.live, name), 0o755); err != nil {
		b.Fatal(err)
	}
	b.do(&Bridge{Places: b.Places, Node: name, Live: filepath.Join(b.live, name), Network: claim.Network})
	b.wire("berth-"+name, g.ns)
	b.sh("ip link set berth-" + name + " master " + b.Bridge)
	b.in(g.ns, fmt.Sprintf("ip addr add %s dev eth0; ip addr add %s dev eth0 nodad; ip route add default via %s; ip route add default via %s",
		all[0], all[1], Gateway(claim.Network.V4).Addr(), Gateway(claim.Network.V6).Addr()))
	for _, p := range ports {
		b.do(&ClaimPort{Places: b.Places, Node: name, If: "eth0", Port: p})
	}
	var err error
	if g.live, err = step.Create(filepath.Join(b.live, name, "journal"), name, b.boot); err != nil {
		b.Fatal(err)
	}
	if len(ports) > 0 {
		p := &Publish{Places: b.Places, If: "eth0", V4: g.v4, V6: g.v6, Ports: ports}
		b.undoLater = append(b.undoLater, p)
		if err := g.live.Do(context.Background(), p); err != nil {
			b.Fatal(err)
		}
	}
	return g
}

// do does and verifies a step, which the end of the test undoes.
func (b *bed) do(s step.Step) {
	b.Helper()
	b.undoLater = append(b.undoLater, s)
	if err := step.Do(context.Background(), s); err != nil {
		b.Fatal(err)
	}
}

// undo undoes all steps, each twice.
func (b *bed) undo() {
	b.Helper()
	for _, s := range slices.Backward(b.undoLater) {
		for range 2 {
			if err := s.Undo(context.Background()); err != nil {
				b.Errorf("%s: %v", s.Kind(), err)
			}
		}
	}
	b.undoLater = nil
}

// listen answers each connection or datagram at an address of a namespace (nil: the host) with the address that it came from.
func (b *bed) listen(ns *os.File, network, address string) {
	b.Helper()
	var end io.Closer
	err := b.within(ns, func() error {
		if network == "udp" {
			c, err := net.ListenPacket(network, address)
			if err != nil {
				return err
			}
			end = c
			go func() {
				buf := make([]byte, 64)
				for {
					_, from, err := c.ReadFrom(buf)
					if err != nil {
						return
					}
					_, _ = c.WriteTo([]byte(from.String()), from)
				}
			}()
			return nil
		}
		l, err := net.Listen(network, address)
		if err != nil {
			return err
		}
		end = l
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte(c.RemoteAddr().String()))
				c.Close()
			}
		}()
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { end.Close() })
}

func (b *bed) within(ns *os.File, f func() error) error {
	if ns == nil {
		return f()
	}
	return netif.Within(ns, f)
}

// ask connects from a namespace, and returns from which address the listener saw it come.
func (b *bed) ask(ns *os.File, network, address string, wait time.Duration) (seen string, err error) {
	b.Helper()
	err = b.within(ns, func() error {
		c, err := net.DialTimeout(network, address, wait)
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(wait))
		if network == "udp" {
			if _, err := c.Write([]byte("x")); err != nil {
				return err
			}
		}
		buf := make([]byte, 64)
		n, err := c.Read(buf)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		from, err := netip.ParseAddrPort(string(buf[:n]))
		seen = from.Addr().Unmap().String()
		return err
	})
	return seen, err
}

// sees checks from which address a listener sees a connection come.
func (b *bed) sees(what string, ns *os.File, network, address, want string) {
	b.Helper()
	if seen, err := b.ask(ns, network, address, testkit.Bound()); err != nil || seen != want {
		b.Errorf("%s (%s %s): seen from %q, %v; want %s", what, network, address, seen, err, want)
	}
}

// refused checks that no listener answers.
func (b *bed) refused(what string, ns *os.File, network, address string) {
	b.Helper()
	if seen, err := b.ask(ns, network, address, 300*time.Millisecond); err == nil {
		b.Errorf("%s (%s %s): answered, seen from %s", what, network, address, seen)
	}
}

// rules are the tables of nftables but Berth's.
func (b *bed) rules() string {
	b.Helper()
	all := b.sh("nft -s list ruleset")
	before, rest, ours := strings.Cut(all, "table inet "+b.Bridge+" {\n")
	if !ours {
		return all
	}
	_, after, _ := strings.Cut(rest, "\n}\n")
	return before + after
}

// settings are the host's settings of forwarding.
func (b *bed) settings() string {
	b.Helper()
	return b.sh("grep -H . /proc/sys/net/ipv[46]/conf/up[01]/*forwarding /proc/sys/net/ipv[46]/conf/all/*forwarding /proc/sys/net/ipv6/conf/*/accept_ra | grep -v conf/berth-")
}

func published(ports ...string) vnode.Network {
	return vnode.Network{Name: "eth0", Mode: vnode.NAT, Ports: ports}
}
