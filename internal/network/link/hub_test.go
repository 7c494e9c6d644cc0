package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/host/netif"
	"berth/internal/spec/vnode"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
	"berth/test/testkit"
)

// filled is the group of links that fill makes.
const filled = 7

// fill adds ports to a bridge until it is full. They are down: both ends of each pair are on the bridge.
func fill(t *testing.T, h *netlink.Handle, bridge string) {
	t.Helper()
	l, err := h.LinkByName(bridge)
	if err != nil {
		t.Fatal(err)
	}
	for i := range mostPorts {
		near := fmt.Sprintf("fill%d", i)
		attrs := netif.Attrs(near, 0, mac.Address{})
		attrs.Group = filled
		if err := h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: near + "p", PeerTxQLen: -1}); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{near, near + "p"} {
			end, err := h.LinkByName(name)
			if err == nil {
				err = h.LinkSetMasterByIndex(end, l.Attrs().Index)
			}
			if errors.Is(err, unix.EXFULL) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Fatal("the bridge takes more ports than it should")
}

// empty removes the ports of fill, at once: one by one they take the kernel twenty seconds.
func (b *lab) empty(ns *os.File) {
	b.t.Helper()
	b.sh(ns, fmt.Sprint("ip link delete group ", filled))
}

// TestFullHostOnlyBridge checks that a second bridge is made and joined when the first is full, that all nodes reach
// each other, and that the port which moved is still connected.
func TestFullHostOnlyBridge(t *testing.T) {
	b := newLab(t)
	nodes := []*stand{b.node("a"), b.node("c"), b.node("d")}
	plans := [][]step.Step{nodes[0].steps(vnode.Network{Address: []string{"192.0.2.1/24", "2001:db8::1/64"}})}
	nodes[0].do(plans[0])
	h, err := b.hub().Open()
	testkit.Must(b.t, err)
	defer h.Close()
	fill(t, h, "berthtest")
	for i, n := range nodes[1:] {
		plans = append(plans, n.steps(vnode.Network{Address: []string{fmt.Sprintf("192.0.2.%d/24", i+2), fmt.Sprintf("2001:db8::%d/64", i+2)}}))
		n.do(plans[i+1])
	}
	second, err := h.LinkByName(chained("berthtest", 1))
	testkit.Must(b.t, err)
	links, err := netif.List(h)
	testkit.Must(b.t, err)
	on := 0
	for _, l := range links {
		if l.Attrs().MasterIndex == second.Attrs().Index {
			on++
		}
	}
	if on != 4 { // two nodes, the cable, and the port that moved for it
		t.Errorf("%d ports on the second bridge", on)
	}
	for _, to := range []string{"192.0.2.2", "2001:db8::3"} {
		if err := reach(t, nodes[0].open(), nodes[int(to[len(to)-1]-'1')].open(), to); err != nil {
			t.Errorf("from a to %s: %v", to, err)
		}
	}
	if err := reach(t, nodes[2].open(), nodes[0].open(), "192.0.2.1"); err != nil {
		t.Error(err)
	}
	// Remove each bridge: its nodes are connected again, and reach those on the other bridge.
	for _, bridge := range []string{"berthtest", chained("berthtest", 1)} {
		l, err := h.LinkByName(bridge)
		testkit.Must(b.t, err)
		testkit.Must(b.t, h.LinkDel(l))
		for i, n := range nodes {
			if _, err := Reattach(context.Background(), plans[i], nil); err != nil {
				t.Errorf("%s: %s: %v", bridge, n.name, err)
			}
		}
		if err := reach(t, nodes[2].open(), nodes[0].open(), "192.0.2.1"); err != nil {
			t.Errorf("%s was made again: %v", bridge, err)
		}
	}
	hub, err := os.Open(string(b.hub()))
	testkit.Must(b.t, err)
	defer hub.Close()
	b.empty(hub)
	for i, n := range nodes {
		n.undo(plans[i])
	}
	if got := b.links(); len(got) > 0 {
		t.Errorf("left: %v", got)
	}
}

