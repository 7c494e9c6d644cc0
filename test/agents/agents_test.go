// Package agents measures many agents against one real etcd: real programs, each with a root of its own whose nodes are files that
// no kernel knows.
package agents

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/internal/site/agent"
	"berth/internal/site/agentconf"
	"berth/internal/site/api"
	"berth/internal/site/store"
	"berth/internal/site/store/etcd"
	"berth/internal/site/store/storetest"
	"berth/internal/sys/layout"
	"berth/internal/sys/step"
	"berth/test/room"
	"berth/test/testkit"
)

var (
	agents = flag.Int("agents", few(20, 3), "how many agents")
	nodes  = flag.Int("nodes", few(50, 20), "nodes of each")
	rounds = flag.Int("rounds", few(20, 5), "changes of a configuration")
	rest   = flag.Duration("rest", time.Duration(few(5000, 100))*time.Millisecond, "how long the agents are looked at while nothing happens")
	out    = flag.String("json", "", "file for the result, whose bounds count")
)

// few is how many there are where a run measures, or does not.
func few(measured, not int) int {
	if testkit.Measures() {
		return measured
	}
	return not
}

const child = "BERTH_TEST_AGENT" // the root of the agent that this process is

func TestMain(m *testing.M) {
	if root := os.Getenv(child); root != "" {
		if err := be(root); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// be is an agent. It prints when it answers, and when it sees a configuration; asked for it on its input, it lists nodes.
func be(root string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	l := layout.New(root)
	c, err := agentconf.Read(l, agentconf.Path(l))
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	return agent.Serve(ctx, c, l, log, func(a *agent.Agent, _ []net.Addr) {
		a.Site().Follow(func(ch store.Change) {
			if strings.HasPrefix(ch.Key, store.IO) {
				fmt.Printf("seen %s %d\n", ch.Value, time.Now().UnixNano())
			}
		})
		go func() {
			for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
				began := time.Now()
				found, stale, err := filtered(ctx, a, lines.Text())
				fmt.Printf("listed %d %d %q %v\n", found, time.Since(began), stale, err)
			}
		}()
		fmt.Println("ready")
	})
}

// filtered lists the site's nodes of one host as the API does, and returns how many it found and how many there are.
func filtered(ctx context.Context, a *agent.Agent, host string) (int, string, error) {
	all, stale, err := a.Nodes(ctx)
	if err != nil {
		return 0, stale, err
	}
	all = slices.DeleteFunc(all, func(n api.SiteNode) bool {
		return host != "all" && n.Host != host || n.Owner != "slurm" || n.Phase != "stopped"
	})
	_, err = json.Marshal(api.SiteNodes{Nodes: all, Stale: stale})
	return len(all), stale, err
}

// one is one agent of the test.
type one struct {
	cmd   *exec.Cmd
	lines chan string
	ask   func(string) error
}

// TestAgents: a changed configuration reaches all agents, and each lists all nodes of the site. Where a run measures, this is soon, and
// at rest neither they nor etcd use the CPU.
func TestAgents(t *testing.T) {
	testkit.NeedsRoot(t)
	program, err := exec.LookPath("etcd")
	if err != nil {
		t.Skip("etcd is not installed: apt-get install etcd-server")
	}
	room.For(t, *agents)
	server, endpoint := storetest.Etcd(t, program)
	s, err := etcd.Open(etcd.Config{Endpoints: []string{endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	storetest.Ready(t, s)
	began := time.Now()
	fleet := start(t, endpoint)
	want := *agents * *nodes
	for deadline := time.Now().Add(3 * testkit.Bound()); ; time.Sleep(200 * time.Millisecond) {
		all, _, err := s.List(t.Context(), store.Nodes)
		if err == nil && len(all) == want {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d nodes are told, want %d: %v", len(all), want, err)
		}
	}
	r := result{Agents: *agents, Nodes: want, CPUs: runtime.NumCPU(), Kernel: release(t), Etcd: version(t, program), Started: time.Since(began).Seconds()}
	r.Changes, r.P50, r.P99, r.Max, r.Last = changes(t, s, fleet)
	r.List = lists(t, fleet, want)
	r.atRest(t, server.PID(), fleet)
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", text)
	if *out != "" {
		if err := os.WriteFile(*out, append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for what, bad := range map[string]bool{
		// One pause of the machine delays a whole round, here 5 % of the samples: rounds count, each with its slowest agent.
		"in 9 of 10 rounds a changed configuration reaches the last agent in under 2 s": r.Last >= 2,
		"etcd at rest takes under 10 % of a core":                                       r.EtcdCPU >= 0.10,
		"an agent takes under 60 MiB":                                                   r.AgentMiB >= 60,
		"an agent at rest takes under 1 % of a core":                                    r.AgentCPU >= 0.01,
		"the nodes are listed with filters in under 300 ms":                             r.List >= 0.3,
	} {
		if bad && (testkit.Measures() || *out != "") {
			t.Errorf("not so: %s", what)
		}
	}
}

// result is what was measured. Times are seconds, CPU is cores.
type result struct {
	Agents   int     `json:"agents"`
	Nodes    int     `json:"nodes"`
	CPUs     int     `json:"cpus"`
	Kernel   string  `json:"kernel"`
	Etcd     string  `json:"etcd"`
	Started  float64 `json:"all_told_after"`
	Changes  int     `json:"changes_seen"`
	P50      float64 `json:"change_p50"`
	P99      float64 `json:"change_p99"`
	Max      float64 `json:"change_max"`
	Last     float64 `json:"change_last_p90"` // of the rounds, each with its slowest agent
	List     float64 `json:"list_slowest"`
	Rest     float64 `json:"rest"`
	EtcdCPU  float64 `json:"etcd_cpu_at_rest"`
	EtcdMiB  float64 `json:"etcd_mib"`
	AgentCPU float64 `json:"agent_cpu_at_rest_mean"`
	AgentMiB float64 `json:"agent_mib_largest"`
}

// start starts the agents, each with its nodes, and waits until they answer.
func start(t *testing.T, endpoint string) []*one {
	t.Helper()
	top := testkit.Dir(t, "") // a root must be reachable
	var fleet []*one
	for i := range *agents {
		name := fmt.Sprintf("h%03d", i)
		root := filepath.Join(top, name)
		l := layout.New(root)
		for j := range *nodes {
			node(t, l, fmt.Sprintf("%s-n%03d", name, j))
		}
		conf := fmt.Sprintf("host: %s\nlocal: true\nstore: {endpoints: [%q]}\n", name, endpoint)
		if err := os.WriteFile(filepath.Join(root, "berthd.yaml"), []byte(conf), 0o600); err != nil {
			t.Fatal(err)
		}
		fleet = append(fleet, spawn(t, root))
	}
	for i, a := range fleet {
		if line := a.next(t, testkit.Bound()); line != "ready" {
			t.Fatalf("agent %d: %q", i, line)
		}
	}
	return fleet
}

// node writes the files of a node that is not running.
func node(t *testing.T, l layout.Layout, name string) {
	t.Helper()
	dir := l.Node(name).Lib
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	boot, err := step.BootID()
	if err != nil {
		t.Fatal(err)
	}
	spec := fmt.Sprintf(`{"name":%q,"image":"host","labels":{"berth.owner":"slurm"}}`, name)
	for file, text := range map[string]string{
		"spec.json":   fmt.Sprintf(`{"applied":%s,"now":%s}`, spec, spec),
		"journal":     fmt.Sprintf("{\"berth\":3,\"boot\":%q,\"node\":%q}\n{\"phase\":\"up\"}\n", boot, name),
		"status.json": fmt.Sprintf(`{"name":%q,"state":"stopped","image":"host","addresses":["10.0.0.9"],"labels":{"berth.owner":"slurm"}}`, name),
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// spawn starts an agent, which ends with the test.
func spawn(t *testing.T, root string) *one {
	t.Helper()
	a := &one{cmd: exec.Command("/proc/self/exe"), lines: make(chan string, 1000)}
	a.cmd.Env = append(os.Environ(), child+"="+root, "GOMAXPROCS=2")
	a.cmd.Stderr = os.Stderr
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := a.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := a.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	a.ask = func(s string) error { _, err := fmt.Fprintln(in, s); return err }
	runtime.LockOSThread() // Pdeathsig is of this thread
	err = a.cmd.Start()
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			a.lines <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		_ = a.cmd.Process.Signal(syscall.SIGTERM)
		late := time.AfterFunc(testkit.Bound(), func() { _ = a.cmd.Process.Kill() })
		<-read
		if err := a.cmd.Wait(); err != nil || !late.Stop() {
			t.Errorf("an agent ended badly: %v", err)
		}
	})
	return a
}

func (a *one) next(t *testing.T, patience time.Duration) string {
	t.Helper()
	select {
	case line := <-a.lines:
		return line
	case <-time.After(patience):
		t.Fatal("an agent says nothing")
		return ""
	}
}

// changes changes a configuration again and again, and returns how long it took until an agent saw it.
func changes(t *testing.T, s store.Store, fleet []*one) (n int, p50, p99, most, last float64) {
	t.Helper()
	var took, slowest []float64
	for i := range *rounds {
		value := fmt.Sprintf(`{"addresses":["192.0.2.1"],"io":[{"name":"s","filesystem":"shared","weight":%d}]}`, i+1)
		began := time.Now()
		if _, err := s.Commit(t.Context(), nil, []store.Op{{Key: store.IO + "elsewhere/n001", Value: []byte(value)}}); err != nil {
			t.Fatal(err)
		}
		for _, a := range fleet {
			f := strings.Fields(a.next(t, testkit.Bound()))
			if len(f) != 3 || f[0] != "seen" || f[1] != value {
				t.Fatalf("change %s: %v", value, f)
			}
			at, err := strconv.ParseInt(f[2], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			took = append(took, time.Unix(0, at).Sub(began).Seconds())
		}
		slowest = append(slowest, slices.Max(took[len(took)-len(fleet):]))
	}
	at := func(of []float64, q float64) float64 {
		return slices.Sorted(slices.Values(of))[max(0, int(math.Ceil(q*float64(len(of))))-1)]
	}
	return len(took), at(took, 0.5), at(took, 0.99), slices.Max(took), at(slowest, 0.9)
}

// lists lets some agents list the nodes of the whole site, by owner and phase, and of one host, and returns the slowest.
func lists(t *testing.T, fleet []*one, want int) (slowest float64) {
	t.Helper()
	for _, a := range fleet[:min(5, len(fleet))] {
		for host, found := range map[string]int{"all": want, "h001": *nodes} {
			for deadline := time.Now().Add(testkit.Bound()); ; time.Sleep(100 * time.Millisecond) {
				if err := a.ask(host); err != nil {
					t.Fatal(err)
				}
				var n int
				var took time.Duration
				line := a.next(t, testkit.Bound())
				if _, err := fmt.Sscanf(line, "listed %d %d", &n, &took); err != nil {
					t.Fatalf("%q: %v", line, err)
				}
				if n == found { // the first lists may be of less: it is told of the other hosts' nodes by a watch
					slowest = max(slowest, took.Seconds())
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("%s: want %d", line, found)
				}
			}
		}
	}
	return slowest
}

// atRest measures what etcd and the agents use while nothing happens.
func (r *result) atRest(t *testing.T, server int, fleet []*one) {
	t.Helper()
	r.EtcdMiB, r.Rest = memory(t, server), rest.Seconds()
	etcd, all, began := cpu(t, server), time.Duration(0), time.Now()
	for _, a := range fleet {
		all -= cpu(t, a.cmd.Process.Pid)
	}
	time.Sleep(*rest)
	for _, a := range fleet {
		all += cpu(t, a.cmd.Process.Pid)
		r.AgentMiB = max(r.AgentMiB, memory(t, a.cmd.Process.Pid))
	}
	took := time.Since(began).Seconds()
	r.EtcdCPU = (cpu(t, server) - etcd).Seconds() / took
	r.AgentCPU = all.Seconds() / took / float64(len(fleet))
}

// cpu is how much a process has used.
func cpu(t *testing.T, pid int) time.Duration {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(tasks) == 0 {
		t.Fatalf("process %d: %v", pid, err)
	}
	var sum int64
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			t.Fatal(err)
		}
		n, err := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return time.Duration(sum)
}

// memory is what a process has in memory, in MiB.
func memory(t *testing.T, pid int) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var kib float64
		if n, _ := fmt.Sscanf(line, "VmRSS: %f kB", &kib); n == 1 {
			return kib / 1024
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

func release(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func version(t *testing.T, program string) string {
	t.Helper()
	text, err := exec.Command(program, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return cmp.Or(strings.TrimPrefix(line, "etcd Version: "), "?")
}
