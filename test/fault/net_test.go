package fault

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// rated is a node with a MAC of a pool, and rates in both directions.
var rated = node{"rated", func(w *world) string {
	w.adapter("eth9")
	w.ok("net", "pool", "add", "lab", "02:00:5e:10:01:00-02:00:5e:10:01:ff")
	return `
name: f1
image: host
command: [/bin/sleep, infinity]
network:
  - {name: eth0, mode: bridge, mac: pool lab, address: [10.9.8.1/24], rate: {tx: 10Mbit/s, rx: 20Mbit/s}}
  - {name: lan0, mode: macvlan, parent: eth9, rate: {rx: 30Mbit/s}}
`
}}

func TestRatedNodeKilledAtEachStep(t *testing.T) {
	s := newScene(t, rated)
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

// TestRateSetKilledAtEachStep kills a berth set that lowers, removes and adds rates: the kernel has all changes or none.
func TestRateSetKilledAtEachStep(t *testing.T) {
	s := newScene(t, rated)
	before := map[string]string{"net.eth0.tx": "10Mbit/s", "net.eth0.rx": "20Mbit/s", "net.lan0.rx": "30Mbit/s"}
	after := map[string]string{"net.eth0.tx": "5Mbit/s", "net.eth0.rx": "20Mbit/s", "net.lan0.tx": "1Gbit/s"}
	s.steps(func(n int) bool {
		s.ok("apply", "-f", s.spec)
		what, killed := s.point(n, "set", "f1", "net.eth0.tx=5Mbit/s", "net.lan0.rx=max", "net.lan0.tx=1Gbit/s")
		said := ""
		if killed {
			said = s.ok("repair").out
		}
		s.settled(what, s.states, "up")
		now := s.limits(what)
		delete(now, "pids") // the default
		isOld, isNew := cmp.Equal(now, before), cmp.Equal(now, after)
		switch {
		case !isOld && !isNew, !killed && !isNew:
			s.Fatalf("%s: limits are %v", what, now)
		case strings.Contains(said, "old values") && !isOld, strings.Contains(said, "new values") && !isNew:
			s.Errorf("%s: repair said %q, the limits are %v", what, said, now)
		}
		return killed
	})
}
