package slurm

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/internal/sys/file"
	"berth/test/testkit"
)

var startJSON = flag.String("start-json", "", "TestReservedAddresses: file for what was measured")

// mostPart is the median of Berth's part of a start that docs/slurm.md names: more is a fault where a machine that does nothing else measures.
const mostPart = 150 * time.Millisecond

// measured is what starts took: seconds, in the order of their size.
type measured struct {
	Command string    `json:"command"`
	Began   time.Time `json:"began"`
	Slurm   string    `json:"slurm"`
	CPUs    int       `json:"cpus"`
	Load    string    `json:"loadavg_at_begin"`
	One     []float64 `json:"berths_part_one_at_a_time_s"`
	Three   []float64 `json:"berths_part_three_at_a_time_s"`
	Removed []float64 `json:"berths_part_of_a_removal_s"`
	Jobs    []float64 `json:"submission_to_first_line_s"` // of jobs for which a node is made, one at a time
	Half    float64   `json:"submission_to_first_line_median_s"`
	Most    float64   `json:"submission_to_first_line_p99_s"`
}

func seconds(all []time.Duration) (s []float64) {
	for _, d := range all {
		s = append(s, d.Seconds())
	}
	slices.Sort(s)
	return s
}

// TestReservedAddresses: nodes of a template whose addresses are numbered and reserved have them, one after another and beside each other, and slurmctld
// is told. It prints what of a start is Berth's part.
func TestReservedAddresses(t *testing.T) {
	s := newSite(t, 3)
	path := s.layout.Etc("templates/worker.yaml")
	text, err := os.ReadFile(path)
	testkit.Must(t, err)
	testkit.Must(t, os.WriteFile(path, []byte("numbered: true\n"+strings.Replace(string(text), "dhcp: true", "reserved: true, address: ["+s.subnet+".100/24]", 1)), 0o644))
	rounds, jobs := 1, 0
	if testkit.Measures() {
		rounds, jobs = 9, 100 // the fewest of which one is the p99
	}
	m := measured{Began: time.Now().UTC(), Slurm: s.run("slurmctld", "-V"), CPUs: runtime.NumCPU(), Load: file.Text("/proc/loadavg")}
	m.Command = "BERTH_MEASURED=1 go test -count=1 -v -timeout 60m -run TestReservedAddresses ./test/slurm -start-json FILE"
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
		if nodes == 1 {
			m.One = seconds(took) // the second time: those after the host's first node
		} else {
			m.Three = seconds(took)
		}
	}
	for range jobs {
		m.Jobs = append(m.Jobs, s.firstLine().Seconds())
		s.run("scontrol", "update", "NodeName=st01-01", "State=POWER_DOWN_FORCE")
		s.until("the node may be made again", func() bool {
			return len(s.nodes()) == 0 && strings.Contains(s.run("scontrol", "show", "node", "st01-01"), "+POWERED_DOWN")
		})
	}
	t.Logf("suspend: %s", spread(s.took("suspend")))
	if jobs == 0 {
		return
	}
	slices.Sort(m.Jobs)
	m.Half, m.Most, m.Removed = m.Jobs[jobs/2], m.Jobs[(99*jobs+99)/100-1], seconds(s.took("suspend"))
	t.Logf("from submission to the job's first line, %d jobs on new nodes: median %.2f s, p99 %.2f s", jobs, m.Half, m.Most)
	if half := m.One[len(m.One)/2]; half > mostPart.Seconds() {
		t.Errorf("Berth's part of a start: median %.3f s, more than %s", half, mostPart)
	}
	if *startJSON != "" {
		text, err := json.MarshalIndent(m, "", "\t")
		testkit.Must(t, err)
		testkit.Must(t, os.WriteFile(*startJSON, append(text, '\n'), 0o644))
	}
}
