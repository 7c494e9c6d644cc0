package fault

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"berth/test/testkit"
)

// networkOf opens the network namespace of a process.
func networkOf(w *world, pid int) *netlink.Handle {
	w.Helper()
	ns, err := netns.GetFromPid(pid)
	testkit.Must(w, err)
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	testkit.Must(w, err)
	return h
}

// held returns the node's IPv4 address ("" for none), its remaining lifetime in seconds, and its routes via gateways.
func (w *world) held() (address string, left int, routes string) {
	w.Helper()
	return w.heldBy(w.status("f1").PID)
}

// heldBy is held by a process of the node. Unlike held it calls no berth, which would start a keeper.
func (w *world) heldBy(pid int) (address string, left int, routes string) {
	w.Helper()
	h := networkOf(w, pid)
	defer h.Close()
	l, err := h.LinkByName("eth0")
	testkit.Must(w, err)
	addrs, err := h.AddrList(l, netlink.FAMILY_V4)
	testkit.Must(w, err)
	var all []string
	for _, a := range addrs {
		all, left = append(all, a.IPNet.String()), a.ValidLft
	}
	list, err := h.RouteList(l, netlink.FAMILY_V4)
	testkit.Must(w, err)
	for _, r := range list {
		if r.Gw != nil {
			routes += fmt.Sprintf("%s via %s;", r.Dst, r.Gw)
		}
	}
	return strings.Join(all, " "), left, routes
}

func (w *world) pings(from, to string) bool {
	return testkit.Happens(func() bool { return exec.Command("busybox", "ping", "-c", "1", "-W", "2", "-I", from, to).Run() == nil })
}

func (w *world) keeperLog() string {
	text, _ := os.ReadFile(w.l.KeeperLog())
	return string(text)
}

// TestDHCPLease leases an address that the server has reserved with the output of berth net export.
func TestDHCPLease(t *testing.T) {
	w := newWorld(t)
	w.bridge()
	spec := w.file("f1.yaml", leasedSpec)
	line := strings.TrimSpace(w.ok("net", "export", "-f", spec, "--format", "dnsmasq").out)
	mac, name, _ := strings.Cut(strings.TrimPrefix(line, "dhcp-host="), ",")
	s := &server{world: w}
	s.start("--dhcp-range=192.0.2.50,192.0.2.59,255.255.255.0,12h", "--dhcp-host="+mac+",192.0.2.42,"+name)
	w.ok("apply", "-f", spec)
	address, left, routes := w.held()
	if address != "192.0.2.42/24" || left < 11*3600 || left > 12*3600 {
		t.Errorf("it has %q for %d s", address, left)
	}
	for _, want := range []string{"0.0.0.0/0 via 192.0.2.1;", "198.51.100.0/24 via 192.0.2.2;"} {
		if !strings.Contains(routes, want) {
			t.Errorf("routes %q lack %q", routes, want)
		}
	}
	if !w.pings("203.0.113.1", "192.0.2.42") {
		t.Error("the node does not answer, or has no default route")
	}
	for _, want := range []string{"client provides name: f1.example.org", "DHCPACK(br9) 192.0.2.42 " + mac} {
		if !strings.Contains(s.log(), want) {
			t.Errorf("the server did not say %q:\n%s", want, s.log())
		}
	}
	if leases, _ := os.ReadFile(w.dir + "/dns/leases"); !strings.Contains(string(leases), " 01:"+mac) {
		t.Errorf("the server does not know the client id: %s", leases)
	}
	var d struct {
		Addresses []string
		Links     []struct {
			Address []string
			Lease   struct {
				Server string
				Ends   time.Time
			}
		}
	}
	testkit.Must(w, json.Unmarshal([]byte(w.ok("show", "f1", "--json").out), &d))
	if l := d.Links[0]; len(d.Addresses) != 1 || d.Addresses[0] != "192.0.2.42/24" || l.Lease.Server != "192.0.2.1" || time.Until(l.Lease.Ends).Round(time.Hour) != 12*time.Hour {
		t.Errorf("berth show: %+v", d)
	}
	if out := w.ok("show", "f1").out; !strings.Contains(out, "192.0.2.42/24") || !strings.Contains(out, "by DHCP from 192.0.2.1 until") {
		t.Error(out)
	}
	w.ok("rm", "--force", "f1")
	if !testkit.Happens(func() bool { return strings.Contains(s.log(), "DHCPRELEASE(br9) 192.0.2.42 "+mac) }) {
		t.Errorf("the lease was not given back:\n%s", s.log())
	}
}

