package fault

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/image/imagetest"
	"berth/test/sample"
	"berth/test/testkit"
)

// refused checks a command's exit code and error sentence, and that the host is in the given state.
func (s *scene) refused(what string, r result, code int, said, state string) {
	s.Helper()
	if text := strings.TrimSpace(r.err); r.code != code || !strings.HasPrefix(text, "berth: ") || !strings.Contains(text, said) {
		s.Errorf("%s: exit %d, not %d with %q: %s", what, r.code, code, said, r)
	}
	s.settled(what, s.states, state)
}

// disk is a small file system that holds the root.
type disk struct {
	*scene
	page int64
}

// onSmallDisk moves the world's root to a tmpfs of 16 MiB before anything is in it.
func onSmallDisk(t *testing.T, n node) *disk {
	w := newWorld(t)
	testkit.Must(w, unix.Mount("small", w.root, "tmpfs", 0, "size=16m,mode=755"))
	t.Cleanup(func() { _ = unix.Unmount(w.root, unix.MNT_DETACH) })
	return &disk{scene: w.scene(n), page: int64(os.Getpagesize())}
}

// fill leaves the given number of pages free.
func (d *disk) fill(pages int64) {
	d.Helper()
	d.empty()
	var st unix.Statfs_t
	testkit.Must(d, unix.Statfs(d.root, &st))
	f, err := os.Create(d.ballast())
	testkit.Must(d, err)
	defer f.Close()
	for size := int64(st.Bavail)*st.Bsize - pages*d.page; ; size -= d.page { // somebody may write meanwhile
		err := unix.Fallocate(int(f.Fd()), 0, 0, max(size, 1))
		if size <= d.page || !errors.Is(err, unix.ENOSPC) {
			testkit.Must(d, err)
			return
		}
	}
}

func (d *disk) empty()          { _ = os.Remove(d.ballast()) }
func (d *disk) ballast() string { return filepath.Join(d.root, "lib", "ballast") }

// TestFullDisk runs apply with 0, 1, 2 … free pages on the disk that holds journals and delta, until it succeeds, then set,
// stop and rm on a full disk.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	for _, n := range []node{onHost, lent} {
		t.Run(n.name, func(t *testing.T) {
			d := onSmallDisk(t, n)
			d.applies()
			d.sets()
			d.ends()
		})
	}
}

// applies runs apply with more and more free pages until it succeeds. Each apply that fails says why and leaves nothing.
func (d *disk) applies() {
	d.Helper()
	pages, stride := sample.Of(d).Points(0)
	first := int64(pages)
	if first > 0 {
		d.apply(0)
	}
	for pages := first; ; pages += int64(stride) {
		if d.apply(pages) {
			d.Logf("apply takes %d pages", pages)
			break
		}
		if pages > 200 {
			d.Fatal("200 pages do not do")
		}
	}
	if st := d.status("f1"); st.State != "running" {
		d.Errorf("apply with just enough room: %+v", st)
	}
	d.ok("repair") // writes what did not fit before
	d.settled("apply with just enough", d.states, "up")
}

// apply runs apply with so many free pages.
func (d *disk) apply(pages int64) (worked bool) {
	d.Helper()
	d.fill(pages)
	what := fmt.Sprintf("apply with %d pages free", pages)
	r := d.berth("apply", "-f", d.spec)
	d.empty()
	if r.code == 0 {
		if pages == 0 {
			d.Errorf("%s: it worked, so the disk was not full", what)
		}
		return true
	}
	d.refused(what, r, 1, "no space left on device", "none")
	if !strings.Contains(r.err, "the file system at "+d.root) {
		d.Errorf("%s: which file system is full? %s", what, r.err)
	}
	d.works(what)
	return false
}

