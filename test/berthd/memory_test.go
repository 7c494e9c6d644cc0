package berthd

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"berth/internal/site/api"
	"berth/internal/site/api/client"
	"berth/test/testkit"
)

// memoryGroup makes a group that limits memory for the agent, and puts the agent into it.
func (b *bed) memoryGroup() string {
	b.t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		b.t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if f[2] != "cgroup" || !strings.Contains(","+f[3]+",", ",memory,") {
			continue
		}
		dir := filepath.Join(f[1], filepath.Base(b.Dir()))
		if err := os.Mkdir(dir, 0o755); err != nil {
			b.t.Fatal(err)
		}
		b.t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				b.t.Error(err)
			}
		})
		b.cgroups = []string{dir}
		return dir
	}
	b.t.Skip("no cgroup v1 with memory: TestGroup shows of cgroup v2 that nodes, keeper and commands are not in the agent's groups")
	return ""
}

// members are the processes of a group.
func members(t *testing.T, group string) map[int]bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(group, "cgroup.procs"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[int]bool{}
	for word := range strings.FieldsSeq(string(text)) {
		pid, err := strconv.Atoi(word)
		if err != nil {
			t.Fatal(err)
		}
		all[pid] = true
	}
	return all
}

// pids finds the processes of this bed whose command lines hold all of the words.
func (b *bed) pids(words ...string) []int {
	return slices.Collect(maps.Keys(testkit.Processes(append(words, b.Root)...)))
}

// one finds the one process of this bed with these words.
func (b *bed) one(words ...string) int {
	b.t.Helper()
	all := b.pids(words...)
	if len(all) != 1 {
		b.t.Fatalf("%d processes have the words %q, not 1", len(all), words)
	}
	return all[0]
}

// pid is process 1 of a node.
func (b *bed) pid(name string) string {
	b.t.Helper()
	_, text := b.ask(http.MethodGet, "/v1/nodes/"+name, "")
	_, pid, _ := strings.Cut(text, `"pid":`)
	pid, _, _ = strings.Cut(pid, ",")
	if pid == "" {
		b.t.Fatalf("node %s: %s", name, text)
	}
	return pid
}

// hog takes memory in a group until the kernel ends it or another process there. Where memory is short, the kernel prefers who has the
// higher standing.
func hog(t *testing.T, group string, standing int) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sh", "-c", fmt.Sprintf("echo %d >/proc/self/oom_score_adj && echo 0 >%s/cgroup.procs && exec tail /dev/zero", standing, group))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return cmd
}

// TestMemory: the agent is at its limit of memory while it makes a node, twice. First the kernel ends another process of its group: the
// node is made, and a command that runs for a client goes on. Then it ends the agent: no node and no keeper is lost, and what was begun is
// completed or undone.
func TestMemory(t *testing.T) {
	b := newBed(t)
	group := b.memoryGroup()
	b.start()
	if err := os.WriteFile(filepath.Join(group, "memory.limit_in_bytes"), []byte("268435456"), 0); err != nil {
		t.Fatal(err)
	}
	b.apply("steady")
	steady, keeper := b.pid("steady"), b.one("keeper")

	in, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer to.Close()
	from, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	c, err := client.New("unix:"+b.Layout().AgentSocket(), nil)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan string, 1)
	go func() {
		defer out.Close()
		code, err := c.Command(context.Background(), "/v1/nodes/steady/exec", api.Start{Args: []string{"sh", "-c", "echo ready; read word; exit $word"}}, client.Streams{In: in, Out: out, Err: os.Stderr})
		ended <- fmt.Sprint(code, err)
	}()
	if _, err := from.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	inside := members(t, group)
	for what, pid := range map[string]int{"the keeper": keeper, "the command": b.one("exec", "ready")} {
		if inside[pid] {
			t.Errorf("%s is in the agent's group", what)
		}
	}
	if n, err := strconv.Atoi(steady); err != nil || inside[n] || len(inside) != 1 {
		t.Errorf("the agent's group has the processes %v, the agent is %d, the node %s: %v", inside, b.cmd.Process.Pid, steady, err)
	}

	took := hog(t, group, 1000)
	b.apply("n1")
	if err := took.Wait(); err == nil || took.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the process that took the memory ended with %v", err)
	}
	if _, err := to.WriteString("7\n"); err != nil {
		t.Fatal(err)
	}
	if is := <-ended; is != "7 <nil>" {
		t.Errorf("the command ended with %s", is)
	}

	answered := make(chan int, 1)
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", b.cmd.Process.Pid), []byte("1000"), 0); err != nil {
		t.Fatal(err)
	}
	stays := hog(t, group, 0)
	go func() { code, _ := b.ask(http.MethodPost, "/v1/nodes", node("n2")); answered <- code }()
	_ = b.cmd.Wait() // the kernel ends it
	if state := b.cmd.ProcessState.Sys().(syscall.WaitStatus); state.Signal() != syscall.SIGKILL {
		t.Errorf("the agent ended with %v", state)
	}
	_, _ = stays.Process.Kill(), stays.Wait()
	made := <-answered == http.StatusOK
	b.start()
	want := map[string]string{"steady": "running", "n1": "running"}
	if state := b.settled("n2"); state != "" {
		want["n2"] = state
	} else if made {
		t.Error("a node was made, and is not there")
	}
	b.becomes(want)
	if now := b.pid("steady"); now != steady {
		t.Errorf("the steady node was process %s and is %s", steady, now)
	}
	if now := b.one("keeper"); now != keeper {
		t.Errorf("the keeper was process %d and is %d", keeper, now)
	}
	for name := range want {
		b.remove(name)
	}
	b.end(syscall.SIGTERM)
	b.clean()
}