// TestDHCPModes leases over a shared adapter (macvlan) and over a lent one (phys), which returns to the host unchanged.
func TestDHCPModes(t *testing.T) {
	s := newServer(t, "--dhcp-range=192.0.2.50,192.0.2.59,255.255.255.0,12h")
	for _, mode := range []string{"macvlan", "phys"} {
		before := s.links()
		s.ok("apply", "-f", s.file("f1.yaml", strings.Replace(leasedSpec, "mode: bridge, parent: br9", "mode: "+mode+", parent: plug", 1)))
		address, _, _ := s.held()
		if ip, _, _ := strings.Cut(address, "/"); !s.pings("203.0.113.1", ip) {
			t.Errorf("%s: the node has %q and does not answer", mode, address)
		}
		released := strings.Count(s.log(), "DHCPRELEASE")
		s.ok("rm", "--force", "f1")
		if !testkit.Happens(func() bool { return strings.Count(s.log(), "DHCPRELEASE") > released }) {
			t.Errorf("%s: the lease was not given back:\n%s", mode, s.log())
		}
		if !testkit.Happens(func() bool { return slices.Equal(s.links(), before) }) {
			t.Errorf("%s: %s", mode, cmp.Diff(before, s.links()))
		}
	}
}

// TestDHCPRenewed checks that the keeper renews a lease, and that after its death the keeper started by the next command does.
func TestDHCPRenewed(t *testing.T) {
	s := newServer(t, "--dhcp-range=192.0.2.50,192.0.2.59,255.255.255.0,2m", "--dhcp-option=58,5", "--dhcp-option=59,100")
	s.ok("apply", "-f", s.file("f1.yaml", leasedSpec))
	renewed := func(what string) {
		t.Helper()
		before := strings.Count(s.log(), "DHCPACK")
		seen := 0
		if !testkit.Happens(func() bool { _, seen, _ = s.held(); return strings.Count(s.log(), "DHCPACK") > before && seen >= 118 }) {
			t.Fatalf("%s: not renewed, %d s are left: %s\n%s", what, seen, s.keeperLog(), s.log())
		}
	}
	left := 0
	if !testkit.Happens(func() bool { _, left, _ = s.held(); return left <= 117 }) { // so a renewal is visible
		t.Fatalf("%d s are left", left)
	}
	renewed("by the keeper")
	if strings.Count(s.log(), "DHCPDISCOVER") != 1 {
		t.Errorf("it began anew:\n%s", s.log())
	}
	pid := s.status("f1").PID // before endKeeper: berth ls starts a keeper
	s.endKeeper()
	testkit.Must(s, unix.Kill(pid, 0)) // the node lives
	before := strings.Count(s.log(), "DHCPACK")
	testkit.Eventually(t, "the time of two renewals", func() bool { _, left, _ = s.heldBy(pid); return left <= 112 })
	if now := strings.Count(s.log(), "DHCPACK"); now != before {
		t.Fatal("renewed by nobody")
	}
	s.ok("repair")
	renewed("by the next keeper")
	if log := s.keeperLog(); log != "" {
		t.Errorf("the keeper says, though all is well: %s", log)
	}
	s.ok("rm", "--force", "f1")
}