// TestFullBridgeOfTheHost checks that a full bridge of the user is refused before the start, and by the step if it
// filled up later.
func TestFullBridgeOfTheHost(t *testing.T) {
	b := newLab(t)
	b.need(&netlink.Bridge{LinkAttrs: netif.Attrs("br9", 0, mac.Address{})})
	a, c := b.node("a"), b.node("c")
	nw := vnode.Network{Mode: vnode.Bridge, Parent: "br9"}
	as, cs := a.steps(nw), c.steps(nw)
	a.do(as)
	fill(t, b.h, "br9")
	for name, err := range map[string]error{"the step": do(cs), "the plan": second(c.plan(nw))} {
		if refuse.KindOf(err) != refuse.Busy || !strings.Contains(err.Error(), "a bridge takes 1023 ports, and br9 has them all") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := a.plan(nw); err != nil {
		t.Errorf("the node that has its port already: %v", err)
	}
	c.undo(cs)
	b.empty(b.host)
	if got := b.links(); len(got) != 2 {
		t.Errorf("left: %v", got)
	}
}

func second[T any](_ T, err error) error { return err }

// TestHostOnlyBridgeIsNotTheHosts checks that nothing that a node sends over the host-only bridge, bound to its
// interface, reaches the host: UDP to the host's addresses, broadcast and multicast, IPv4 and IPv6; a TCP SYN leaves no
// socket.
func TestHostOnlyBridgeIsNotTheHosts(t *testing.T) {
	b := newLab(t)
	b.need(&netlink.Veth{LinkAttrs: netif.Attrs("host0", 0, mac.Address{}), PeerName: "host0p", PeerTxQLen: -1})
	lo := b.get("lo")
	testkit.Must(b.t, b.h.LinkSetUp(lo))
	up := b.get("host0")
	for _, a := range []string{"198.51.100.1/24", "2001:db8:9::1/64"} {
		addr, err := netlink.ParseAddr(a)
		testkit.Must(b.t, err)
		addr.Flags = unix.IFA_F_NODAD
		testkit.Must(b.t, b.h.AddrAdd(up, addr))
	}
	testkit.Must(b.t, b.h.LinkSetUp(up))
	testkit.Must(b.t, netif.NoLinkLocal(b.h, b.get("host0p")))
	n := b.node("a")
	n.do(n.steps(vnode.Network{Address: []string{"192.0.2.1/24", "2001:db8::1/64"}, Gateway: "192.0.2.2", Routes: []vnode.Route{{To: "2001:db8:9::/64", Via: "2001:db8::2"}}}))

	// Everything that the host's stack receives of UDP, ICMP and TCP, except its own packets.
	var raw []int
	for _, s := range []struct{ family, protocol int }{
		{unix.AF_INET, unix.IPPROTO_UDP},
		{unix.AF_INET, unix.IPPROTO_TCP},
		{unix.AF_INET, unix.IPPROTO_ICMP},
		{unix.AF_INET, unix.IPPROTO_IGMP},
		{unix.AF_INET6, unix.IPPROTO_UDP},
		{unix.AF_INET6, unix.IPPROTO_TCP},
		{unix.AF_INET6, unix.IPPROTO_ICMPV6},
	} {
		fd, err := unix.Socket(s.family, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, s.protocol)
		testkit.Must(b.t, err)
		defer unix.Close(fd)
		raw = append(raw, fd)
	}
	frames, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL)))
	testkit.Must(b.t, err)
	defer unix.Close(frames)
	ln, err := net.Listen("tcp", "198.51.100.1:0")
	testkit.Must(b.t, err)
	defer ln.Close()

	ns := n.open()
	sent := 0
	testkit.Must(b.t, in(ns, func() error {
		for _, to := range []string{"198.51.100.1", "255.255.255.255", "192.0.2.255", "224.0.0.1", "239.1.1.1", "2001:db8:9::1", "ff02::1", "ff02::fb"} {
			if err := shout(to, 9999); err != nil {
				t.Logf("to %s: %v", to, err)
				continue
			}
			sent++
		}
		d := net.Dialer{Timeout: 200 * time.Millisecond}
		if c, err := d.Dial("tcp", ln.Addr().String()); err == nil {
			c.Close()
			t.Error("the node connected to the host")
		}
		return nil
	}))
	if sent < 8 {
		t.Fatalf("only %d packets were sent", sent)
	}
	buf := make([]byte, 2048)
	for i, fd := range append(raw, frames) {
		if got, _, err := unix.Recvfrom(fd, buf, 0); err == nil {
			t.Errorf("socket %d of the host got %x", i, buf[:got])
		}
	}
	syn, err := os.ReadFile("/proc/thread-self/net/tcp")
	testkit.Must(b.t, err)
	if strings.Contains(string(syn), " 03 ") { // SYN_RECV
		t.Errorf("a half open connection:\n%s", syn)
	}
}