// sets runs set with more and more free pages. It fails without any, and changes nothing then. It works with many.
func (d *disk) sets() {
	d.Helper()
	before := d.limits("before set")
	const many = 20
	for _, pages := range []int64{0, 1, 2, many} {
		d.fill(pages)
		what := fmt.Sprintf("set with %d pages free", pages)
		r := d.berth("set", "f1", "pids=33")
		d.empty()
		after := d.limits(what)
		switch {
		case r.code != 0 && pages < many:
			d.refused(what, r, 1, "no space left on device", "up")
			if after["pids"] != before["pids"] {
				d.Errorf("%s: it failed, and pids is %s", what, after["pids"])
			}
		case r.code != 0 || pages == 0 || after["pids"] != "33":
			d.Errorf("%s: exit %d, and pids is %s: %s", what, r.code, after["pids"], r)
		}
	}
}

// ends checks that stop, the end of init and rm need no free space.
func (d *disk) ends() {
	d.Helper()
	d.fill(0)
	d.ok("stop", "--grace", "0s", "f1")
	d.empty()
	d.settled("stop on a full disk", d.states, "down")
	d.ok("start", "f1")
	d.fill(0)
	testkit.Must(d, unix.Kill(d.status("f1").PID, unix.SIGKILL))
	d.settled("init killed on a full disk", map[string]snapshot{"down": d.with("down", "file lib/ballast")}, "down")
	d.empty()
	d.ok("start", "f1")
	d.fill(0)
	d.ok("rm", "--force", "f1")
	d.empty()
	d.settled("rm on a full disk", d.states, "none")
}

// TestRunOnFullDisk fills the disk while berth run starts its node, and kills it: the keeper still knows whose node it was, and
// removes it.
func TestRunOnFullDisk(t *testing.T) {
	d := onSmallDisk(t, onHost)
	args := []string{"run", "-f", d.spec, "--", "/bin/sleep", "1000"}
	at := func(point string) int { // the point's number, 0 if it was not passed
		return 1 + slices.IndexFunc(d.points(), func(p string) bool { return strings.Contains(p, point) })
	}
	up, started := "phase up of "+d.l.RunNodes(), "phase up of "+d.l.LibNodes()
	begin := func(stop string) *job {
		_ = os.Remove(d.faults())
		return d.begin([]string{"BERTH_FAULT_STOP=" + stop, "BERTH_FAULT_LOG=" + d.faults()}, args...)
	}
	passed := func(point string) {
		t.Helper()
		if !testkit.Happens(func() bool { return at(point) > 0 }) {
			t.Fatalf("berth run does not pass %q: %q", point, d.points())
		}
	}
	j := begin("")
	passed(started)
	_, name, _ := strings.Cut(d.points()[at(up)-1], " ") // its number may be another one in the next run: some points are passed beside others
	j.kill()
	j.wait()
	d.settled("run, killed", d.states, "none")

	j = begin(name) // its status is not written yet
	passed(up)
	d.fill(0)
	testkit.Must(d, j.cmd.Process.Signal(unix.SIGCONT))
	passed(started)
	if st := d.status("f1"); st.State != "running" {
		t.Errorf("on a full disk: %+v", st)
	}
	j.kill()
	j.wait()
	d.settled("run, killed on a full disk", map[string]snapshot{"none": d.with("none", "file lib/ballast")}, "none")
	d.empty()
	d.works("run, killed on a full disk")
}

// with returns a state with one more line.
func (s *scene) with(state, more string) snapshot {
	all := append(snapshot{more}, s.states[state]...)
	all.sort()
	return all
}

// hideable mounts overlays over /usr/bin and /usr/sbin in this world, so that a test can rename files without changing the host's.
func (w *world) hideable() {
	w.Helper()
	for _, dir := range []string{"/usr/bin", "/usr/sbin"} {
		mem := filepath.Join(w.dir, "overlay", filepath.Base(dir))
		testkit.Must(w, os.MkdirAll(mem, 0o755))
		testkit.Must(w, unix.Mount("bin", mem, "tmpfs", 0, ""))
		testkit.Must(w, os.Mkdir(mem+"/upper", 0o755))
		testkit.Must(w, os.Mkdir(mem+"/work", 0o755))
		if err := unix.Mount("bin", dir, "overlay", 0, "lowerdir="+dir+",upperdir="+mem+"/upper,workdir="+mem+"/work"); err != nil {
			w.Skipf("no overlay over %s: %v", dir, err)
		}
		w.Cleanup(func() {
			_ = unix.Unmount(dir, unix.MNT_DETACH)
			_ = unix.Unmount(mem, unix.MNT_DETACH)
		})
	}
}

