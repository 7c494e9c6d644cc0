package reconcile

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"berth/internal/site/slurm/control"
)

// TestDrained: what slurmctld 22.05 drains a node for is told from what admins write.
func TestDrained(t *testing.T) {
	for reason, want := range map[string]bool{
		"Low TmpDisk":                            true,
		"Duplicate jobid":                        true,
		"Kill task failed twice":                 false,
		"Low CPUs":                               true,
		"Low socket*core*thread count":           true,
		"Low socket*core*thread count, Low CPUs": true,
		"Low RealMemory (reported:400 < 100.00% of configured:512)":        true,
		"gres/scratch count reported lower than configured (0 < 33554432)": true,
		"Low RealMemory in slot 3":                                         false,
		"gres/gpu broken":                                                  false,
		"new disk":                                                         false,
		"":                                                                 false,
	} {
		if got := drained.MatchString(reason); got != want {
			t.Errorf("%q: %v", reason, got)
		}
	}
}

// TestTroubles: the table of docs/slurm.md says rightly which nodes are given back.
func TestTroubles(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/slurm.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(page), "| reason of a node |")
	table, _, end := strings.Cut(table, "\n\n")
	if !ok || !end {
		t.Fatal("the table is not there")
	}
	seen := map[bool]int{}
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[0], -1) {
			n := control.Node{Name: "st01-03", State: []string{"DOWN"}, Reason: m[1]}
			back := n.Failed(reasons()...) || drained.MatchString(n.Reason)
			if said := cells[len(cells)-1] == "yes"; said != back {
				t.Errorf("%s: the page says that it is given back: %v", m[1], said)
			}
			seen[back]++
		}
	}
	if seen[true] < 10 || seen[false] == 0 {
		t.Errorf("the table has few reasons: %v", seen)
	}
}
