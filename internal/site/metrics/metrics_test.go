package metrics

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth/internal/host/membership"
	"berth/internal/node"
	"berth/internal/node/protect"
	"berth/internal/site/store"
	"berth/internal/sys/layout"
	"berth/test/env"
	"berth/test/testkit"
)

// TestScrape scrapes the metrics of two nodes that run, one of which has too many beside it, and compares the alert rules and the
// dashboard with what is there.
func TestScrape(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a longer run: it builds berth and starts nodes")
	}
	testkit.NeedsRoot(t)
	b := env.New(t, "")
	const spec = `name: n1
image: host
command: [sleep, infinity]
health: {command: ["true"], every: 1s}
cpu: {max: 0.5}
memory: {max: 64MiB}
pids: 50
network: [{name: eth0, mode: bridge, address: [10.9.0.2/24], rate: {tx: 100Mbit/s}}]
mounts: [{source: /usr, target: /data, read_only: true}]
io: [{name: s, filesystem: shared, read: {rate: 10MB/s}}]
---
name: n2
image: host
command: [sleep, infinity]
network: [{name: eth0, mode: bridge, address: [10.9.0.3/24]}]
io: [{name: s, filesystem: shared, read: {rate: 10MB/s}}]
`
	l := b.Layout()
	asked := agent(t, l)
	b.Apply(t, spec)

	sources := Sources{
		Nodes: node.Open(l, node.Beside{}), Services: protect.New(l), Store: store.NewMemory(), Most: 1,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	m := New(sources)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/nodes/{name}", http.NotFound)
	mux.Handle("GET /metrics", m.Handler())
	server := httptest.NewServer(m.Count(mux))
	defer server.Close()
	get(t, server.URL+"/v1/nodes/any")
	testkit.Eventually(t, "the first check of n1 succeeds", func() bool {
		return strings.Contains(get(t, server.URL+"/metrics"), "\nberth_node_healthy{node=\"n1\"} 1\n")
	})
	text := get(t, server.URL+"/metrics")

	for _, want := range []string{
		`berth_nodes{state="running"} 2`, `berth_nodes{state="exited"} 0`, `berth_nodes_left_out 1`, `berth_keeper_up 1`, `berth_store_reachable 1`,
		`berth_node_limit_asked{limit="cpu.max",node="n1"} 0.5`, `berth_node_limit_achieved{limit="cpu.max",node="n1"} 0.5`,
		`berth_node_limit_asked{limit="memory.max",node="n1"} 6.7108864e+07`, `berth_node_limit_achieved{limit="memory.max",node="n1"} 6.7108864e+07`,
		`berth_node_limit_holds{limit="pids",node="n1"} 1`, `berth_node_limit_achieved{limit="net.eth0.tx",node="n1"} 1e+08`,
		`berth_node_memory_max_bytes{class="",kind="node",node="n1"} 6.7108864e+07`, `berth_gateway_mounts{gateway="bind"} 1`,
		`berth_api_requests_total{code="404",route="GET /v1/nodes/{name}"} 1`, `berth_collector_success{part="nodes"} 1`, `berth_node_failed{node="n1"} 0`,
	} {
		if !strings.Contains(text, "\n"+want+"\n") {
			t.Errorf("there is no %s", want)
		}
	}
	if strings.Contains(text, `node="n2"`) {
		t.Error("a node has metrics of its own beyond the most that may")
	}
	if t.Failed() {
		t.Log(regexp.MustCompile(`(?m)^(#|go_|process_).*\n`).ReplaceAllString(text, ""))
	}

	t.Run("agent", func(t *testing.T) {
		sources.Most = Most
		server := httptest.NewServer(New(sources).Handler())
		defer server.Close()
		before := asked.Load()
		text := get(t, server.URL)
		for _, n := range []string{"n1", "n2"} {
			if want := `berth_node_limit_asked{limit="io.s.read.rate",node="` + n + `"} 1e+07`; !strings.Contains(text, want) {
				t.Errorf("there is no %s", want)
			}
		}
		if n := asked.Load() - before; n != 1 {
			t.Errorf("the agent was asked %d times for the servers of shared file systems, by one scrape of two nodes", n)
		}
	})

	t.Run("promtool", func(t *testing.T) {
		for _, args := range [][]string{{"check", "metrics"}, {"check", "rules", "../../../packaging/alerts.yaml"}, {"test", "rules", "../../../packaging/alerts_test.yaml"}} {
			promtool, err := exec.LookPath("promtool")
			if err != nil {
				t.Skip("needs promtool")
			}
			cmd := exec.Command(promtool, args...)
			cmd.Stdin = strings.NewReader(text)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
			}
		}
	})

	t.Run("names", func(t *testing.T) {
		told := map[string]bool{}
		for _, n := range regexp.MustCompile(`(?m)^(berth_[a-z_]+)[ {]`).FindAllStringSubmatch(text, -1) {
			told[n[1]] = true
		}
		// Metrics that this host may not count: pressure on cgroup v1, disks that nothing was read from, the size of a store in
		// memory.
		optional := regexp.MustCompile(`^berth_(node_pressure_|node_disk_|store_size_bytes)`)
		for _, file := range []string{"../../../packaging/dashboard.json", "../../../packaging/alerts.yaml"} {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if filepath.Ext(file) == ".json" && !json.Valid(data) {
				t.Errorf("%s is no JSON", file)
			}
			names := regexp.MustCompile(`berth_[a-z_]+`).FindAllString(string(data), -1)
			if len(names) < 5 {
				t.Errorf("%s names %v", file, names)
			}
			for _, n := range names {
				if !told[n] && !optional.MatchString(n) {
					t.Errorf("%s names %s, which a scrape does not have", file, n)
				}
			}
		}
		docs, err := os.ReadFile("../../../docs/metrics.md")
		if err != nil {
			t.Fatal(err)
		}
		for n := range told {
			if n = regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(n, ""); !bytes.Contains(docs, []byte("`"+n)) {
				t.Errorf("docs/metrics.md does not name %s", n)
			}
		}
	})
}

