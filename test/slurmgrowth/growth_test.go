//go:build growth

// Package slurmgrowth measures one real slurmctld with many real slurmds that come and go as nodes on demand do, in namespaces of the
// test's own. A node is a slurmd alone, without a container of its own.
package slurmgrowth

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/controller"
	"berth/test/testkit"
)

var (
	nodes = flag.Int("nodes", 20, "how many nodes")
	nice  = flag.Int("nice", 0, "by how much slurmds yield to slurmctld, as if they had processors of their own")
	tree  = flag.Int("tree", 0, "TreeWidth in place of what Berth writes")
	bare  = flag.Bool("bare", false, "without PrologSlurmctld and EpilogSlurmctld")
	perf  = flag.String("perf", "", "file for what perf sees of slurmctld while nodes come")
	out   = flag.String("growth-json", "", "file for the result")
)

const inside = "BERTH_TEST_SLURMGROWTH" // the folder of the test whose first process in its namespaces this is

// TestGrowth has a job of a plain user for each node. All jobs run at once, end at once, and all nodes go.
func TestGrowth(t *testing.T) {
	if dir := os.Getenv(inside); dir != "" {
		grow(t, dir)
		return
	}
	for _, program := range []string{"slurmctld", "slurmd", "scontrol", "sbatch", "munged", "ip", "setpriv"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs the packages slurm-wlm, munge and iproute2: there is no %s", program)
		}
	}
	testkit.NeedsRoot(t)
	dir := testkit.Dir(t, "") // short: a socket's path has at most 107 bytes
	// The shell is process 1: it waits for all that its children leave, and with it everything ends.
	args := []string{"-c", `"$@"; exit $?`, "sh", os.Args[0], "-test.run=^TestGrowth$", "-test.v", "-test.timeout=20m"}
	flag.Visit(func(f *flag.Flag) {
		if !strings.HasPrefix(f.Name, "test.") {
			args = append(args, "-"+f.Name+"="+f.Value.String())
		}
	})
	runtime.LockOSThread() // Pdeathsig looks at the thread
	cmd := exec.CommandContext(t.Context(), "sh", args...)
	cmd.Env = append(os.Environ(), inside+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if !strings.Contains(string(text), "PASS: TestGrowth") {
		t.Fatalf("it did not run: %s", text)
	}
	t.Logf("%s", text)
}

// result is what was measured. Times are seconds since the first job was submitted.
type result struct {
	Nodes     int                `json:"nodes"`
	Nice      int                `json:"nice"`
	TreeWidth string             `json:"tree_width"`
	Command   string             `json:"command"`
	Kernel    string             `json:"kernel"`
	CPUs      int                `json:"cpus"`
	Slurm     string             `json:"slurm"`
	Began     string             `json:"began"`
	Load      string             `json:"loadavg_at_begin"`
	Times     map[string]float64 `json:"times_s"`
	Lengths   map[string]float64 `json:"lengths_s"`
	Calls     map[string][]int   `json:"calls"` // of ResumeProgram and SuspendProgram: nodes of each
	Commands  map[string]latency `json:"commands"`
	CPU       map[string]float64 `json:"cpu_s"`
	Machine   map[string]float64 `json:"machine"`
	Slurmctld daemon             `json:"slurmctld"`
	Munged    daemon             `json:"munged"`
	Slurmd    each               `json:"slurmd"`
	Stepd     each               `json:"slurmstepd"`
	Sdiag     diag               `json:"sdiag"`
	Complains map[string]int     `json:"slurmctld_errors"`
}

func grow(t *testing.T, dir string) {
	c := newCluster(t, dir)
	r := &result{Nodes: *nodes, Nice: *nice, CPUs: runtime.NumCPU(), Began: time.Now().UTC().Format(time.RFC3339), Times: map[string]float64{}, Lengths: map[string]float64{}}
	r.Command = fmt.Sprintf("go test -tags growth ./test/slurmgrowth -count=1 -v -run TestGrowth -nodes %d -nice %d", *nodes, *nice)
	if *tree > 0 {
		r.Command += fmt.Sprintf(" -tree %d", *tree)
	}
	if *bare {
		r.Command += " -bare"
	}
	r.Slurm = strings.TrimSpace(c.Run("slurmctld", "-V"))
	r.Kernel = strings.TrimSpace(c.Run("uname", "-r"))
	load, _ := os.ReadFile("/proc/loadavg")
	r.Load = strings.TrimSpace(string(load))
	for line := range strings.Lines(c.Run("scontrol", "show", "config")) {
		if name, value, _ := strings.Cut(line, "="); strings.TrimSpace(name) == "TreeWidth" {
			r.TreeWidth = strings.TrimSpace(value)
		}
	}
	c.Run("sdiag", "--reset")
	w := c.watch()
	began := time.Now()
	mark := func(name string) {
		r.Times[name] = time.Since(began).Seconds()
		w.phase(name)
		t.Logf("%7.2f s: %s", r.Times[name], name)
	}
	defer func() { // what was seen is worth most where it fails
		if t.Failed() {
			t.Logf("%s\n%s", w.counts(), controller.Tail(c.Log("slurmctld"), 6000))
		}
	}()
	if *perf != "" {
		c.Start("perf", "perf", "record", "-g", "-F", "199", "-p", strconv.Itoa(c.PIDs["slurmctld"]), "-o", *perf, "--", "sleep", "60")
	}
	c.submit(*nodes)
	mark("all jobs submitted")
	c.Until("ResumeProgram has all nodes", func() bool { return c.fakes.started() == *nodes })
	mark("all slurmds started")
	c.Until("all nodes are registered", func() bool { return w.state("allocated") == *nodes })
	mark("all nodes registered")
	c.Until("all jobs run", func() bool { return c.running() == *nodes })
	mark("all jobs run")
	r.Slurmd, r.Stepd = w.each("slurmd"), w.each("slurmstepd")
	rest := time.Now()
	before := w.cpu()
	time.Sleep(5 * time.Second) // at rest: what so many nodes cost when nothing happens
	r.Machine = map[string]float64{"slurmctld_cpu_share_at_rest": (w.cpu()["slurmctld"] - before["slurmctld"]) / time.Since(rest).Seconds()}
	mark("rest ends")
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	c.release()
	c.Until("all jobs have ended", func() bool { return w.jobs() == 0 })
	mark("all jobs ended")
	c.Until("SuspendProgram has all nodes", func() bool { return c.fakes.ended() == *nodes })
	mark("all slurmds ended")
	c.Until("all nodes may be made again", func() bool { return w.state("idle~") == *nodes })
	mark("all nodes idle in the cloud")
	w.stop()

	if names := c.ran(); names != *nodes {
		t.Errorf("jobs ran on %d nodes, not on %d", names, *nodes)
	}
	r.Lengths["submit to registered"] = r.Times["all nodes registered"]
	r.Lengths["submit to all run"] = r.Times["all jobs run"]
	r.Lengths["end of jobs"] = r.Times["all jobs ended"] - r.Times["rest ends"]
	r.Lengths["idle to suspended, with SuspendTime"] = r.Times["all slurmds ended"] - r.Times["all jobs ended"]
	w.fill(r)
	r.Calls = c.fakes.calls
	r.Sdiag.read(c.Run("sdiag"))
	r.Complains = complaints(c.Log("slurmctld"))
	for name, l := range r.Commands {
		// Slurm is asked to answer within a second; ten are more than a busy machine explains.
		if l.Failed > 0 || testkit.Measures() && l.Max > 10 {
			t.Errorf("%s: %d failed, the slowest answer took %.2f s", name, l.Failed, l.Max)
		}
	}
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
}
