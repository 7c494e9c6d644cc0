package slurm

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"berth/test/testkit"
)

// TestReservedAddresses: nodes of a template whose addresses are numbered and reserved have them, one after another and beside each other, and slurmctld
// is told. It prints what of a start is Berth's part.
func TestReservedAddresses(t *testing.T) {
	s := newSite(t, 3)
	path := s.layout.Etc("templates/worker.yaml")
	text, err := os.ReadFile(path)
	check(t, err)
	check(t, os.WriteFile(path, []byte("numbered: true\n"+strings.Replace(string(text), "dhcp: true", "reserved: true, address: ["+s.subnet+".100/24]", 1)), 0o644))
	rounds := 1
	if testkit.Measures() {
		rounds = 9
	}
	for i, nodes := range []int{1, 1, 3} {
		rounds := rounds
		if i == 0 {
			rounds = 1 // Berth tries the runtimes of a host before its first node, once
		}
		before := len(s.took("resume"))
		list := fmt.Sprintf("st01-[01-%02d]", nodes)
		for range rounds {
			s.run("scontrol", "update", "NodeName="+list, "State=POWER_UP")
			s.until("the nodes are up", func() bool {
				return strings.Count(s.run("scontrol", "show", "node", list), "State=IDLE+CLOUD ThreadsPerCore") == nodes
			})
			for i := range nodes {
				name, address := fmt.Sprintf("st01-%02d", i+1), fmt.Sprintf("%s.%d", s.subnet, 101+i)
				if got := s.run("scontrol", "show", "node", name); !strings.Contains(got, "NodeAddr="+address+" ") {
					t.Errorf("%s is not at %s:\n%s", name, address, got)
				}
			}
			s.run("scontrol", "update", "NodeName="+list, "State=POWER_DOWN_FORCE")
			s.until("the nodes are removed", func() bool { return len(s.nodes()) == 0 })
			s.until("slurmctld says so", func() bool { return strings.Count(s.run("scontrol", "show", "node", list), "+POWERED_DOWN") == nodes })
		}
		took := s.took("resume")[before:]
		if len(took) != rounds*nodes {
			t.Errorf("%d nodes were made, not %d", len(took), rounds*nodes)
		}
		if i > 0 {
			t.Logf("Berth's part, %d at a time: %s", nodes, spread(took))
		}
	}
	t.Logf("suspend: %s", spread(s.took("suspend")))
}
