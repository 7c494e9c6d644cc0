package sync

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"berth/internal/bench/result"
	"berth/internal/sys/layout"
	"berth/test/built"
	"berth/test/testkit"
)

// benchmark is berth bench sync, in a folder of its own.
type benchmark struct {
	t           *testing.T
	dir, folder string // of the programs, that is measured
}

func newBenchmark(t *testing.T) *benchmark {
	t.Helper()
	for _, p := range []string{"ip", "sshfs", "mkfs.ext4", "fio", "losetup"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("needs %s", p)
		}
	}
	testkit.NeedsRoot(t)
	if tree() == "" {
		t.Skip("needs cgroup v1 with blkio")
	}
	dir, err := os.MkdirTemp("/var/tmp", "berth-sync-")
	if err != nil {
		t.Fatal(err)
	}
	b := &benchmark{t, dir, dir + "/measured"}
	t.Cleanup(func() { testkit.Must(t, os.RemoveAll(dir)) })
	testkit.Must(t, os.Chmod(dir, 0o755))
	testkit.Must(t, os.Mkdir(b.folder, 0o755))
	testkit.Must(t, built.Berth(t.Context(), dir+"/berth"))
	testkit.Must(t, built.Agent(t.Context(), dir))
	testkit.Must(t, built.Site(t.Context(), dir))
	return b
}

func (b *benchmark) command(ctx context.Context, args ...string) *exec.Cmd {
	args = append([]string{"--root", b.dir + "/root", "bench", "sync", "--quick", "--dir", b.folder, "--size", "16MiB"}, args...)
	return exec.CommandContext(ctx, b.dir+"/berth", args...)
}

// roots returns where the file servers of a run keep their state: its agents say so in their arguments.
func (b *benchmark) roots(pid int) (all []string) {
	out, err := exec.Command("ps", "--ppid", strconv.Itoa(pid), "-o", "args=").Output()
	testkit.Must(b.t, err)
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) == 3 && filepath.Base(f[0]) == "berthd" {
			all = append(all, f[2])
		}
	}
	return all
}

// left says what a run with a process id, and with these roots, left on the host. Other tests may run benchmarks meanwhile.
func (b *benchmark) left(pid int, roots ...string) (all []string) {
	patterns := []string{b.folder + "/.berth-bench*", "/sys/class/net/berth-y" + strconv.Itoa(pid)}
	words := []string{b.folder, fmt.Sprintf("bench-%d-", pid)}
	for _, r := range roots {
		patterns = append(patterns, filepath.Dir(r), "/sys/fs/cgroup/*/"+layout.New(r).CgroupParent()+"*")
		words = append(words, r)
	}
	for _, pattern := range patterns {
		found, err := filepath.Glob(pattern)
		testkit.Must(b.t, err)
		all = append(all, found...)
	}
	for _, list := range []string{"losetup --list --noheadings --output BACK-FILE", "cat /proc/mounts", "ps -eo args"} {
		out, err := exec.Command("sh", "-c", list).Output()
		testkit.Must(b.t, err)
		for line := range strings.Lines(string(out)) {
			if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(line, w) }) {
				all = append(all, list+": "+line)
			}
		}
	}
	return all
}

// TestBench: berth bench sync measures each of its sets, with one server and with two; the rate holds, and nothing of it stays.
func TestBench(t *testing.T) {
	b := newBenchmark(t)
	for _, run := range []struct {
		args []string
		rows map[string]int
	}{
		{[]string{"--servers", "1", "--warm", "300ms"}, map[string]int{"sync-aggregate-1": 4, "sync-foreground": 2, "sync-cost": 3}},
		{[]string{"--servers", "2", "--warm", "2500ms", "--set", "aggregate"}, map[string]int{"sync-aggregate-2": 6}},
	} {
		cmd := b.command(t.Context(), append(run.args, "--pairs", "1", "--rate", "20MB/s", "--run", "500ms", "--json", "-")...)
		var out, said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &said
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v: %s", err, said.String())
		}
		if all := b.left(cmd.Process.Pid); all != nil {
			t.Errorf("left behind: %q", all)
		}
		var s result.Study
		if err := json.Unmarshal(out.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		if len(s.Experiments) != len(run.rows) {
			t.Errorf("%v: %d experiments", run.args, len(s.Experiments))
		}
		for _, e := range s.Experiments {
			if len(e.Rows) != run.rows[e.Name] {
				t.Errorf("%s has %d rows, want %d %s %q", e.Name, len(e.Rows), run.rows[e.Name], e.Skipped, e.Notes)
			}
			values(t, e)
		}
	}
}

// values checks what an experiment measured.
func values(t *testing.T, e result.Experiment) {
	if e.Name == "sync-foreground" && len(e.Arms) != 4 {
		t.Errorf("the arms of %s are %v, %q", e.Name, e.Arms, e.Notes)
	}
	for _, r := range e.Rows {
		for _, a := range r.Arms {
			if v := a.Values[e.Measures[0].Name]; v <= 0 {
				t.Errorf("%s, %s, %s: %s is %v", e.Name, r.Name, a.Arm, e.Measures[0].Name, v)
			}
			rate, others := a.Values["bytes_per_second"], a.Values["others_bytes_per_second"]
			t.Logf("%s, %s, %s: %.1f MB/s, others %.1f; %.2f s, %.2f s", e.Name, r.Name, a.Arm, rate/1e6, others/1e6, a.Values["load_s"], a.Values["compute_s"])
			if testkit.Measures() && r.Asked != nil && a.Arm == result.Node && (rate < 0.4*20e6 || rate > 1.6*20e6) { // half a second, requests of 1 MiB: TestSplit is exact
				t.Errorf("%s, %s: %.1f MB/s, asked for 20", e.Name, r.Name, rate/1e6)
			}
			if testkit.Measures() && strings.HasSuffix(r.Name, " +1") && a.Arm == result.Node && others <= 20e6 {
				t.Errorf("%s, %s: the node without a limit read %.1f MB/s", e.Name, r.Name, others/1e6)
			}
		}
	}
}

// TestBenchEnds: all goes that a run made which is interrupted, and one that is killed.
func TestBenchEnds(t *testing.T) {
	b := newBenchmark(t)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*testkit.Bound())
		cmd := b.command(ctx, "--servers", "2", "--set", "aggregate", "--run", "2s")
		testkit.Must(t, cmd.Start())
		testkit.Eventually(t, "the nodes work", func() bool {
			out, _ := exec.Command("sh", "-c", fmt.Sprintf("ps -eo args | grep -c 'exec bench-%d-own -- .*[/]mnt/1/node'", cmd.Process.Pid)).Output()
			n, _ := strconv.Atoi(strings.TrimSpace(string(out)))
			return n > 0
		})
		roots := b.roots(cmd.Process.Pid)
		if len(roots) != 2 || len(b.left(cmd.Process.Pid, roots...)) < 8 { // what is looked for below is there now
			t.Errorf("the run has %q of %q", b.left(cmd.Process.Pid, roots...), roots)
		}
		testkit.Must(t, cmd.Process.Signal(sig))
		_ = cmd.Wait()
		var all []string
		if !testkit.Happens(func() bool { all = b.left(cmd.Process.Pid, roots...); return all == nil }) {
			t.Errorf("after %v: left behind: %q", sig, all)
		}
		cancel()
	}
}