func get(t *testing.T, url string) string {
	t.Helper()
	answer, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestNumber reads the limits as people write them.
func TestNumber(t *testing.T) {
	for text, want := range map[string]float64{"0.5": 0.5, "max": math.Inf(1), "64MiB": 64 << 20, "25MB/s": 25e6, "100Mbit/s": 1e8, "50": 50, "0": 0} {
		if got, ok := number(text); !ok || got != want {
			t.Errorf("%s is %v, %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "0-3", "never", "nan", "idle"} {
		if got, ok := number(text); ok {
			t.Errorf("%q is %v", text, got)
		}
	}
}

// agent makes the host one of a site whose agent agrees to all that it is asked, and counts how often it was asked for the servers of file
// systems.
func agent(t *testing.T, l layout.Layout) *atomic.Int32 {
	t.Helper()
	for _, file := range []string{l.Site(), l.SiteSocket()} {
		testkit.Must(t, os.MkdirAll(filepath.Dir(file), 0o755))
	}
	testkit.Must(t, membership.Join(l, membership.Member{Site: "t", Host: "a"}))
	socket, err := net.Listen("unix", l.SiteSocket())
	testkit.Must(t, err)
	t.Cleanup(func() { socket.Close() })
	asked := &atomic.Int32{}
	go func() {
		for {
			c, err := socket.Accept()
			if err != nil {
				return
			}
			var r membership.Request
			_ = json.NewDecoder(c).Decode(&r)
			if r.Do == "servers" {
				asked.Add(1)
			}
			_ = json.NewEncoder(c).Encode(membership.Answer{Servers: []membership.Server{{Filesystem: "shared", Host: "fs", Way: "launch"}}})
			c.Close()
		}
	}()
	return asked
}

// TestTakenAddress: an address that something else listens at ends nothing: that is said once, and the address is taken when it is free.
func TestTakenAddress(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	defer other.Close()
	var said testkit.Output
	m := New(Sources{Log: slog.New(slog.NewTextHandler(&said, nil))})
	got := make(chan net.Listener)
	go func() {
		l, err := m.listen(t.Context(), other.Addr().String(), time.Millisecond)
		if err != nil {
			t.Error(err)
			close(got)
			return
		}
		got <- l
	}()
	testkit.Eventually(t, "that metrics are not served is said", func() bool { return strings.Contains(said.String(), "metrics are not served") })
	testkit.Must(t, other.Close())
	l, ok := <-got
	if !ok {
		return
	}
	defer l.Close()
	if n := strings.Count(said.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings:\n%s", n, said.String())
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := m.listen(ctx, l.Addr().String(), time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("it waits when the agent ends: %v", err)
	}
}
