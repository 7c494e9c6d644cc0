// Package berthd tests the agent as a process: it is killed, and nodes do not notice.
package berthd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/test/built"
	"berth/test/env"
	"berth/test/testkit"
)

// bed is an agent with a root of its own.
type bed struct {
	env.Berth
	t       *testing.T
	cmd     *exec.Cmd
	said    bytes.Buffer
	client  *http.Client
	cgroups []string // folders of the agent's own group
}

func newBed(t *testing.T) *bed {
	t.Helper()
	testkit.NeedsRoot(t)
	b := &bed{Berth: env.New(t, "/var/tmp"), t: t}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("berthd said:\n%s", b.said.String())
		}
	})
	testkit.Must(t, built.Agent(t.Context(), b.Dir()), os.Mkdir(b.Root, 0o755), os.WriteFile(filepath.Join(b.Root, "berthd.yaml"), []byte("host: a\nlocal: true\n"), 0o600))
	b.client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", b.Layout().AgentSocket())
	}}}
	return b
}

// start starts the agent in groups of its own, as a service manager does, and waits until it answers.
func (b *bed) start() {
	b.t.Helper()
	b.cmd = exec.Command(filepath.Join(b.Dir(), "berthd"), "--root", b.Root)
	b.cmd.Stdout, b.cmd.Stderr = &b.said, &b.said
	if err := b.cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	cmd := b.cmd
	b.t.Cleanup(func() {
		if cmd.ProcessState == nil { // the test failed
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	for _, g := range b.cgroups {
		if err := os.WriteFile(filepath.Join(g, "cgroup.procs"), fmt.Append(nil, b.cmd.Process.Pid), 0); err != nil {
			b.t.Fatal(err)
		}
	}
	testkit.Eventually(b.t, "berthd answers", func() bool {
		code, _ := b.ask(http.MethodGet, "/v1/host", "")
		return code == http.StatusOK
	})
}

// end ends the agent by a signal, and returns how long that took.
func (b *bed) end(sig syscall.Signal) time.Duration {
	b.t.Helper()
	began := time.Now()
	if err := b.cmd.Process.Signal(sig); err != nil {
		b.t.Fatal(err)
	}
	if err := b.cmd.Wait(); err != nil && sig == syscall.SIGTERM {
		b.t.Errorf("berthd ended by SIGTERM: %v", err)
	}
	return time.Since(began)
}

// ask asks the agent. The code is 0 if it does not answer.
func (b *bed) ask(method, path, body string) (code int, answer string) {
	req, err := http.NewRequestWithContext(b.t.Context(), method, "http://a"+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/yaml")
	}
	r, err := b.client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, err.Error()
	}
	return r.StatusCode, string(text)
}

func node(name string) string {
	return fmt.Sprintf("name: %s\nimage: host\ncommand: [sleep, '1000']\nmemory: {max: 64MiB}\n", name)
}

// apply makes a node, which must succeed.
func (b *bed) apply(name string) {
	b.t.Helper()
	if code, text := b.ask(http.MethodPost, "/v1/nodes", node(name)); code != http.StatusOK {
		b.t.Fatalf("apply %s: %d %s", name, code, text)
	}
}

// remove removes a node, which must succeed.
func (b *bed) remove(name string) {
	b.t.Helper()
	if code, text := b.ask(http.MethodDelete, "/v1/nodes/"+name+"?force=true", ""); code/100 != 2 {
		b.t.Fatalf("remove %s: %d %s", name, code, text)
	}
}

// states are the nodes of this host, and of the site, as the agent says.
func (b *bed) states(path string) map[string]string {
	b.t.Helper()
	code, text := b.ask(http.MethodGet, path, "")
	var list struct {
		Nodes []struct{ Name, State, Phase string }
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil || code != http.StatusOK {
		b.t.Fatalf("%s: %d %s", path, code, text)
	}
	states := map[string]string{}
	for _, n := range list.Nodes {
		states[n.Name] = n.State + n.Phase
	}
	return states
}

// becomes waits until the site's nodes are these.
func (b *bed) becomes(want map[string]string) {
	b.t.Helper()
	var is map[string]string
	if !testkit.Happens(func() bool {
		is = b.states("/v1/site/nodes")
		return maps.Equal(is, want)
	}) {
		b.t.Fatalf("the site says %v, want %v", is, want)
	}
}

// clean waits until nothing is left.
func (b *bed) clean() {
	b.t.Helper()
	if left := append(b.Left(), b.Groups()...); len(left) > 0 {
		b.t.Fatalf("left:\n%s", strings.Join(left, "\n"))
	}
}

// TestGroup: all processes of the agent's own groups are killed, as a service manager may do it. The node that it made, and the
// keeper that it started, are in others: the node runs on, and its end is told with its exit code.
func TestGroup(t *testing.T) {
	b := newBed(t)
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if f[2] != "cgroup" && f[2] != "cgroup2" || strings.Contains(f[3], "cpuset") {
			continue // a new group of cpuset takes no process before it has CPUs
		}
		dir := filepath.Join(f[1], filepath.Base(b.Dir()))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		b.cgroups = append(b.cgroups, dir)
		t.Cleanup(func() {
			var err error // processes that were killed leave it when they have ended
			if !testkit.Happens(func() bool { err = os.Remove(dir); return err == nil }) {
				t.Error(err)
			}
		})
	}
	if len(b.cgroups) == 0 {
		t.Fatal("no cgroup hierarchy")
	}
	b.start()
	b.apply("n1")
	b.becomes(map[string]string{"n1": "running"})
	killed := map[string]bool{}
	for _, g := range b.cgroups {
		pids, err := os.ReadFile(filepath.Join(g, "cgroup.procs"))
		if err != nil {
			t.Fatal(err)
		}
		for pid := range strings.FieldsSeq(string(pids)) {
			killed[pid] = true
		}
	}
	if !killed[strconv.Itoa(b.cmd.Process.Pid)] {
		t.Fatalf("the agent is not in its group: %v", killed)
	}
	for pid := range killed {
		n, err := strconv.Atoi(pid)
		if err != nil {
			t.Fatal(err)
		}
		_ = syscall.Kill(n, syscall.SIGKILL)
	}
	_ = b.cmd.Wait()
	b.start()
	if got := b.states("/v1/nodes"); got["n1"] != "running" {
		t.Errorf("after a kill of the agent's group the node is %q", got["n1"])
	}
	if code, text := b.ask(http.MethodGet, "/v1/nodes/n1", ""); code != http.StatusOK || !strings.Contains(text, `"phase":"up"`) {
		t.Errorf("the node: %d %s", code, text)
	}
	b.remove("n1")
	if took := b.end(syscall.SIGTERM); took > 5*time.Second && testkit.Measures() {
		t.Errorf("berthd ended %s after SIGTERM", took)
	}
	b.clean()
}

// TestKilled: the agent is killed at random while it makes and removes nodes. Each time the next one completes or undoes what was
// begun, and tells the site what is; a node that ran all the time has not noticed.
func TestKilled(t *testing.T) {
	b := newBed(t)
	seed := rand.Uint64()
	if s := os.Getenv("BERTH_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("BERTH_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	b.start()
	b.apply("steady")
	pid := func() string {
		_, text := b.ask(http.MethodGet, "/v1/nodes/steady", "")
		var d struct {
			PID   int
			Start uint64 `json:"pid_start"`
		}
		if err := json.Unmarshal([]byte(text), &d); err != nil || d.PID == 0 {
			t.Fatalf("the steady node: %s", text)
		}
		return fmt.Sprint(d.PID, d.Start)
	}
	steady := pid()
	rounds, made := 10, 0
	if s := os.Getenv("BERTH_KILLS"); s != "" {
		var err error
		if rounds, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	for i := range rounds {
		answered := make(chan int, 1)
		method, path, body := http.MethodPost, "/v1/nodes", node("n1")
		if b.states("/v1/nodes")["n1"] != "" {
			method, path, body = http.MethodDelete, "/v1/nodes/n1?force=true", ""
		}
		go func() { code, _ := b.ask(method, path, body); answered <- code }()
		time.Sleep(time.Duration(random.IntN(120)) * time.Millisecond)
		b.end(syscall.SIGKILL)
		code := <-answered
		b.start()
		want := map[string]string{"steady": "running"}
		if state := b.settled("n1"); state != "" {
			want["n1"], made = state, made+1
		}
		if method == http.MethodPost && code == http.StatusOK && want["n1"] != "running" {
			t.Errorf("round %d: a node was made, and is %q", i, want["n1"])
		}
		b.becomes(want)
		if now := pid(); now != steady {
			t.Fatalf("round %d: the steady node was process %s and is %s", i, steady, now)
		}
	}
	t.Logf("after %d of %d kills there was a node", made, rounds)
	for name := range b.states("/v1/nodes") {
		b.remove(name)
	}
	b.becomes(map[string]string{})
	b.end(syscall.SIGTERM)
	b.clean()
}

// settled waits until the agent has repaired what the one before it left of a node, and returns the node's state.
func (b *bed) settled(name string) (state string) {
	b.t.Helper()
	if !testkit.Happens(func() bool {
		state = b.states("/v1/nodes")[name]
		return state == "" || state == "running"
	}) {
		b.t.Fatalf("node %s stays %s", name, state)
	}
	return state
}
