package limits

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/host/group"
	"berth/internal/sys/proc"
	"berth/test/testkit"
)

// TestNodeHeldByItsRateEnds ends nodes in which one direct write waits behind their own rate, a byte a second: it would wait for
// months, and no signal ends its process before. Whatever ends the node lifts the rate first and says so. So does a change of the
// rate, after which the write is done.
func TestNodeHeldByItsRateEnds(t *testing.T) {
	mostlyWaits(t)
	w := newWorld(t, true)
	for _, tc := range []struct {
		name  string
		end   func(node string) string // ends the node, and returns what was said
		stays bool                     // the node runs on
	}{
		{name: "rm", end: func(node string) string { return w.run("rm", "--force", node) }},
		{name: "stop", end: func(node string) string { return w.run("stop", "--grace", "0s", node) }},
		{name: "restart", end: func(node string) string { return w.run("restart", "--grace", "0s", node) }, stays: true},
		{name: "kill", end: func(node string) string { return w.run("kill", node) }},
		{name: "repair", end: func(node string) string {
			first, err := proc.Of(w.first(node))
			if err == nil {
				err = unix.Kill(first.PID, unix.SIGKILL)
			}
			if err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "process 1 is ending", first.Ending)
			return w.run("repair")
		}},
		{name: "set", end: func(node string) string { return w.run("set", node, "io.data.write.rate=max") }, stays: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w.run("apply", "-f", w.braked(t, tc.name, "[/bin/sleep, infinity]"))
			write := w.Command("exec", tc.name, "--", "dd", "if=/dev/zero", "of="+w.disk, "bs=8M", "count=1", "oflag=direct")
			if err := write.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- write.Wait() }()
			waits := w.waits(tc.name)
			said := tc.end(tc.name)
			var err error
			testkit.Eventually(t, "the write ends", func() bool {
				select {
				case err = <-ended:
					return true
				default:
					return false
				}
			})
			if tc.name == "set" {
				if err != nil || !strings.Contains(said, "read back max") {
					t.Errorf("the write, once its rate is lifted: %v; set said %q", err, said)
				}
				return
			}
			if !regexp.MustCompile(fmt.Sprintf(`node %s: lifted its rates of block I/O \(.*%s .*\), so that it can end: process %d "dd" waits in`, tc.name, w.diskNumber, waits)).MatchString(said) {
				t.Errorf("it does not say what it lifted, and for whom: %q", said)
			}
			if first := w.first(tc.name); (first != 0) != tc.stays {
				t.Errorf("process 1 of the node: %d", first)
			}
		})
	}
	t.Run("run", func(t *testing.T) {
		var said bytes.Buffer
		run := w.Command("run", "-f", w.braked(t, "run", "[sh, -c, dd if=/dev/zero of="+w.disk+" bs=8M count=1 oflag=direct & read line]"))
		run.Stderr = &said
		in, err := run.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := run.Start(); err != nil {
			t.Fatal(err)
		}
		w.waits("run")
		in.Close() // process 1 ends by itself
		_ = run.Wait()
		if !strings.Contains(said.String(), "lifted its rates of block I/O") {
			t.Errorf("run says %q", &said)
		}
	})
}

// braked writes the spec of a node that may write a byte a second, and returns its path.
func (w *world) braked(t *testing.T, name, command string) string {
	t.Helper()
	spec := filepath.Join(w.Dir(), name+".yaml")
	text := fmt.Sprintf("name: %s\nimage: host\ncommand: %s\ndevices: [%s]\nio: [{name: data, device: %[3]s, write: {rate: 1B/s}}]\n", name, command, w.disk)
	if err := os.WriteFile(spec, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Command("rm", "--force", name).Run() })
	return spec
}

// waits returns the process of a node that waits in the kernel, once there is one.
func (w *world) waits(node string) (pid int) {
	w.t.Helper()
	cg, err := host.ReadCgroups("/proc")
	if err != nil {
		w.t.Fatal(err)
	}
	testkit.Eventually(w.t, "a write of "+node+" waits", func() bool {
		path := w.groupIfThere(node)
		if path == "" {
			return false
		}
		pids, _ := group.Procs(cg, path)
		for _, p := range pids {
			if proc.Name(p) == "dd" && proc.Waits(p) != "" {
				pid = p
			}
		}
		return pid != 0
	})
	return pid
}

// groupIfThere is the cgroup of a node that may not be there yet, or not any more.
func (w *world) groupIfThere(node string) string {
	var shown struct{ Cgroup string }
	out, err := w.Command("show", "--json", node).Output()
	if err != nil || json.Unmarshal(out, &shown) != nil {
		return ""
	}
	return shown.Cgroup
}

// first is process 1 of a node; 0 if it does not run.
func (w *world) first(node string) int {
	out, err := w.Command("ls").Output()
	if err != nil {
		w.t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(filepath.Base(node)) + ` +running +([0-9]+) `).FindSubmatch(out)
	if m == nil {
		return 0
	}
	pid, _ := strconv.Atoi(string(m[1]))
	return pid
}
