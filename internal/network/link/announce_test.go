package link

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/host/netif"
	"berth/internal/network/address"
	"berth/internal/network/antispoof"
	"berth/internal/network/dhcp"
	"berth/internal/spec/vnode"
	"berth/internal/sys/mac"
	"berth/internal/sys/step"
	"berth/internal/sys/thread"
	"berth/test/sample"
	"berth/test/testkit"
)

// neighbour is a machine beside nodes: the host, another node, a machine on the LAN.
type neighbour struct {
	*lab
	name string
	ns   *os.File
	dev  string // its interface to the nodes
}

// patient makes the neighbour keep for an hour what it has learned: a MAC that has changed stays unknown unless it is announced.
func (m *neighbour) patient() {
	m.t.Helper()
	testkit.Must(m.t, in(m.ns, func() error {
		for _, family := range []string{"ipv4", "ipv6"} {
			for _, key := range []string{"base_reachable_time_ms", "gc_stale_time", "delay_first_probe_time"} {
				path := fmt.Sprintf("/proc/sys/net/%s/neigh/%s/%s", family, m.dev, key)
				if err := os.WriteFile(path, []byte("3600000"), 0); err != nil {
					return err
				}
			}
		}
		return nil
	}))
}

// at calls f with the neighbour's netlink socket and interface.
func (m *neighbour) at(f func(h *netlink.Handle, index int) error) {
	m.t.Helper()
	h, err := netif.At(m.ns)
	testkit.Must(m.t, err)
	defer h.Close()
	l, err := h.LinkByName(m.dev)
	testkit.Must(m.t, err)
	testkit.Must(m.t, f(h, l.Attrs().Index))
}

// knows returns the MAC that the neighbour sends to for an address; none if it would ask first.
func (m *neighbour) knows(a netip.Addr) (own mac.Address) {
	m.t.Helper()
	m.at(func(h *netlink.Handle, index int) error {
		all, err := netif.Dump(func() ([]netlink.Neigh, error) { return h.NeighList(index, netlink.FAMILY_ALL) })
		for _, n := range all {
			if n.IP.Equal(a.AsSlice()) && n.State&(unix.NUD_FAILED|unix.NUD_INCOMPLETE) == 0 {
				own = mac.Of(n.HardwareAddr)
			}
		}
		return err
	})
	return own
}

// finds waits until the neighbour sends to a MAC for an address.
func (m *neighbour) finds(what string, a netip.Addr, want mac.Address) {
	m.t.Helper()
	if !testkit.Happens(func() bool { return m.knows(a) == want }) {
		m.t.Fatalf("%s: %s sends to %s for %s, not to %s", what, m.name, m.knows(a), a, want)
	}
}

// asks sends to an address.
func (m *neighbour) asks(a netip.Addr) {
	m.t.Helper()
	testkit.Must(m.t, in(m.ns, func() error {
		c, err := net.Dial("udp", netip.AddrPortFrom(a, 9).String())
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("x"))
		return err
	}))
}

// remembers gives the neighbour an entry as a node would leave it that had the address before.
func (m *neighbour) remembers(a netip.Addr) {
	m.t.Helper()
	m.at(func(h *netlink.Handle, index int) error {
		return h.NeighSet(&netlink.Neigh{LinkIndex: index, State: unix.NUD_STALE, IP: a.AsSlice(), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 0x99}})
	})
}

// sh runs commands in a namespace. They must succeed.
func (b *lab) sh(ns *os.File, script string) {
	b.t.Helper()
	testkit.Must(b.t, in(ns, func() error {
		if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", script, err, out)
		}
		return nil
	}))
}

// machine makes a machine on the LAN: a bridge br0 in a namespace of its own, with addresses and cables to links of the host.
func (b *lab) machine(addrs string, links ...string) *neighbour {
	b.t.Helper()
	var ns *os.File
	testkit.Must(b.t, thread.Own(func() (err error) {
		if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
			ns, err = os.Open(netif.Self)
		}
		return err
	}))
	b.t.Cleanup(func() { ns.Close() })
	b.sh(ns, "ip link add br0 address 02:00:5e:00:00:02 type bridge; ip link set br0 up; for a in "+addrs+"; do ip addr add $a dev br0 nodad; done")
	for _, l := range links {
		b.sh(b.host, fmt.Sprintf("ip link add %s type veth peer name %[1]s netns /proc/%d/fd/%d; ip link set %[1]s up", l, os.Getpid(), ns.Fd()))
		b.sh(ns, fmt.Sprintf("ip link set %s master br0 up", l))
	}
	m := &neighbour{lab: b, name: "the LAN", ns: ns, dev: "br0"}
	m.patient()
	return m
}

