package security

import (
	"strings"
	"testing"

	"berth/test/testkit"
)

// TestForkBomb checks that the pids limit holds against a fork bomb, and that the host can start processes and nodes meanwhile.
func TestForkBomb(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		// Process 1 waits for nobody, so what the bomb has started counts also after its end.
		name := w.up(t, "command: [/bin/sh, -c, '/probe/probe bomb & exec sleep 1000']\npids: 150\ncpu: {max: 0.5}\nimage: host\nmounts: [{source: "+build.probeDir+", target: /probe}]")
		most := 0 // processes and threads
		testkit.Happens(func() bool {
			most = max(most, w.show(t, name).Usage.PIDs)
			return most >= 140
		})
		if most < 140 || most > 150 {
			t.Errorf("the bomb had %d processes and threads at most; it may have 150, and wants more", most)
		}
		var open map[string]string
		w.probe(t, &open, "links", "/proc/self/exe") // another node starts
		if open["/proc/self/exe"] != "/probe/probe" {
			t.Error(open)
		}
		shown := w.OK(t, "show", name)
		if !strings.Contains(shown, "150") {
			t.Errorf("show does not tell the limit: %s", shown)
		}
		w.OK(t, "rm", "--force", name)
	})
}

// TestMemoryHog checks that a memory hog is killed at its limit and that the status says why.
func TestMemoryHog(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		name := w.up(t, "command: [/probe/probe, hog, \"400\"]\nmemory: {max: 64MiB, swap: 0}\nimage: host\nmounts: [{source: "+build.probeDir+", target: /probe}]")
		var s shown
		testkit.Happens(func() bool {
			s = w.show(t, name)
			return s.State == "exited" && s.Exit.Code != 0 // it ends a moment before the keeper notes how
		})
		if s.State != "exited" || !s.Exit.OOM || s.Exit.Code != 137 {
			t.Errorf("the hog is %+v", s)
		}
		if listed := w.OK(t, "ls"); !strings.Contains(listed, "out of memory") {
			t.Errorf("ls does not say so: %s", listed)
		}
		// A hog in exec is killed and reported too.
		name = w.up(t, "memory: {max: 64MiB, swap: 0}")
		if _, _, code := w.Try("exec", name, "--", "/probe/probe", "hog", "400"); code != 137 {
			t.Errorf("the hog in exec ended with %d", code)
		}
		if text := w.OK(t, "show", name); !strings.Contains(text, "lack of memory") || w.show(t, name).State != "running" {
			t.Errorf("show does not say so: %s", text)
		}
	})
}

// TestOwnLimits checks that a node sees its cgroups but cannot change or leave them, nor make the host run its program
// (release_agent, CVE-2022-0492).
func TestOwnLimits(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		name := w.up(t, "memory: {max: 64MiB}\npids: 50\ncpu: {max: 0.5}")
		script := `cd /sys/fs/cgroup
n=0
for f in $(find . -type f); do n=$((n+1))
  case $f in *release_agent) echo "there is $f";; esac
  if [ -w "$f" ] && (echo 1 > "$f") 2>/dev/null; then case $f in ./cgroup-*) ;; *) echo "wrote $f";; esac; fi
done
for d in $(find . -mindepth 1 -type d); do mkdir $d/berth-below 2>/dev/null && echo "made $d/berth-below"; done
mkdir berth-below 2>/dev/null && [ -e berth-below/cgroup.procs ] && echo "made a group"
grep -v ':/$' /proc/self/cgroup
echo "looked at $n files"`
		out := w.OK(t, "exec", name, "--", "/bin/sh", "-c", script)
		if lines := strings.Split(strings.TrimSpace(out), "\n"); len(lines) != 1 || lines[0] == "looked at 0 files" {
			t.Errorf("a node and its groups: %s", out)
		}
	})
}
