package fault

import (
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"

	"berth/test/testkit"
)

// published is a node of mode nat with ports, on a host whose firewall has rules of its own.
var published = node{"nat", func(w *world) string {
	if _, err := exec.LookPath("nft"); err != nil {
		w.Skip("needs nft: nftables is not installed")
	}
	w.adapter("eth9")
	lo, err := w.h.LinkByName("lo")
	testkit.Must(w, err)
	testkit.Must(w, w.h.LinkSetUp(lo))
	w.firewallOf("table ip other { chain FORWARD { type filter hook forward priority filter; policy accept; ip saddr 203.0.113.7 drop; }; }")
	return `
name: f1
image: host
command: [/bin/sleep, infinity]
network:
  - {mode: nat, ports: ["8080:80", "127.0.0.1:9000-9003:9000-9003/udp", "[2001:db8::5]:443:443"], rate: {tx: 10Mbit/s, rx: 20Mbit/s}}
`
}}

// firewallOf loads rules that are not Berth's.
func (w *world) firewallOf(rules string) {
	w.Helper()
	if out, err := exec.Command("nft", rules).CombinedOutput(); err != nil {
		w.Fatalf("nft: %v: %s", err, out)
	}
}

// TestNATNodeKilledAtEachStep kills apply, stop and rm of a node of mode nat at each step: bridge, rules, ports and
// forwarding are there while it runs, and nothing of them is left, and the rules of others are as they were.
func TestNATNodeKilledAtEachStep(t *testing.T) {
	s := newScene(t, published)
	for _, args := range [][]string{{"apply", "-f", s.spec}, {"stop", "--grace", "0s", "f1"}, {"rm", "--force", "f1"}} {
		s.steps(func(n int) bool {
			if args[0] != "apply" {
				s.ok("apply", "-f", s.spec)
			}
			what, killed := s.point(n, args...)
			if killed {
				s.repaired(what, "none", "down", "up")
			}
			s.works(what)
			return killed
		})
	}
}

// TestNATNodesTogether starts and ends two nodes of mode nat: the bridge goes with the last one.
func TestNATNodesTogether(t *testing.T) {
	s := newScene(t, published)
	second := s.file("f2.yaml", "name: f2\nimage: host\ncommand: [/bin/sleep, infinity]\nnetwork: [{mode: nat, ports: [\"8081:80\"]}]\n")
	s.ok("apply", "-f", s.spec)
	s.ok("apply", "-f", second)
	s.ok("rm", "--force", "f2")
	s.settled("the second node was removed", s.states, "up")
	s.ok("apply", "-f", second)

	// A firewall that starts removes all rules (nft flush ruleset): it is told, and the next start makes them again, with the ports of the
	// node that runs. The keeper, which looks at links alone, mends neither the table nor a port in it, also when doctor tries a link.
	testkit.Must(s, exec.Command("nft", "delete", "table", "inet", s.l.NATBridge()).Run())
	s.says("table "+s.l.NATBridge()+" of nftables is gone", []string{"ls"}, []string{"show", "f1"}, []string{"doctor"})
	s.ok("restart", "--grace", "0s", "f2")
	if out := s.ok("ls").out; strings.Contains(out, "NOT-CONNECTED") {
		t.Errorf("after the next start: %s", out)
	}
	testkit.Must(s, exec.Command("nft", "delete", "element", "inet", s.l.NATBridge(), "any4", "{ tcp . 8080 }").Run())
	s.says("port 8080:80 leads nowhere", []string{"ls"}, []string{"show", "f1"}, []string{"doctor"})
	s.ok("repair")
	if out := s.ok("ls").out; strings.Contains(out, "NOT-CONNECTED") {
		t.Errorf("after a repair: %s", out)
	}
	s.ok("rm", "--force", "f1")
	if _, err := s.h.LinkByName(s.l.NATBridge()); err != nil {
		t.Errorf("the bridge of f2 is gone with f1: %v", err)
	}
	s.ok("rm", "--force", "f2")
	s.settled("both were removed", s.states, "none")
}

// says checks that each of these commands prints some words, in however many lines.
func (s *scene) says(words string, commands ...[]string) {
	s.Helper()
	for _, args := range commands {
		if r := s.berth(args...); !strings.Contains(strings.Join(strings.Fields(r.out), " "), words) {
			s.Errorf("berth %v does not say %q:\n%s", args, words, r)
		}
	}
}

// TestNATBesideOthers runs nodes of mode nat beside rules that docker made: they are as before, also while a node runs, after
// "nft flush ruleset" Berth's own come back, and what the host cannot give is refused before anything is changed.
func TestNATBesideOthers(t *testing.T) {
	s := newScene(t, published)
	none := s.states["none"]
	refused := func(code int, words string, args ...string) {
		t.Helper()
		r := s.berth(args...)
		if r.code != code || !strings.Contains(r.err, words) {
			t.Errorf("berth %v: exit %d, %s; want exit %d and %q", args, r.code, r, code, words)
		}
		s.settled(fmt.Sprintf("berth %v was refused", args), s.states, "none")
	}
	l, err := net.Listen("tcp", "127.0.0.1:8080")
	testkit.Must(s, err)
	refused(5, "port 8080:80/tcp is taken by fault.test (pid", "apply", "-f", s.spec)
	l.Close()
	refused(125, "the host has no address 203.0.113.5", "run", "--image", "host", "-p", "203.0.113.5:80:80", "--", "/bin/true")
	refused(2, "a second network of mode nat", "apply", "-f", s.file("two.yaml", "name: f1\nimage: host\ncommand: [/bin/true]\nnetwork: [{mode: nat}, {mode: nat}]\n"))
	other := "nft add chain ip other input { type filter hook input priority 0\\; policy drop\\; }"
	testkit.Must(s, exec.Command("sh", "-c", other).Run())
	r := s.berth("apply", "-f", s.spec)
	line := "nft insert rule ip other input iifname " + s.l.NATBridge() + " udp dport 53 accept"
	if r.code != 3 || !strings.Contains(strings.Join(strings.Fields(r.err), " "), line) {
		t.Errorf("a firewall that drops: exit %d, %s", r.code, r)
	}
	testkit.Must(s, exec.Command("nft", strings.Fields(line)[1:]...).Run())
	s.ok("apply", "-f", s.spec)
	s.ok("rm", "--force", "f1")
	testkit.Must(s, exec.Command("nft", "delete", "chain", "ip", "other", "input").Run())
	s.settled("the firewall let it pass", s.states, "none")

	s.ok("apply", "-f", s.spec)
	refusedWhile := s.berth("run", "--image", "host", "-p", "127.0.0.1:8080:80", "--", "/bin/true")
	if refusedWhile.code != 125 || !strings.Contains(refusedWhile.err, "is taken by node f1/eth0") {
		t.Errorf("a port of another node: exit %d, %s", refusedWhile.code, refusedWhile)
	}
	s.settled("a second node was refused", s.states, "up")
	testkit.Must(s, exec.Command("nft", "delete", "table", "inet", s.l.NATBridge()).Run())
	if r := s.ok("apply", "-f", s.spec); !strings.Contains(r.out, "connected again: eth0") {
		t.Errorf("apply after its rules were removed: %s", r)
	}
	s.settled("its rules were removed, then apply", s.states, "up")
	s.ok("rm", "--force", "f1")
	if now := s.settled("all nodes are gone", s.states, "none"); now != "none" || len(none) == 0 {
		t.Errorf("the host is %s", now)
	}
}