// runtimes returns the paths of this host's OCI runtimes.
func (w *world) runtimes() []string {
	var all []string
	for _, name := range []string{"crun", "runc"} {
		if p, err := exec.LookPath(name); err == nil {
			all = append(all, p)
		}
	}
	return all
}

// hide renames all OCI runtimes, or renames them back.
func (w *world) hide(hide bool) {
	w.Helper()
	if hide {
		for _, p := range w.runtimes() {
			testkit.Must(w, os.Rename(p, p+".gone"))
		}
		return
	}
	hidden, _ := filepath.Glob("/usr/*bin/*.gone")
	for _, p := range hidden {
		testkit.Must(w, os.Rename(p, strings.TrimSuffix(p, ".gone")))
	}
}

// TestRuntimeVanishes removes the OCI runtimes before a command, and under a node that runs.
func TestRuntimeVanishes(t *testing.T) {
	w := newWorld(t)
	w.hideable()
	s := w.scene(onHost)
	for _, p := range s.runtimes() { // each runtime alone; image host leaves out the overlay mounts below /usr
		s.hide(true)
		testkit.Must(s, os.Rename(p+".gone", p))
		s.works("with " + p + " alone")
		s.hide(false)
	}
	s.hide(true)
	s.refused("apply without a runtime", s.berth("apply", "-f", s.spec), 3, "apt-get install", "none")
	r := s.berth("run", "--image", "host", "--", "/bin/true")
	s.refused("run without a runtime", r, 125, "apt-get install", "none")
	s.hide(false)
	s.ok("apply", "-f", s.spec)
	s.hide(true)
	if r := s.berth("exec", "f1", "--", "/bin/true"); r.code != 125 || !strings.HasPrefix(r.err, "berth: ") {
		t.Errorf("exec without a runtime: exit %d: %s", r.code, r)
	}
	s.settled("exec without a runtime", s.states, "up")
	s.ok("set", "f1", "pids=44") // limits are set without the runtime
	s.settled("set without a runtime", s.states, "up")
	s.ok("stop", "--grace", "0s", "f1")
	s.settled("stop without a runtime", s.states, "down")
	s.refused("start without a runtime", s.berth("start", "f1"), 3, "apt-get install", "down")
	s.ok("rm", "f1")
	s.settled("rm without a runtime", s.states, "none")
	s.hide(false)
	s.works("with the runtimes back")
}

// created reports whether the node's process 1 existed when the last berth passed its n-th fault point.
func (s *scene) created(n int) bool {
	passed := s.points()
	return slices.ContainsFunc(passed[:min(n, len(passed))], regexp.MustCompile(` did \S+\.create$`).MatchString)
}

// TestRuntimeVanishesAtEachStep removes the OCI runtimes while an apply waits at a fault point. It fails and leaves nothing as
// long as it needs one, and works once the runtime has made the node's process 1.
func TestRuntimeVanishesAtEachStep(t *testing.T) {
	w := newWorld(t)
	w.hideable()
	w.Cleanup(func() { w.hide(false) })
	s := w.scene(onHost)
	s.takenAtEachStep(func() { s.hide(true) }, func() { s.hide(false) })
}

// TestImageRemovedAtEachStep removes the folder of a dir: image while an apply waits at a fault point. It fails and leaves
// nothing, and works once the node's process 1 has mounted its root.
func TestImageRemovedAtEachStep(t *testing.T) {
	template := imagetest.BusyboxDir(t)
	w := newWorld(t)
	dir := filepath.Join(w.dir, "image")
	build := func() {
		w.Helper()
		if out, err := exec.Command("cp", "-al", template, dir).CombinedOutput(); err != nil {
			w.Fatalf("copy the image: %v: %s", err, out)
		}
	}
	build()
	s := w.scene(node{"dir", func(*world) string { return "name: f1\nimage: dir:" + dir + "\ncommand: [/bin/sleep, infinity]\n" }})
	s.takenAtEachStep(func() { testkit.Must(s, os.RemoveAll(dir)) }, build)
}