// TestDHCPLost takes the lease away while the node runs: the server is restarted with other addresses and refuses the renewal
// (DHCPNAK). While the server is down the keeper repeats its requests.
func TestDHCPLost(t *testing.T) {
	s := newServer(t, "--dhcp-range=192.0.2.50,192.0.2.59,255.255.255.0,2m", "--dhcp-option=58,4", "--dhcp-option=59,100")
	s.ok("apply", "-f", s.file("f1.yaml", leasedSpec))
	s.stop()
	testkit.Must(s, os.Remove(s.dir+"/dns/leases"))
	s.start("--dhcp-range=192.0.2.70,192.0.2.79,255.255.255.0,12h")
	address, routes := "", ""
	if !testkit.Happens(func() bool { address, _, routes = s.held(); return strings.HasPrefix(address, "192.0.2.7") }) {
		t.Fatalf("it has %q: %s\n%s", address, s.keeperLog(), s.log())
	}
	if !testkit.Happens(func() bool { _, _, routes = s.held(); return strings.Count(routes, " via ") == 2 }) {
		t.Errorf("routes: %q", routes)
	}
	said := func() bool {
		return strings.Count(s.keeperLog(), "lost the leased address") == 1 && strings.Count(s.keeperLog(), "the address is leased") == 1
	}
	if !testkit.Happens(said) {
		t.Errorf("keeper.log: %s", s.keeperLog())
	}
	if !testkit.Happens(func() bool { return strings.Contains(s.ok("ls").out, address) }) {
		t.Errorf("berth ls does not know %s: %s", address, s.ok("ls").out)
	}
	s.ok("rm", "--force", "f1")
}

// TestDHCPEnds lets a lease expire while no server runs: the node loses its address, and gets one when a server is back.
func TestDHCPEnds(t *testing.T) {
	if testing.Short() {
		t.Skip("no leases are waited for with -short")
	}
	s := &server{world: newWorld(t)}
	s.bridge()
	s.brief(20)
	began := time.Now()
	s.ok("apply", "-f", s.file("f1.yaml", leasedSpec))
	first, left, _ := s.held()
	if first == "" || left > 20 {
		t.Fatalf("it has %q for %d s", first, left)
	}
	s.stop()
	now := first
	if !testkit.Happens(func() bool { now, _, _ = s.held(); return now == "" }) {
		t.Fatalf("after its end: %q", now)
	}
	if took := time.Since(began); took < 19*time.Second {
		t.Errorf("it was lost after %s", took)
	}
	s.start("--dhcp-range=192.0.2.50,192.0.2.59,255.255.255.0,12h")
	if !testkit.Happens(func() bool { now, _, _ = s.held(); return now != "" }) {
		t.Fatalf("the server is back, and the node has no address: %s", s.keeperLog())
	}
	for _, want := range []string{"could not be renewed yet", "the lease has ended", "the address is leased"} {
		if !testkit.Happens(func() bool { return strings.Contains(s.keeperLog(), want) }) { // it is said after it is done
			t.Errorf("keeper.log lacks %q: %s", want, s.keeperLog())
		}
	}
	s.ok("rm", "--force", "f1")
}

// TestDHCPNoServer starts a node without a DHCP server: apply fails in time and leaves nothing behind.
func TestDHCPNoServer(t *testing.T) {
	w := newWorld(t)
	w.bridge()
	w.ok("doctor") // makes the files that any first command makes
	spec := w.file("f1.yaml", leasedSpec)
	w.berth("apply", "-f", spec)
	before := w.snapshot()
	r := w.berth("apply", "-f", spec)
	if r.code != 1 || !strings.Contains(r.err, "no address for eth0 by DHCP: no DHCP server answered in 10s; is there a DHCP server on that network? else give it an address") {
		t.Errorf("exit %d: %s", r.code, r)
	}
	if r.took > 15*time.Second && testkit.Measures() {
		t.Errorf("it took %v", r.took)
	}
	w.settled("refused", map[string]snapshot{"none": before}, "none")
}

// TestDHCPRouteBeyond uses a spec with a route whose gateway is not reachable from the leased address: the start fails and the
// lease is released.
func TestDHCPRouteBeyond(t *testing.T) {
	s := newServer(t, "--dhcp-range=192.0.2.50,192.0.2.59,255.255.255.0,12h")
	r := s.berth("apply", "-f", s.file("f1.yaml", strings.Replace(leasedSpec, "via: 192.0.2.2", "via: 203.0.113.77", 1)))
	if r.code != 1 || !strings.Contains(r.err, "add route to 198.51.100.0/24 via 203.0.113.77 on eth0, which has the leased address 192.0.2.5") {
		t.Errorf("exit %d: %s", r.code, r)
	}
	if !testkit.Happens(func() bool { return strings.Contains(s.log(), "DHCPRELEASE") }) {
		t.Errorf("the lease was not given back:\n%s", s.log())
	}
}

