package sync

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/sys/layout"
	"berth/test/room"
	"berth/test/testkit"
)

var (
	setAgents  = flag.Int("set-agents", 20, "TestSets: how many agents")
	setServers = flag.Int("set-servers", 10, "how many of them are servers of the file system")
	setTimes   = flag.Int("sets", 30, "how often a rate is set")
	setJSON    = flag.String("set-json", "", "file for the result")
)

// setsResult is what TestSets measured. Times are seconds from the start of berth set, CPU is cores, memory MiB.
type setsResult struct {
	Agents  int     `json:"agents"`
	Servers int     `json:"servers"`
	CPUs    int     `json:"cpus"`
	Kernel  string  `json:"kernel"`
	Started float64 `json:"all_agents_answered_after"`
	Sets    []set   `json:"sets"`

	P50      float64 `json:"p50"`
	P99      float64 `json:"p99"`
	Max      float64 `json:"max"`
	Quantile float64 `json:"quantile"`
	Bound    float64 `json:"quantile_upper_bound"` // with 95 % confidence that quantile is not above
	Commands float64 `json:"command_p50"`          // the command alone

	AgentMiB   float64 `json:"agent_rss_largest"`
	AgentsMiB  float64 `json:"agents_pss_all"` // pages that they share counted once
	AgentRest  float64 `json:"agents_cpu_at_rest"`
	ServerRest float64 `json:"of_it_servers"`
	EtcdRest   float64 `json:"etcd_cpu_at_rest"`
	AtRest     float64 `json:"rest"`
}

// set is one set.
type set struct {
	Each    bool    `json:"per_server"` // else the rate is split over the servers
	Command float64 `json:"command"`    // until it had ended
	All     float64 `json:"all"`        // until the kernel of each server had the new value
}

// another makes the root of another host, which shares the programs, the disk and the bridge.
func (s *site) another(name string) *site {
	s.t.Helper()
	m := &site{t: s.t, dir: s.dir, root: filepath.Join(s.dir, name), disk: s.disk, served: filepath.Join(s.served, name), link: s.link, net: s.net}
	m.layout = layout.New(m.root)
	for _, d := range []string{m.root, m.served} {
		testkit.Must(s.t, os.Mkdir(d, 0o755))
	}
	return m
}

// TestSets: a rate that is set is what the kernels of all servers of the file system have, soon, in a site of many agents.
func TestSets(t *testing.T) {
	room.For(t, *setAgents)
	first := newSite(t, "198.51.115")
	all := []*site{first}
	for i := 1; i < *setAgents; i++ {
		all = append(all, first.another(fmt.Sprintf("h%03d", i)))
	}
	// The last agents are the servers; nodes are on others, one whose servers allow the whole rate each, one whose rate is split.
	servers, on := all[len(all)-*setServers:], all[:2]
	etcd := together(t, all...)
	for _, m := range all[:len(all)-*setServers] {
		m.configure("")
		m.left = !slices.Contains(on, m) // no kernel has anything of it
	}
	began := time.Now()
	for _, m := range all {
		m.launch()
	}
	t.Cleanup(func() { // all at once, before each waits for its own
		for _, m := range all {
			_ = m.agent.Process.Signal(syscall.SIGTERM)
		}
	})
	for _, m := range all {
		m.answers()
	}
	r := setsResult{Agents: len(all), Servers: len(servers), CPUs: runtime.NumCPU(), Started: time.Since(began).Seconds()}
	var kernel unix.Utsname
	testkit.Must(t, unix.Uname(&kernel))
	r.Kernel = unix.ByteSliceToString(kernel.Release[:])
	const rate = 100_000_000
	entry := "io: [{name: s, filesystem: shared, read: {rate: 100MB/s}%s}]\n"
	on[0].node("each", 2, fmt.Sprintf(entry, ", per_server: true"))
	on[1].node("split", 3, fmt.Sprintf(entry, ""))
	parts := func() (all []uint64, sum uint64) {
		for _, m := range servers {
			n := m.limit("split")
			all, sum = append(all, n), sum+n
		}
		return all, sum
	}
	first.eventually("all servers have both nodes", 30*time.Second, func() bool {
		return !slices.ContainsFunc(servers, func(m *site) bool { return m.limit("each") != rate || m.limit("split") == 0 })
	})
	first.eventually("parts stand still", time.Minute, func() bool {
		was, _ := parts()
		time.Sleep(2 * time.Second)
		is, sum := parts()
		return slices.Equal(was, is) && sum > rate*97/100 && sum <= rate
	})
	before := uint64(rate)
	for i := range *setTimes {
		now := uint64(rate + i*100_000)
		if i/2%2 == 0 { // each value is far from the one before it
			now /= 2
		}
		one := set{Each: i%2 == 0}
		had := before
		if !one.Each {
			before = now
		}
		one.measure(all, on[i%2], servers, now, had)
		r.Sets = append(r.Sets, one)
		if _, s := parts(); s > before || s < before*97/100 {
			t.Errorf("after set %d the parts of all servers are %d bytes a second together, asked for %d", i, s, before)
		}
	}
	r.count()
	r.rest(t, etcd.PID(), all, servers)
	text, err := json.MarshalIndent(r, "", "  ")
	testkit.Must(t, err)
	if *setJSON != "" {
		testkit.Must(t, os.WriteFile(*setJSON, append(text, '\n'), 0o644))
	}
	t.Logf("%d agents, %d servers, %d sets: p50 %.3f s, p99 %.3f s, at most %.3f s; the quantile %.2f is at most %.3f s (95 %% confidence)",
		r.Agents, r.Servers, len(r.Sets), r.P50, r.P99, r.Max, r.Quantile, r.Bound)
	t.Logf("all agents answered after %.1f s, the largest has %.0f MiB, all together %.0f MiB; at rest they use %.3f CPUs", r.Started, r.AgentMiB, r.AgentsMiB, r.AgentRest)
	most := 1.0
	if r.Agents >= 200 {
		most = 2
	}
	if testkit.Measures() && r.Bound >= most {
		t.Errorf("the quantile %.2f of the time until a rate is in force on all servers is at most %.3f s, allowed are %.0f", r.Quantile, r.Bound, most)
	}
}

