package fault

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/test/testkit"
)

// server is a DHCP server (dnsmasq) on the bridge br9 of the world, which has 192.0.2.1.
type server struct {
	*world
	cmd *exec.Cmd
}

const leasedSpec = `
name: f1
image: host
hostname: f1.example.org
command: [/bin/sleep, infinity]
network: [{mode: bridge, parent: br9, dhcp: true, routes: [{to: 198.51.100.0/24, via: 192.0.2.2}]}]
`

// leased is a node with an address by DHCP.
var leased = node{"dhcp", func(w *world) string {
	w.bridge()
	s := &server{world: w}
	s.start("--dhcp-range=192.0.2.50,192.0.2.59,255.255.255.0,12h", "--no-ping")
	return leasedSpec
}}

// bridge makes br9, and an address that nodes reach only by a default route.
func (w *world) bridge() {
	w.Helper()
	if _, err := exec.LookPath("dnsmasq"); err != nil {
		w.Skip("no dnsmasq: install Debian's package dnsmasq-base")
	}
	a := netlink.NewLinkAttrs()
	a.Name, a.HardwareAddr = "br9", net.HardwareAddr{2, 0, 0x5e, 0, 0, 0x99}
	testkit.Must(w, w.h.LinkAdd(&netlink.Bridge{LinkAttrs: a}))
	br, err := w.h.LinkByName("br9")
	testkit.Must(w, err)
	port := netlink.NewLinkAttrs() // gives the bridge a carrier without a node
	port.Name, port.MasterIndex = "port", br.Attrs().Index
	testkit.Must(w, w.h.LinkAdd(&netlink.Veth{LinkAttrs: port, PeerName: "plug"}))
	for _, name := range []string{"port", "plug"} {
		l, err := w.h.LinkByName(name)
		testkit.Must(w, err)
		testkit.Must(w, w.h.LinkSetUp(l))
	}
	for name, cidr := range map[string]string{"br9": "192.0.2.1/24", "lo": "203.0.113.1/32"} {
		l, err := w.h.LinkByName(name)
		testkit.Must(w, err)
		addr, err := netlink.ParseAddr(cidr)
		testkit.Must(w, err)
		testkit.Must(w, w.h.AddrAdd(l, addr))
		testkit.Must(w, w.h.LinkSetUp(l))
	}
	if !testkit.Happens(func() bool {
		br, err = w.h.LinkByName("br9")
		return err == nil && br.Attrs().OperState == netlink.OperUp // before the kernel has looked at its ports it is unknown
	}) {
		w.Fatalf("br9 has no carrier: %v", err)
	}
}

func (s *server) start(args ...string) {
	s.Helper()
	dir := filepath.Join(s.dir, "dns")
	testkit.Must(s, os.MkdirAll(dir, 0o755))
	s.cmd = exec.Command("dnsmasq", append([]string{
		"--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--user=root", "--port=0",
		"--interface=br9", "--except-interface=lo", "--bind-interfaces", "--dhcp-authoritative", "--log-dhcp",
		"--dhcp-leasefile=" + dir + "/leases", "--log-facility=" + dir + "/log",
	}, args...)...)
	// Its own mount namespace: the snapshot counts processes that see this world's mounts as Berth's.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Unshareflags: unix.CLONE_NEWNS}
	testkit.Must(s, s.cmd.Start())
	s.Cleanup(s.stop)
	if !testkit.Happens(func() bool { return strings.Contains(s.log(), "sockets bound exclusively to interface br9") }) {
		s.Fatalf("dnsmasq does not come up: %s", s.log())
	}
}

// brief starts busybox's server instead, because dnsmasq gives no lease of less than two minutes.
func (s *server) brief(seconds int) {
	s.Helper()
	dir := filepath.Join(s.dir, "dns")
	testkit.Must(s, os.MkdirAll(dir, 0o755))
	testkit.Must(s, os.WriteFile(filepath.Join(dir, "udhcpd.leases"), nil, 0o600))
	config := s.file("dns/udhcpd.conf", fmt.Sprintf("start 192.0.2.50\nend 192.0.2.59\ninterface br9\nlease_file %s/udhcpd.leases\npidfile %s/udhcpd.pid\n"+
		"min_lease %d\noption subnet 255.255.255.0\noption router 192.0.2.1\noption lease %d\n", dir, dir, seconds, seconds))
	s.cmd = exec.Command("busybox", "udhcpd", "-f", "-a", "50", config)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Unshareflags: unix.CLONE_NEWNS}
	testkit.Must(s, s.cmd.Start())
	s.Cleanup(s.stop)
}

func (s *server) stop() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	}
	s.cmd = nil
	_ = os.Remove(filepath.Join(s.dir, "dns/log"))
}

// log returns the server's log since it was started.
func (s *server) log() string {
	text, _ := os.ReadFile(filepath.Join(s.dir, "dns/log"))
	return string(text)
}

func newServer(t *testing.T, args ...string) *server {
	t.Helper()
	s := &server{world: newWorld(t)}
	s.bridge()
	s.start(append(args, "--no-ping")...) // else it pings for three seconds whether an address is free
	return s
}