// TestDHCPAddressInUse has a machine on the network that uses a leased address: the node declines it and takes another.
func TestDHCPAddressInUse(t *testing.T) {
	s := newServer(t, "--dhcp-range=192.0.2.50,192.0.2.52,255.255.255.0,12h")
	spec := s.file("f1.yaml", leasedSpec)
	s.ok("apply", "-f", spec)
	first, _, _ := s.held() // the server offers the same address again
	s.ok("rm", "--force", "f1")
	gone := s.squat(first)
	s.ok("apply", "-f", spec)
	if address, _, _ := s.held(); address == "" || address == first {
		t.Errorf("it has %q, as before", address)
	}
	ip, _, _ := strings.Cut(first, "/")
	if !strings.Contains(s.log(), "DHCPDECLINE(br9) "+ip+" ") {
		t.Errorf("nothing was declined:\n%s", s.log())
	}
	s.ok("rm", "--force", "f1")
	gone()
	s.squat("192.0.2.50/24", "192.0.2.51/24", "192.0.2.52/24")
	r := s.berth("apply", "-f", spec)
	if r.code != 5 || !strings.Contains(r.err, "no address for eth0 by DHCP: what server 192.0.2.1 gives is in use on that network: 192.0.2.5") {
		t.Errorf("all addresses are in use: exit %d: %s", r.code, r)
	}
}

// squat adds a machine to the network that uses addresses without a lease. gone removes it.
func (s *server) squat(cidrs ...string) (gone func()) {
	s.Helper()
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Unshareflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS}
	testkit.Must(s, cmd.Start())
	gone = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	s.Cleanup(gone)
	br, err := s.h.LinkByName("br9")
	testkit.Must(s, err)
	a := netlink.NewLinkAttrs()
	a.Name, a.MasterIndex = fmt.Sprint("squat", cmd.Process.Pid), br.Attrs().Index
	pair := &netlink.Veth{LinkAttrs: a, PeerName: "eth0", PeerNamespace: netlink.NsPid(cmd.Process.Pid)}
	testkit.Must(s, s.h.LinkAdd(pair))
	testkit.Must(s, s.h.LinkSetUp(pair))
	h := networkOf(s.world, cmd.Process.Pid)
	defer h.Close()
	l, err := h.LinkByName("eth0")
	testkit.Must(s, err)
	for _, cidr := range cidrs {
		a, err := netlink.ParseAddr(cidr)
		testkit.Must(s, err)
		testkit.Must(s, h.AddrAdd(l, a))
	}
	testkit.Must(s, h.LinkSetUp(l))
	return gone
}

// TestDHCPRun leases an address for a foreground node, from a slow server, and releases it when its command ends.
func TestDHCPRun(t *testing.T) {
	s := &server{world: newWorld(t)}
	s.bridge()
	s.start("--dhcp-range=192.0.2.50,192.0.2.59,255.255.255.0,12h")
	before := s.snapshot()
	spec := s.file("f1.yaml", strings.Replace(leasedSpec, "[/bin/sleep, infinity]", "[/bin/sh, -c, 'exit 7']", 1))
	if r := s.berth("run", "-f", spec); r.code != 7 {
		t.Errorf("exit %d: %s", r.code, r)
	}
	if !testkit.Happens(func() bool { return strings.Contains(s.log(), "DHCPRELEASE(br9)") }) {
		t.Errorf("the lease was not given back:\n%s", s.log())
	}
	s.settled("berth run ended", map[string]snapshot{"none": before}, "none")
	if r := s.berth("run", "--network", "bridge:br9,dhcp", "--image", "host", "--", "cat", "/proc/net/fib_trie"); r.code != 0 || !strings.Contains(r.out, "192.0.2.5") {
		t.Errorf("exit %d: %s", r.code, r)
	}
}

func TestDHCPNodeKilledAtEachStep(t *testing.T) {
	s := newScene(t, leased)
	for _, args := range [][]string{{"apply", "-f", s.spec}, {"rm", "--force", "f1"}} {
		s.steps(func(n int) bool {
			if args[0] == "rm" {
				s.ok("apply", "-f", s.spec)
			}
			what, killed := s.point(n, args...)
			if killed {
				s.repaired(what, "none", "up")
			}
			s.works(what)
			return killed
		})
	}
}
