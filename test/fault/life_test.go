package fault

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/image/imagetest"
	"berth/test/sample"
	"berth/test/testkit"
)

// limits returns the node's requested limits from berth show. Each must hold in the kernel.
func (s *scene) limits(what string) map[string]string {
	s.Helper()
	var d struct {
		Limits []struct {
			Key, Asked string
			ReadBack   string `json:"read_back"`
			Holds      bool
		}
	}
	testkit.Must(s, json.Unmarshal([]byte(s.ok("show", "f1", "--json").out), &d))
	all := map[string]string{}
	for _, l := range d.Limits {
		if !l.Holds || l.Asked != l.ReadBack {
			s.Errorf("%s: %s is %s, the kernel has %s", what, l.Key, l.Asked, l.ReadBack)
		}
		all[l.Key] = l.Asked
	}
	return all
}

// TestSetKilledAtEachStep kills berth set, and an apply that changes limits of a running node. Afterwards all limits are old
// or all are new, show and the kernel agree, and repair says which.
func TestSetKilledAtEachStep(t *testing.T) {
	s := newScene(t, onHost)
	before := map[string]string{"cpu.max": "1.5", "memory.max": "64MiB", "pids": "50"}
	after := map[string]string{"memory.max": "32MiB", "pids": "20"}
	text, err := os.ReadFile(s.spec)
	testkit.Must(s, err)
	changed := s.file("changed.yaml", strings.NewReplacer("cpu: {max: 1.5}\n", "", "64MiB", "32MiB", "pids: 50", "pids: 20").Replace(string(text)))
	for _, args := range [][]string{
		{"set", "f1", "cpu.max=max", "memory.max=32MiB", "pids=20"},
		{"apply", "-f", changed},
	} {
		s.steps(func(n int) bool {
			s.ok("apply", "-f", s.spec)
			what, killed := s.point(n, args...)
			said := ""
			if killed {
				said = s.ok("repair").out
			}
			s.settled(what, s.states, "up")
			now := s.limits(what)
			isOld, isNew := cmp.Equal(now, before), cmp.Equal(now, after)
			switch {
			case !isOld && !isNew:
				s.Fatalf("%s: limits are %v", what, now)
			case !killed && !isNew:
				s.Fatalf("%s: it ended well and the limits are %v", what, now)
			case strings.Contains(said, "old values") && !isOld, strings.Contains(said, "new values") && !isNew:
				s.Errorf("%s: repair said %q, the limits are %v", what, said, now)
			}
			return killed
		})
	}
}

func TestStopKilledAtEachStep(t *testing.T) {
	each(t, []node{onHost, lent}, func(s *scene) {
		s.steps(func(n int) bool {
			s.ok("apply", "-f", s.spec)
			what, killed := s.point(n, "stop", "--grace", "0s", "f1")
			if killed {
				s.repaired(what, "down", "up")
			}
			s.settled(what, s.states, "down")
			if st := s.status("f1"); st.State != "stopped" && st.State != "exited" {
				s.Errorf("%s: it is %s", what, st.State)
			}
			return killed
		})
	})
}

func TestStartKilledAtEachStep(t *testing.T) {
	each(t, []node{onHost, lent}, func(s *scene) {
		s.ok("apply", "-f", s.spec)
		s.steps(func(n int) bool {
			s.ok("stop", "--grace", "0s", "f1")
			what, killed := s.point(n, "start", "f1")
			if killed {
				s.repaired(what, "down", "up")
			}
			if r := s.berth("start", "f1"); r.code != 0 {
				s.Fatalf("%s: then start: exit %d: %s", what, r.code, r)
			}
			s.settled(what, s.states, "up")
			return killed
		})
	})
}

