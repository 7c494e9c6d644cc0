package netserve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	dns "golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"berth/internal/host/netif"
	"berth/internal/sys/mac"
	"berth/internal/sys/thread"
	"berth/test/testkit"
)

// inside says that this program runs in namespaces of its own.
const inside = "BERTH_TEST_NETSERVE"

// TestMain is also the process that serves, as berth netserve is. As root, it runs the tests in network and mount namespaces.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "netserve" {
		if err := Run(context.Background(), 3); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv(inside) != "" { // a new network namespace has IPv4 settings of the host
		for _, f := range []string{"ip_forward", "conf/all/rp_filter", "conf/default/rp_filter"} {
			if err := os.WriteFile("/proc/sys/net/ipv4/"+f, []byte("0"), 0); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
	}
	if os.Geteuid() != 0 || os.Getenv(inside) != "" {
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Unshareflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	if ee, ok := errors.AsType[*exec.ExitError](err); ok {
		os.Exit(ee.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// bed is a host with a bridge, whose resolver is dnsmasq on its loopback, and two nodes.
type bed struct {
	*testing.T
	places Places
	h      *netlink.Handle
	bridge Bridge
	resolv string // the host's resolv.conf
	ns     map[string]*os.File
	from   string // address that ask asks from; "": the kernel's choice
}

const upstreamAt = "127.0.0.53"

func newBed(t *testing.T) *bed {
	t.Helper()
	testkit.NeedsRoot(t) // TestMain has made network namespaces then
	if _, err := exec.LookPath("dnsmasq"); err != nil {
		t.Skip("no dnsmasq: install Debian's package dnsmasq-base")
	}
	dir := t.TempDir()
	b := &bed{T: t, places: Places{Socket: filepath.Join(dir, "s"), Lock: filepath.Join(dir, "lock"), Log: filepath.Join(dir, "log")}, ns: map[string]*os.File{}}
	var err error
	b.h, err = netif.Host()
	testkit.Must(b, err)
	t.Cleanup(b.h.Close)
	b.up("lo")
	b.bridge = Bridge{
		Name: "brtest", At: []netip.Addr{netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("fd00:9::1")},
		Prefixes: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/24"), netip.MustParsePrefix("fd00:9::/64")},
	}
	br := &netlink.Bridge{LinkAttrs: netif.Attrs("brtest", 0, mac.Address{})}
	testkit.Must(b, b.h.LinkAdd(br))
	t.Cleanup(func() { testkit.Must(b, b.h.LinkDel(br)) })
	b.address(b.h, "brtest", "10.9.0.1/24", "fd00:9::1/64")
	b.up("brtest")
	b.resolv = filepath.Join(dir, "resolv.conf")
	testkit.Must(b, os.WriteFile(b.resolv, []byte("nameserver "+upstreamAt+"\n"), 0o644))
	testkit.Must(b, unix.Mount(b.resolv, "/etc/resolv.conf", "", unix.MS_BIND, ""))
	t.Cleanup(func() { testkit.Must(b, unix.Unmount("/etc/resolv.conf", 0)) })
	b.dnsmasq(upstreamAt, "192.0.2.7")
	for i, name := range []string{"n1", "n2"} {
		b.node(name, i+2)
	}
	t.Cleanup(func() {
		for name := range b.ns {
			testkit.Must(b, b.places.Drop(context.Background(), name))
		}
		if log, _ := os.ReadFile(b.places.Log); len(log) > 0 {
			t.Logf("the process said\n%s", log)
		}
	})
	return b
}

func (b *bed) up(name string) {
	b.Helper()
	l, err := b.h.LinkByName(name)
	testkit.Must(b, err)
	testkit.Must(b, b.h.LinkSetUp(l))
}

func (b *bed) address(h *netlink.Handle, name string, all ...string) {
	b.Helper()
	l, err := h.LinkByName(name)
	testkit.Must(b, err)
	for _, cidr := range all {
		a, err := netlink.ParseAddr(cidr)
		testkit.Must(b, err)
		a.Flags = unix.IFA_F_NODAD
		testkit.Must(b, h.AddrAdd(l, a))
	}
	testkit.Must(b, h.LinkSetUp(l))
}

// dnsmasq starts a resolver of the host: what it is asked, it answers with this address.
func (b *bed) dnsmasq(at, says string) {
	b.Helper()
	cmd := exec.Command("dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--user=root", "--no-resolv", "--no-hosts",
		"--bind-interfaces", "--listen-address="+at, "--address=/example.org/"+says)
	testkit.Must(b, cmd.Start())
	b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	testkit.Eventually(b, at+" answers", func() bool {
		c, err := net.Dial("tcp", at+":53")
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// namespace makes a network namespace.
func (b *bed) namespace(name string) {
	b.Helper()
	var ns *os.File
	testkit.Must(b, thread.Own(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		ns, err = os.Open(netif.Self)
		return err
	}))
	b.ns[name] = ns
	b.Cleanup(func() { ns.Close() })
}

// node makes a network namespace on the bridge with the address 10.9.0.I.
func (b *bed) node(name string, i int) {
	b.Helper()
	b.namespace(name)
	ns := b.ns[name]
	br, err := b.h.LinkByName("brtest")
	testkit.Must(b, err)
	a := netif.Attrs("v"+name, 0, mac.Address{})
	a.MasterIndex = br.Attrs().Index
	testkit.Must(b, b.h.LinkAdd(&netlink.Veth{LinkAttrs: a, PeerName: "eth0", PeerTxQLen: -1, PeerNamespace: netlink.NsFd(ns.Fd())}))
	b.Cleanup(func() { _ = b.h.LinkDel(&netlink.Veth{LinkAttrs: a}) })
	b.up("v" + name)
	h, err := netif.At(ns)
	testkit.Must(b, err)
	defer h.Close()
	b.address(h, "lo")
	b.address(h, "eth0", fmt.Sprintf("10.9.0.%d/24", i), fmt.Sprintf("fd00:9::%d/64", i))
}

// outside makes a machine on another network of the host, which has also an address of the bridge's network.
func (b *bed) outside(name string) {
	b.Helper()
	b.namespace(name)
	ns := b.ns[name]
	a := netif.Attrs("wan", 0, mac.Address{})
	testkit.Must(b, b.h.LinkAdd(&netlink.Veth{LinkAttrs: a, PeerName: "eth0", PeerTxQLen: -1, PeerNamespace: netlink.NsFd(ns.Fd())}))
	b.Cleanup(func() { _ = b.h.LinkDel(&netlink.Veth{LinkAttrs: a}) })
	b.address(b.h, "wan", "198.51.100.1/24")
	h, err := netif.At(ns)
	testkit.Must(b, err)
	defer h.Close()
	b.address(h, "eth0", "198.51.100.2/24", "10.9.0.77/32")
	l, err := h.LinkByName("eth0")
	testkit.Must(b, err)
	dst, err := netlink.ParseIPNet("10.9.0.0/24")
	testkit.Must(b, err)
	testkit.Must(b, h.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: dst, Gw: net.ParseIP("198.51.100.1")}))
}

func (b *bed) entry(name string, i int, relays ...Relay) *Entry {
	return &Entry{Node: name, Relays: relays, Names: []Named{{
		Bridge: b.bridge, Names: []string{name},
		Addresses: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.9.0.%d", i)), netip.MustParseAddr(fmt.Sprintf("fd00:9::%d", i))},
	}}}
}

// in runs f in the namespace of a node; "": the host's.
func (b *bed) in(node string, f func() error) error {
	if node == "" {
		return f()
	}
	return thread.Own(func() error {
		if err := unix.Setns(int(b.ns[node].Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	})
}

// ask asks for a name from a node until there is an answer, and returns it as text. Who asks from an address of its own is not
// answered: it asks once.
func (b *bed) ask(node, network, server, name string) (got string) {
	b.Helper()
	if b.from != "" {
		return b.once(node, network, server, name)
	}
	testkit.Happens(func() bool { got = b.once(node, network, server, name); return got != "nothing" })
	return got
}

// once asks for a name once.
func (b *bed) once(node, network, server, name string) string {
	b.Helper()
	var c net.Conn
	err := b.in(node, func() (err error) {
		c, err = net.DialTimeout(network, net.JoinHostPort(server, "53"), testkit.Bound())
		return err
	})
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	wait := 4 * time.Second // longer than it takes to pass over a resolver
	if b.from != "" {
		wait = 200 * time.Millisecond // it is not answered
	}
	_ = c.SetDeadline(time.Now().Add(wait))
	packet := question(b, name, dns.TypeA, nil)
	if network == "tcp" {
		if err := writeFrame(c, packet); err != nil {
			return err.Error()
		}
		if packet, err = readFrame(c); err != nil {
			return "nothing"
		}
		return said(b, packet)
	}
	if _, err := c.Write(packet); err != nil {
		return err.Error()
	}
	buf := make([]byte, 4096)
	n, err := c.Read(buf)
	if err != nil {
		return "nothing"
	}
	return said(b, buf[:n])
}

func (b *bed) want(node, network, server, name, want string) {
	b.Helper()
	if got := b.ask(node, network, server, name); got != want {
		b.Errorf("%s asks %s for %s by %s: %s, want %s", node, server, name, network, got, want)
	}
}

// status returns lines of the process's /proc/PID/status.
func status(t *testing.T, pid int, keys ...string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		for _, k := range keys {
			if rest, ok := strings.CutPrefix(line, k+":"); ok {
				all = append(all, k+"="+strings.Join(strings.Fields(rest), " "))
			}
		}
	}
	return all
}