// beside makes a node that is a neighbour.
func (b *lab) beside(n vnode.Network) *neighbour {
	b.t.Helper()
	s := b.node("beside")
	steps := s.steps(n)
	s.do(steps)
	b.t.Cleanup(func() { s.undo(steps) })
	m := &neighbour{lab: b, name: "another node", ns: s.open(), dev: "eth0"}
	m.patient()
	return m
}

// again announces addresses once more, as the keeper does, when the LAN's own port takes frames from an adapter that was set up.
func (m *neighbour) again(port string, steps []step.Step) {
	m.t.Helper()
	m.at(func(h *netlink.Handle, _ int) error {
		testkit.Eventually(m.t, "the LAN's port forwards", func() bool {
			l, err := h.LinkByName(port)
			return err == nil && l.Attrs().OperState == netlink.OperUp
		})
		return nil
	})
	for _, s := range steps {
		if a, ok := s.(address.Announcer); ok {
			testkit.Must(m.t, a.AnnounceAgain(context.Background()))
		}
	}
}

// forgotten checks that the host has forgotten a node that left the bridge of mode nat, and gives it an entry again: something may
// have been under way.
func forgotten(neighbours []*neighbour, addrs []netip.Addr) {
	for _, m := range neighbours {
		if m.dev != "berthtest-nat" {
			continue
		}
		for _, a := range addrs {
			if now := m.knows(a); !now.IsZero() {
				m.t.Errorf("the node is gone, and %s still sends to %s for %s", m.name, now, a)
			}
			m.remembers(a)
		}
	}
}

// rounds is how often an address is handed on: 100 times in each mode, of which a run of make test makes three.
func rounds(t *testing.T) int {
	if all := 100; sample.Of(t).Rounds(all) == all {
		return all
	}
	return 3
}

// TestAddressMoves hands addresses on from node to node, each with another MAC. Machines that know the MAC of the node before must
// send to the next one without asking.
func TestAddressMoves(t *testing.T) {
	v4, v6 := "192.0.2.10/24", "2001:db8::10/64"
	both := []string{v4, v6}
	onBridge := func(b *lab) []*neighbour {
		lan := b.machine("192.0.2.2/24 2001:db8::2/64", "wan0")
		b.sh(b.host, "ip link add br9 type bridge; ip link set wan0 master br9; ip link set br9 up; ip addr add 192.0.2.1/24 dev br9; ip addr add 2001:db8::1/64 dev br9 nodad")
		host := &neighbour{lab: b, name: "the host", ns: b.host, dev: "br9"}
		host.patient()
		return []*neighbour{lan, host, b.beside(vnode.Network{Mode: vnode.Bridge, Parent: "br9", Address: []string{"192.0.2.3/24", "2001:db8::3/64"}})}
	}
	onAdapter := func(b *lab) []*neighbour {
		return []*neighbour{b.machine("192.0.2.2/24 2001:db8::2/64", "wan0", "wan1")}
	}
	for name, c := range map[string]struct {
		neighbours func(b *lab) []*neighbour
		network    func(round int) vnode.Network
	}{
		"a bridge of the host": {onBridge, func(round int) vnode.Network {
			return vnode.Network{Mode: vnode.Bridge, Parent: "br9", Address: both, Reserved: round%8 != 0} // a probe takes 0.2 s
		}},
		"the bridge between nodes": {
			func(b *lab) []*neighbour {
				return []*neighbour{b.beside(vnode.Network{Mode: vnode.Bridge, Address: []string{"192.0.2.3/24", "2001:db8::3/64"}})}
			},
			func(int) vnode.Network { return vnode.Network{Mode: vnode.Bridge, Address: both} },
		},
		"nat": {
			func(b *lab) []*neighbour {
				if _, err := exec.LookPath("nft"); err != nil {
					b.t.Skip("needs nft: nftables is not installed")
				}
				node := b.beside(vnode.Network{Mode: vnode.NAT})
				host := &neighbour{lab: b, name: "the host", ns: b.host, dev: "berthtest-nat"}
				host.patient()
				return []*neighbour{host, node}
			},
			func(int) vnode.Network { return vnode.Network{Mode: vnode.NAT} },
		},
		"macvlan": {onAdapter, func(round int) vnode.Network {
			return vnode.Network{Mode: vnode.Macvlan, Parent: "wan0", Address: both, Reserved: round%8 != 0}
		}},
		"a lent adapter": {onAdapter, func(round int) vnode.Network {
			return vnode.Network{Mode: vnode.Phys, Parent: fmt.Sprintf("wan%d", round%2), Address: both, Reserved: round%8 != 0}
		}},
		"dhcp": {onBridge, func(int) vnode.Network { return vnode.Network{Mode: vnode.Bridge, Parent: "br9", DHCP: true} }},
	} {
		t.Run(name, func(t *testing.T) {
			b := newLab(t)
			neighbours := c.neighbours(b)
			for round := range rounds(t) {
				s := b.node(fmt.Sprintf("n%d", round))
				steps := s.steps(c.network(round))
				addrs := s.addresses(steps, v4)
				s.do(steps)
				state, err := netif.Read(s.ns, "eth0")
				testkit.Must(b.t, err)
				if port := c.network(round).Parent; c.network(round).Mode == vnode.Phys {
					neighbours[0].again(port, steps)
				}
				for _, m := range neighbours {
					for _, a := range addrs {
						if round > 0 {
							m.finds(fmt.Sprintf("round %d", round), a, state.MAC)
						}
						m.asks(a)
						m.finds("after a packet", a, state.MAC)
					}
				}
				s.undo(steps)
				forgotten(neighbours, addrs)
				s.undo(s.claims)
				forgotten(neighbours, addrs)
				s.kill()
			}
		})
	}
}