// TestRestartKilledAtEachStep kills an apply that gives a running node another image, network and id mapping.
func TestRestartKilledAtEachStep(t *testing.T) {
	s := newScene(t, onHost)
	text, err := os.ReadFile(s.spec)
	testkit.Must(s, err)
	other := s.file("other.yaml", strings.NewReplacer(
		"image: host", "image: dir:"+imagetest.BusyboxDir(t),
		"[{mode: bridge, address: [10.9.8.1/24]}]", "[{name: data0, mode: bridge}, {name: data1, mode: bridge}]",
	).Replace(string(text)))
	s.ok("apply", "-f", other)
	s.states["other up"] = s.snapshot()
	s.ok("stop", "--grace", "0s", "f1")
	s.states["other down"] = s.snapshot()
	s.ok("rm", "f1")
	s.steps(func(n int) bool {
		s.ok("apply", "-f", s.spec)
		what, killed := s.point(n, "apply", "--restart", "-f", other)
		if killed {
			if r := s.berth("repair"); r.code != 0 {
				s.Fatalf("%s: repair: exit %d: %s", what, r.code, r)
			}
		}
		// Wherever it was killed, the node starts with the old spec or the new one, and the new spec can be applied.
		if r := s.berth("start", "f1"); r.code != 0 {
			s.Fatalf("%s: then start: exit %d: %s", what, r.code, r)
		}
		s.settled(what+"\nthen start", s.states, "up", "other up")
		if r := s.berth("apply", "--restart", "-f", other); r.code != 0 {
			s.Fatalf("%s: then apply: exit %d: %s", what, r.code, r)
		}
		s.settled(what+"\nthen apply", s.states, "other up")
		s.ok("rm", "--force", "f1")
		s.settled(what+"\nthen rm", s.states, "none")
		return killed
	})
}

// TestRunKilledAtEachStep kills berth run. Once the node's command may run, the keeper removes the node by itself.
func TestRunKilledAtEachStep(t *testing.T) {
	each(t, []node{onHost, lent}, func(s *scene) {
		s.steps(func(n int) bool {
			ran := filepath.Join(s.dir, "data/ran")
			_ = os.Remove(ran)
			what, killed := s.point(n, "run", "-f", s.spec, "--", "/bin/sleep", "0.05")
			if !killed {
				s.settled(what, s.states, "none")
				return false
			}
			if slices.ContainsFunc(s.points(), func(p string) bool { return strings.HasSuffix(p, " done link.configure") }) {
				if !testkit.Happens(func() bool { return cmp.Equal(s.snapshot(), s.states["none"]) }) {
					s.settled(what+"\nno command run", s.states, "none")
				}
			}
			s.repaired(what, "none")
			s.works(what)
			return true
		})
	})
}

// TestRunsInitKilled kills process 1 of a foreground node: berth run exits with 128+9 and leaves nothing.
func TestRunsInitKilled(t *testing.T) {
	s := newScene(t, lent)
	j := s.begin(nil, "run", "-f", s.spec, "--", "/bin/sleep", "1000")
	var pid int
	if !testkit.Happens(func() bool { st := s.status("f1"); pid = st.PID; return st.State == "running" }) {
		s.Fatal("it does not run")
	}
	testkit.Must(s, unix.Kill(pid, unix.SIGKILL))
	if r := j.wait(); r.code != 128+9 {
		s.Errorf("exit %d: %s", r.code, r)
	}
	s.settled("init killed", s.states, "none")
}

// TestRepairKilledAtEachStep kills a repair that has something to repair.
func TestRepairKilledAtEachStep(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		node node
		at   string // where the command before was killed
		args []string
	}{
		{"of apply", lent, " begun oci.start", []string{"apply"}},
		{"of rm", onHost, " phase removing of", []string{"rm", "--force", "f1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t, c.node)
			if c.args[0] == "apply" {
				c.args = append(c.args, "-f", s.spec)
			}
			up := func() {
				if c.args[0] != "apply" {
					s.ok("apply", "-f", s.spec)
				}
			}
			up()
			s.point(0, c.args...) // runs to its end and logs its fault points
			at := 1 + slices.IndexFunc(s.points(), func(p string) bool { return strings.Contains(p, c.at) })
			if s.status("f1").Name != "" {
				s.ok("rm", "--force", "f1")
			}
			s.steps(func(n int) bool {
				up()
				s.point(at, c.args...)
				what, killed := s.point(n, "repair")
				s.repaired(what, "none")
				s.works(what)
				return killed
			})
		})
	}
}