// shout sends a datagram bound to eth0.
func shout(to string, port int) error {
	ip := net.ParseIP(to)
	family := unix.AF_INET6
	if ip.To4() != nil {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, "eth0"); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1); err != nil {
		return err
	}
	if family == unix.AF_INET {
		return unix.Sendto(fd, []byte("berth"), 0, &unix.SockaddrInet4{Port: port, Addr: [4]byte(ip.To4())})
	}
	return unix.Sendto(fd, []byte("berth"), 0, &unix.SockaddrInet6{Port: port, Addr: [16]byte(ip), ZoneId: 2})
}

// TestReconnect checks that a port is connected again, with rates and spoof check, if its bridge was removed and made
// again, if it was taken out of its bridge, if it is down, or if its pair was deleted; an intact port is left alone.
func TestReconnect(t *testing.T) {
	b := newLab(t)
	b.needShaping(netif.Egress, netif.Peer)
	b.need(&netlink.Bridge{LinkAttrs: netif.Attrs("br9", 0, mac.Address{})})
	a := b.node("a")
	steps := a.steps(
		vnode.Network{Mode: vnode.Bridge, Parent: "br9", Address: []string{"192.0.2.1/24"}, Rate: vnode.NetRate{TX: 10 * mbit, RX: 20 * mbit}, Routes: []vnode.Route{{To: "198.51.100.0/24", Via: "192.0.2.2"}}},
		vnode.Network{Name: "eth1", Mode: vnode.Bridge, Address: []string{"203.0.113.1/24"}})
	a.do(steps)
	v, own := steps[1].(*Veth), (*Veth)(nil)
	for _, s := range steps {
		if c, ok := s.(*Veth); ok && c.If == "eth1" {
			own = c
		}
	}
	hub, err := b.hub().Open()
	testkit.Must(b.t, err)
	defer hub.Close()
	for _, c := range []struct {
		what  string
		spoil func()
		mend  func()
		want  string
	}{
		{"nothing", func() {}, func() {}, "[]"},
		{"bridge removed", func() { testkit.Must(b.t, b.h.LinkDel(b.get("br9"))) }, func() {
			testkit.Must(b.t, b.h.LinkAdd(&netlink.Bridge{LinkAttrs: netif.Attrs("br9", 0, mac.Address{})}))
		}, "[eth0]"},
		{"port taken out", func() { testkit.Must(b.t, b.h.LinkSetNoMaster(b.get(v.HostIf))) }, func() {}, "[eth0]"},
		{"port down", func() { testkit.Must(b.t, b.h.LinkSetDown(b.get(v.HostIf))) }, func() {}, "[eth0]"},
		{"pair deleted", func() { testkit.Must(b.t, b.h.LinkDel(b.get(v.HostIf))) }, func() {}, "[eth0]"},
		{"spoof check removed", func() {
			testkit.Must(b.t, b.h.QdiscDel(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: b.get(v.HostIf).Attrs().Index, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0)}}))
		}, func() {}, "[eth0]"},
		{"own bridge removed", func() {
			l, err := hub.LinkByName("berthtest")
			testkit.Must(b.t, err)
			testkit.Must(b.t, hub.LinkDel(l))
		}, func() {}, "[eth1]"},
		{"own pair deleted", func() {
			l, err := hub.LinkByName(own.HostIf)
			testkit.Must(b.t, err)
			testkit.Must(b.t, hub.LinkDel(l))
		}, func() {}, "[eth1]"},
	} {
		c.spoil()
		if c.what == "bridge removed" {
			if _, err := Reattach(context.Background(), steps, rateSteps(steps)); refuse.KindOf(err) != refuse.NotFound {
				t.Errorf("%s: without the bridge: %v", c.what, err)
			}
		}
		c.mend()
		got, err := Reattach(context.Background(), steps, rateSteps(steps))
		if err != nil || fmt.Sprint(got) != c.want {
			t.Errorf("%s: mended %v: %v", c.what, got, err)
			continue
		}
		for _, s := range steps {
			if err := s.Verify(context.Background()); err != nil {
				t.Errorf("%s: afterwards: %s: %v", c.what, s.Kind(), err)
			}
		}
	}
	a.undo(steps)
	if got := fmt.Sprint(b.links()); got != "[br9]" {
		t.Errorf("left: %v", got)
	}
}