// addresses returns the addresses that steps give to a node. One with DHCP gets a lease of v4, as if a server had given it.
func (s *stand) addresses(steps []step.Step, v4 string) (all []netip.Addr) {
	s.t.Helper()
	for _, st := range steps {
		switch c := st.(type) {
		case *address.Configure:
			for _, cidr := range c.Address {
				all = append(all, netip.MustParsePrefix(cidr).Addr())
			}
		case *antispoof.Step:
			if c.Lease != "" {
				c.Lease = s.lease()
			}
		case *address.DHCP:
			c.File = s.lease()
			l := dhcp.Lease{Address: netip.MustParsePrefix(v4), Obtained: dhcp.Now(), Seconds: 3600, T1: 1800, T2: 3000}
			text, err := json.Marshal(l)
			testkit.Must(s.t, err)
			testkit.Must(s.t, os.WriteFile(c.File, text, 0o600))
			all = append(all, l.Address.Addr())
		}
	}
	return all
}

func (s *stand) lease() string { return s.ns.PIDFile + ".lease" }

// TestAddressMovesLive gives a running node another address by DHCP, and connects one again whose port was taken out of its bridge:
// another machine may have had the addresses meanwhile.
func TestAddressMovesLive(t *testing.T) {
	b := newLab(t)
	b.sh(b.host, "ip link add br9 address 02:00:5e:00:00:01 type bridge; ip link set br9 up; ip addr add 192.0.2.1/24 dev br9; ip addr add 2001:db8::1/64 dev br9 nodad")
	host := &neighbour{lab: b, name: "the host", ns: b.host, dev: "br9"}
	host.patient()
	ctx := context.Background()
	leased := b.node("leased")
	steps := leased.steps(vnode.Network{Mode: vnode.Bridge, Parent: "br9", DHCP: true})
	leased.addresses(steps, "192.0.2.10/24")
	leased.do(steps)
	b.t.Cleanup(func() { leased.undo(steps) })
	d := steps[len(steps)-1].(*address.DHCP)
	next := d.Lease()
	next.Address = netip.MustParsePrefix("192.0.2.11/24")
	host.remembers(next.Address.Addr())
	testkit.Must(b.t, d.Take(ctx, next))
	host.finds("another lease", next.Address.Addr(), leased.macs["eth0"])

	fixed := b.node("fixed")
	addrs := []string{"192.0.2.12/24", "2001:db8::12/64"}
	live := fixed.steps(vnode.Network{Mode: vnode.Bridge, Parent: "br9", Address: addrs})
	fixed.do(live)
	for _, s := range live {
		if v, ok := s.(*Veth); ok {
			testkit.Must(b.t, b.h.LinkSetNoMaster(b.get(v.HostIf)))
		}
	}
	for _, a := range addrs {
		host.remembers(netip.MustParsePrefix(a).Addr())
	}
	again, err := Reattach(ctx, live, nil)
	if testkit.Must(b.t, err); !slices.Equal(again, []string{"eth0"}) {
		t.Errorf("connected again: %v", again)
	}
	for _, a := range addrs {
		host.finds("connected again", netip.MustParsePrefix(a).Addr(), fixed.macs["eth0"])
	}
}

// TestNobodyHears starts a node on a lent adapter without a carrier: there is nobody to announce its address to, and that is no error.
func TestNobodyHears(t *testing.T) {
	b := newLab(t)
	b.need(&netlink.Veth{LinkAttrs: netif.Attrs("dead0", 0, mac.Address{}), PeerName: "dead0p"})
	s := b.node("a")
	steps := s.steps(vnode.Network{Mode: vnode.Phys, Parent: "dead0", Address: []string{"192.0.2.10/24"}, Reserved: true})
	for _, st := range steps {
		if c, ok := st.(*address.Configure); ok {
			c.Announce.Adapter = false // else it waits for seconds
		}
	}
	began := time.Now()
	s.do(steps)
	t.Logf("without a carrier: %s", time.Since(began))
	s.undo(steps)
}