// initWaits waits until process 1 of the node that was just created waits for its start. The runtime's create ends a moment before
// process 1 has found its program.
func (s *scene) initWaits() {
	s.Helper()
	looks := 0
	testkit.Eventually(s, "process 1 waits for its start", func() bool {
		pid, _ := os.ReadFile(s.l.Node("f1").PIDFile())
		tasks, _ := filepath.Glob("/proc/" + strings.TrimSpace(string(pid)) + "/task/*/stat")
		looks++
		for _, task := range tasks {
			stat, _ := os.ReadFile(task)
			if _, rest, _ := strings.Cut(string(stat), ") "); !strings.HasPrefix(rest, "S") {
				looks = 0
			}
		}
		if len(tasks) == 0 || strings.TrimSpace(string(pid)) == "" {
			looks = 0
		}
		return looks == 5
	})
}

// takenAtEachStep takes what an apply needs while it waits at a fault point, and gives it back when it has ended.
func (s *scene) takenAtEachStep(take, giveBack func()) {
	s.Helper()
	s.steps(func(n int) bool {
		what, r, paused := s.pausedAt(n, func() {
			if s.created(n) {
				s.initWaits()
			}
			take()
		}, "apply", "-f", s.spec)
		if paused {
			giveBack()
		}
		works := !paused || s.created(n)
		if r.code == 0 && s.created(n+1) { // the keeper created it while apply waited
			works = true
		}
		if works != (r.code == 0) {
			s.Fatalf("%s: exit %d, process 1 existed before: %v: %s", what, r.code, works, r)
		}
		if works {
			s.settled(what, s.states, "up")
			s.ok("rm", "--force", "f1")
		} else {
			s.failedWell(what, r)
			s.settled(what, s.states, "none")
		}
		s.works(what)
		return paused
	})
}

// TestCannotRun runs commands that the kernel refuses to execute.
func TestCannotRun(t *testing.T) {
	w := newWorld(t)
	dir := imagetest.BusyboxDir(t)
	s := w.scene(node{"dir", func(*world) string { return "name: f1\nimage: dir:" + dir + "\ncommand: [/bin/sleep, infinity]\n" }})
	for name, text := range map[string]string{
		"garbage": "\x01\x02\x03garbage", "script": "#!/no/such/shell\n", "half": "\x7fELF\x02\x01\x01",
	} {
		testkit.Must(s, os.WriteFile(filepath.Join(dir, "bin", name), []byte(text), 0o755))
		testkit.Must(s, os.Chmod(filepath.Join(dir, "bin", name), 0o755))
	}
	testkit.Must(s, os.WriteFile(filepath.Join(dir, "bin/plain"), []byte("#!/bin/sh\n"), 0o644))
	for _, c := range []struct {
		command string
		code    int // of berth run
		said    string
	}{
		{"/bin/garbage", 126, "exec format error"},
		{"/bin/half", 126, "exec format error"},
		{"/bin/script", 127, "/no/such/shell"},
		{"/bin/plain", 126, "not executable"},
		{"/bin", 126, ""},
		{"/bin/nothing", 127, "no such file"},
		{"nothing", 127, "not found"},
	} {
		r := s.berth("run", "--image", "dir:"+dir, "--", c.command)
		s.refused("run "+c.command, r, c.code, c.said, "none")
		spec := s.file("bad.yaml", "name: f1\nimage: dir:"+dir+"\ncommand: ["+c.command+"]\n")
		s.refused("apply "+c.command, s.berth("apply", "-f", spec), 1, c.said, "none")
	}
	s.works("after commands that cannot run")
}