// measure sets a rate and waits until the kernels of all servers have it. had is the rate before.
func (one *set) measure(all []*site, on *site, servers []*site, now, had uint64) {
	t := on.t
	t.Helper()
	node, olds := "split", map[*site]uint64{}
	if one.Each {
		node = "each"
	}
	for _, m := range servers {
		olds[m] = m.limit(node)
	}
	has := func(m *site) bool {
		is := m.limit(node)
		if one.Each {
			return is == now
		}
		moved := math.Log(float64(is) / float64(olds[m])) // its part of the allowance may move a little meanwhile
		return math.Abs(moved-math.Log(float64(now)/float64(had))) < math.Abs(moved)
	}
	began := time.Now()
	c := exec.Command(on.dir+"/berth", "--root", on.root, "set", node, fmt.Sprintf("io.s.read.rate=%dkB/s", now/1000))
	var ended sync.WaitGroup
	ended.Go(func() {
		if text, err := c.CombinedOutput(); err != nil {
			t.Errorf("berth set: %v: %s", err, text)
		}
		one.Command = time.Since(began).Seconds()
	})
	waits := slices.Clone(servers)
	for ; len(waits) > 0; time.Sleep(time.Millisecond) {
		waits = slices.DeleteFunc(waits, has)
		if time.Since(began) > testkit.Bound() {
			for _, m := range all {
				t.Logf("berthd said:\n%s", m.said.String())
			}
			t.Fatalf("%d servers do not have %d bytes a second for %s", len(waits), now, node)
		}
	}
	one.All = time.Since(began).Seconds()
	ended.Wait()
}

// count makes the figures of the sets.
func (r *setsResult) count() {
	var took, commands []float64
	for _, s := range r.Sets {
		took, commands = append(took, s.All), append(commands, s.Command)
	}
	slices.Sort(took)
	slices.Sort(commands)
	at := func(of []float64, q float64) float64 { return of[max(0, int(math.Ceil(q*float64(len(of))))-1)] }
	r.P50, r.P99, r.Max, r.Commands = at(took, 0.5), at(took, 0.99), at(took, 1), at(commands, 0.5)
	r.Quantile = 0.85 // a pause of the machine must not decide where sets are few
	if len(took) >= 299 {
		r.Quantile = 0.99
	}
	r.Bound = bound(took, r.Quantile)
}

// bound is the smallest of the samples, which are sorted, that a quantile is not above with 95 % confidence: so many samples or
// fewer lie above the quantile with a probability of at most 5 %. With too few samples it is infinite.
func bound(sorted []float64, q float64) float64 {
	n := len(sorted)
	above, tail := 0, 0.0
	for term := math.Pow(q, float64(n)); above < n; above++ { // of exactly so many above it
		if tail += term; tail > 0.05 {
			break
		}
		term *= float64(n-above) / float64(above+1) * (1 - q) / q
	}
	if above == 0 {
		return math.Inf(1)
	}
	return sorted[n-above]
}

// TestBound: of 300 samples the largest bounds the 99th percentile, of 298 none does.
func TestBound(t *testing.T) {
	for _, c := range []struct {
		n     int
		q     float64
		above int // samples above the bound
	}{{300, 0.99, 0}, {298, 0.99, -1}, {30, 0.85, 1}, {20, 0.85, 0}, {59, 0.95, 0}, {1000, 0.99, 4}} {
		var all []float64
		for i := range c.n {
			all = append(all, float64(i))
		}
		want := float64(c.n - 1 - c.above)
		if c.above < 0 {
			want = math.Inf(1)
		}
		if got := bound(all, c.q); got != want {
			t.Errorf("%d samples, quantile %v: %v, want %v", c.n, c.q, got, want)
		}
	}
}

// rest measures what the agents have and use while nothing is set.
func (r *setsResult) rest(t *testing.T, etcd int, all, servers []*site) {
	t.Helper()
	const rest = 5 * time.Second
	used := func(of []*site) (sum time.Duration) {
		for _, m := range of {
			sum += m.cpu(m.agent.Process.Pid)
		}
		return sum
	}
	every, serving, stored, began := used(all), used(servers), all[0].cpu(etcd), time.Now()
	time.Sleep(rest)
	took := time.Since(began).Seconds()
	r.AtRest, r.AgentRest, r.ServerRest = took, (used(all)-every).Seconds()/took, (used(servers)-serving).Seconds()/took
	r.EtcdRest = (all[0].cpu(etcd) - stored).Seconds() / took
	for _, m := range all {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", m.agent.Process.Pid))
		testkit.Must(t, err)
		for line := range strings.Lines(string(text)) {
			var kib float64
			if n, _ := fmt.Sscanf(line, "Rss: %f kB", &kib); n == 1 {
				r.AgentMiB = max(r.AgentMiB, kib/1024)
			}
			if n, _ := fmt.Sscanf(line, "Pss: %f kB", &kib); n == 1 {
				r.AgentsMiB += kib / 1024
			}
		}
	}
}