// TestImportKilledAtEachStep kills image import, of an archive and of a plain root, and image rm: afterwards the image is
// complete or absent.
func TestImportKilledAtEachStep(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root.tar")
	archive := imagetest.Busybox(t)
	if err := os.WriteFile(root, imagetest.BusyboxImage(t).Layers[0], 0o600); err != nil {
		t.Fatal(err)
	}
	for name, file := range map[string]string{"archive": archive, "root": root} {
		t.Run(name, func(t *testing.T) { importKilledAtEachStep(t, file) })
	}
}

func importKilledAtEachStep(t *testing.T, archive string) {
	w := newWorld(t)
	w.ok("image", "import", archive, "bb")
	with := w.snapshot()
	w.ok("image", "rm", "bb")
	s := &scene{world: w, states: map[string]snapshot{"none": w.snapshot(), "with": with}}
	for _, c := range [][]string{{"image", "import", archive, "bb"}, {"image", "rm", "bb"}} {
		s.steps(func(n int) bool {
			if c[1] == "rm" {
				s.ok("image", "import", archive, "bb")
			}
			what, killed := s.point(n, c...)
			s.ok("repair")
			state := s.settled(what, s.states, "none", "with")
			if list := s.ok("image", "ls").out; strings.Contains(list, "bb") != (state == "with") {
				s.Fatalf("%s: image ls: %s", what, list)
			}
			if state == "with" {
				s.ok("run", "--image", "oci:bb", "--", "/bin/true")
				s.ok("image", "rm", "bb")
			}
			s.settled(what+"\nthen rm", s.states, "none")
			return killed
		})
	}
}

// TestImportKilledAtRandom kills image import at random moments: the next one works.
func TestImportKilledAtRandom(t *testing.T) {
	w := newWorld(t)
	archive := imagetest.Busybox(t)
	took := w.ok("image", "import", archive, "bb").took
	states := map[string]snapshot{"there": w.snapshot()}
	w.ok("image", "rm", "bb")
	states["none"] = w.snapshot()
	r := sample.Of(t)
	for range r.Rounds(15) {
		j := w.begin(nil, "image", "import", archive, "bb")
		delay := time.Duration(r.Int64N(int64(took)))
		time.Sleep(delay)
		j.kill()
		what := fmt.Sprintf("image import killed after %v of %v", delay, took)
		if j.wait().killed {
			w.ok("repair")
			w.settled(what, states, "none", "there")
			w.ok("image", "import", archive, "bb")
		}
		w.ok("run", "--image", "oci:bb", "--", "/bin/true")
		w.ok("image", "rm", "bb")
		w.settled(what+"; then import and rm", states, "none")
	}
}

// TestFirstCommandKilled kills the first apply on a host, which also makes Berth's folders and probes the runtimes.
func TestFirstCommandKilled(t *testing.T) {
	s := newScene(t, onHost)
	s.steps(func(n int) bool {
		s.endKeeper()
		testkit.Must(s, os.RemoveAll(s.root))
		testkit.Must(s, os.Mkdir(s.root, 0o755))
		what, killed := s.point(n, "apply", "-f", s.spec)
		s.repaired(what, "none", "up")
		s.works(what)
		return killed
	})
}

// endKeeper kills the keeper and waits until it has ended.
func (w *world) endKeeper() {
	w.Helper()
	for _, p := range w.processes() {
		if p.keeper && !p.zombie {
			_ = unix.Kill(p.pid, unix.SIGKILL)
		}
	}
	if !testkit.Happens(func() bool {
		for _, p := range w.processes() {
			if p.keeper && !p.zombie {
				return false
			}
		}
		return true
	}) {
		w.Fatal("the keeper does not end")
	}
}
