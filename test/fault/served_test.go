package fault

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/testkit"
)

// resolver makes dnsmasq the host's resolver, on its loopback, where it knows names of example.org.
func (w *world) resolver() {
	w.Helper()
	if _, err := exec.LookPath("dnsmasq"); err != nil {
		w.Skip("no dnsmasq: install Debian's package dnsmasq-base")
	}
	cmd := exec.Command("dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--user=root", "--no-resolv", "--no-hosts",
		"--bind-interfaces", "--listen-address=127.0.0.53", "--address=/example.org/192.0.2.7")
	testkit.Must(w, cmd.Start())
	w.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	testkit.Must(w, unix.Mount(w.file("resolv.conf", "nameserver 127.0.0.53\n"), "/etc/resolv.conf", "", unix.MS_BIND, ""))
	if !testkit.Happens(func() bool {
		c, err := net.Dial("tcp", "127.0.0.53:53")
		if err == nil {
			c.Close()
		}
		return err == nil
	}) {
		w.Fatal("dnsmasq does not answer")
	}
}

// server returns the pid of the process that serves names and ports, 0 if there is none.
func (w *world) server() int {
	w.Helper()
	for _, p := range w.processes() {
		if p.cmd == "berth netserve "+w.l.NetserveSocket() && !p.zombie {
			return p.pid
		}
	}
	return 0
}

// looksUp reports whether a node finds this address under a name.
func (w *world) looksUp(node, name, address string) bool {
	w.Helper()
	r := w.berth("exec", node, "--", "getent", "ahostsv4", name)
	if address == "" {
		return r.code == 2 // getent: not found
	}
	return r.code == 0 && strings.HasPrefix(r.out, address+" ")
}

// fetches reports whether the web server of node f1 answers a program of the host.
func (w *world) fetches(url string) bool {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), testkit.Bound())
	defer cancel()
	out, err := exec.CommandContext(ctx, "busybox", "wget", "-qO-", url).Output()
	return err == nil && string(out) == "f1\n"
}

// TestServed: nodes of mode nat know each other and the Internet by name, and the host reaches their ports at its loopback: also
// after the process that does this, the keeper, or both were killed, and after an upgrade of the keeper.
func TestServed(t *testing.T) {
	a := alone{world: newWorld(t)}
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs nft: nftables is not installed")
	}
	if _, err := exec.LookPath("busybox"); err != nil {
		t.Skip("needs busybox")
	}
	lo, err := a.h.LinkByName("lo")
	testkit.Must(a, err)
	testkit.Must(a, a.h.LinkSetUp(lo))
	a.adapter("eth9")
	a.resolver()
	a.apply("network: [{mode: nat, ports: [\"8080:80\"]}]\n", "exec busybox httpd -f -p 80 -h /etc")
	second := a.file("f2.yaml", "name: f2\nimage: host\nhostname: two.example.com\ncommand: [/bin/sleep, infinity]\nnetwork: [{mode: nat}]\n")
	a.ok("apply", "-f", second)
	works := func() bool {
		return a.fetches("http://127.0.0.1:8080/hostname") && a.fetches("http://[::1]:8080/hostname") &&
			a.looksUp("f2", "f1", "10.210.0.2") && a.looksUp("f1", "two.example.com", "10.210.0.3") && a.looksUp("f2", "www.example.org", "192.0.2.7")
	}
	if !testkit.Happens(works) { // the web server may not listen yet
		t.Fatalf("it does not work: %s\n%s", a.berth("exec", "f2", "--", "cat", "/etc/resolv.conf"), a.keeperLog())
	}
	if r := a.ok("exec", "f2", "--", "busybox", "wget", "-qO-", "http://f1.berth/hostname"); r.out != "f1\n" {
		t.Errorf("f2 reaches f1 by name: %s", r)
	}
	first := a.server()
	again := func(what string) {
		t.Helper()
		began := time.Now()
		a.killNow(a.server())
		if !testkit.Happens(works) {
			t.Fatalf("%s: it does not work again\n%s", what, a.keeperLog())
		}
		t.Logf("%s: works again after %v, all looked up", what, time.Since(began).Round(time.Millisecond))
	}
	again("killed")
	second2 := a.server()
	a.ok("keeper", "--upgrade")
	if now := a.server(); now != second2 || now == first || !works() {
		t.Errorf("after the keeper's upgrade process %d serves, before it %d", now, second2)
	}
	again("killed after the keeper's upgrade")
	pid := a.server()
	a.killKeeper()
	if a.server() != pid || !a.fetches("http://127.0.0.1:8080/hostname") {
		t.Error("without a keeper it does not work")
	}
	a.killNow(pid)
	a.ok("ls")
	if !testkit.Happens(works) {
		t.Errorf("the next keeper does not start the process\n%s", a.keeperLog())
	}
	a.ok("stop", "--grace", "0s", "f1")
	if !a.looksUp("f2", "f1", "") || a.fetches("http://127.0.0.1:8080/hostname") {
		t.Error("f1 is still served")
	}
	a.ok("start", "f1")
	if !testkit.Happens(works) {
		t.Error("f1 is not served after its new start")
	}
	// A program of the host has the port: the node that wants it is refused, and f1 goes on.
	l, err := net.Listen("tcp", "127.0.0.1:8081")
	testkit.Must(a, err)
	defer l.Close()
	if r := a.berth("apply", "-f", a.file("f3.yaml", "name: f3\nimage: host\ncommand: [/bin/sleep, infinity]\nnetwork: [{mode: nat, ports: [\"8081:80\"]}]\n")); r.code != 5 {
		t.Errorf("a port that a program of the host has: %s", r)
	}
	a.ok("rm", "--force", "f1", "f2")
	if pid := a.server(); pid != 0 {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		t.Errorf("process %s serves nobody", comm)
	}
	for _, f := range a.files() {
		if strings.Contains(f, "netserve") || strings.Contains(f, "nodes/") {
			t.Errorf("left: %s", f)
		}
	}
}
