package fault

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/image/imagetest"
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
	w.must(unix.Mount("small", w.root, "tmpfs", 0, "size=16m,mode=755"))
	t.Cleanup(func() { _ = unix.Unmount(w.root, unix.MNT_DETACH) })
	return &disk{scene: w.scene(n), page: int64(os.Getpagesize())}
}

// fill leaves the given number of pages free.
func (d *disk) fill(pages int64) {
	d.Helper()
	d.empty()
	var st unix.Statfs_t
	d.must(unix.Statfs(d.root, &st))
	f, err := os.Create(d.ballast())
	d.must(err)
	defer f.Close()
	d.must(unix.Fallocate(int(f.Fd()), 0, 0, max(int64(st.Bavail)*st.Bsize-pages*d.page, 1)))
}

func (d *disk) empty()          { _ = os.Remove(d.ballast()) }
func (d *disk) ballast() string { return filepath.Join(d.root, "lib", "ballast") }

// TestFullDisk runs apply with 0, 1, 2 … free pages on the disk that holds journals and delta, until it succeeds.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	for _, n := range []node{onHost, lent} {
		t.Run(n.name, func(t *testing.T) {
			d := onSmallDisk(t, n)
			for pages := int64(0); ; pages++ {
				if testing.Short() && pages%9 != 0 {
					continue
				}
				d.fill(pages)
				what := fmt.Sprintf("apply with %d pages free", pages)
				r := d.berth("apply", "-f", d.spec)
				d.empty()
				if r.code == 0 {
					t.Logf("apply takes %d pages", pages)
					break
				}
				d.refused(what, r, 1, "no space left on device", "none")
				if !strings.Contains(r.err, "the file system at "+d.root) {
					t.Errorf("%s: which file system is full? %s", what, r.err)
				}
				d.works(what)
				if pages > 200 {
					t.Fatal("200 pages do not do")
				}
			}
			if st := d.status("f1"); st.State != "running" {
				t.Errorf("apply with just enough room: %+v", st)
			}
			d.ok("repair") // writes what did not fit before
			d.settled("apply with just enough", d.states, "up")
			before := d.limits("before set")
			for pages := range int64(3) {
				d.fill(pages)
				what := fmt.Sprintf("set with %d pages free", pages)
				if r := d.berth("set", "f1", "pids=33"); r.code != 0 {
					d.empty()
					d.refused(what, r, 1, "no space left on device", "up")
					if after := d.limits(what); after["pids"] != before["pids"] {
						t.Errorf("%s: it failed, and pids is %s", what, after["pids"])
					}
				} else if after := d.limits(what); after["pids"] != "33" {
					t.Errorf("%s: it ended well, and pids is %s", what, after["pids"])
				}
				d.empty()
			}
			// stop, the end of init and rm need no free space.
			d.fill(0)
			d.ok("stop", "--grace", "0s", "f1")
			d.empty()
			d.settled("stop on a full disk", d.states, "down")
			d.ok("start", "f1")
			d.fill(0)
			d.must(unix.Kill(d.status("f1").PID, unix.SIGKILL))
			d.settled("init killed on a full disk", map[string]snapshot{"down": d.with("down", "file lib/ballast")}, "down")
			d.empty()
			d.ok("start", "f1")
			d.fill(0)
			d.ok("rm", "--force", "f1")
			d.empty()
			d.settled("rm on a full disk", d.states, "none")
		})
	}
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
		w.must(os.MkdirAll(mem, 0o755))
		w.must(unix.Mount("bin", mem, "tmpfs", 0, ""))
		w.must(os.Mkdir(mem+"/upper", 0o755))
		w.must(os.Mkdir(mem+"/work", 0o755))
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

// TestRuntimeVanishes removes the OCI runtimes: before a command, under a node that runs, and at random moments.
func TestRuntimeVanishes(t *testing.T) {
	w := newWorld(t)
	w.hideable()
	s := w.scene(onHost)
	gone := func(vanish bool) {
		for _, p := range s.runtimes() {
			if vanish {
				s.must(os.Rename(p, p+".gone"))
			}
		}
		if !vanish {
			hidden, _ := filepath.Glob("/usr/*bin/*.gone")
			for _, p := range hidden {
				s.must(os.Rename(p, strings.TrimSuffix(p, ".gone")))
			}
		}
	}
	for _, p := range s.runtimes() { // each runtime alone; image host leaves out the overlay mounts below /usr
		gone(true)
		s.must(os.Rename(p+".gone", p))
		s.works("with " + p + " alone")
		gone(false)
	}
	gone(true)
	s.refused("apply without a runtime", s.berth("apply", "-f", s.spec), 3, "apt-get install", "none")
	r := s.berth("run", "--image", "host", "--", "/bin/true")
	s.refused("run without a runtime", r, 125, "apt-get install", "none")
	gone(false)
	s.ok("apply", "-f", s.spec)
	gone(true)
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
	gone(false)
	rounds := 20
	if testing.Short() {
		rounds = 2
	}
	rnd := seeded(t)
	for range rounds {
		j := s.begin(nil, "apply", "-f", s.spec)
		delay := time.Duration(rnd.IntN(50_000)) * time.Microsecond
		time.Sleep(delay)
		gone(true)
		r := j.wait()
		what := fmt.Sprintf("apply whose runtime vanished after %v: %s", delay, r)
		if r.code != 0 {
			s.failedWell(what, r)
			s.settled(what, s.states, "none")
		} else {
			s.settled(what, s.states, "up")
			s.ok("rm", "--force", "f1")
		}
		gone(false)
		s.works(what)
	}
}

// TestCannotRun runs commands that the kernel refuses to execute.
func TestCannotRun(t *testing.T) {
	w := newWorld(t)
	dir := imagetest.BusyboxDir(t)
	s := w.scene(node{"dir", func(*world) string { return "name: f1\nimage: dir:" + dir + "\ncommand: [/bin/sleep, infinity]\n" }})
	for name, text := range map[string]string{
		"garbage": "\x01\x02\x03garbage", "script": "#!/no/such/shell\n", "half": "\x7fELF\x02\x01\x01",
	} {
		s.must(os.WriteFile(filepath.Join(dir, "bin", name), []byte(text), 0o755))
		s.must(os.Chmod(filepath.Join(dir, "bin", name), 0o755))
	}
	s.must(os.WriteFile(filepath.Join(dir, "bin/plain"), []byte("#!/bin/sh\n"), 0o644))
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

// TestImageRemovedWhileStarting removes the folder of a dir: image at random moments of an apply.
func TestImageRemovedWhileStarting(t *testing.T) {
	template := imagetest.BusyboxDir(t)
	w := newWorld(t)
	dir := filepath.Join(w.dir, "image")
	build := func() {
		if out, err := exec.Command("cp", "-al", template, dir).CombinedOutput(); err != nil {
			w.Fatalf("copy the image: %v: %s", err, out)
		}
	}
	build()
	s := w.scene(node{"dir", func(*world) string { return "name: f1\nimage: dir:" + dir + "\ncommand: [/bin/sleep, infinity]\n" }})
	rounds := 30
	if testing.Short() {
		rounds = 3
	}
	rnd := seeded(t)
	failed := 0
	for range rounds {
		j := s.begin(nil, "apply", "-f", s.spec)
		delay := time.Duration(rnd.IntN(40_000)) * time.Microsecond
		time.Sleep(delay)
		s.must(os.RemoveAll(dir))
		r := j.wait()
		what := fmt.Sprintf("apply whose image was removed after %v: %s", delay, r)
		if r.code != 0 {
			failed++
			s.failedWell(what, r)
			s.settled(what, s.states, "none")
		} else {
			s.settled(what, s.states, "up", "down") // its command may have been removed before it was executed
			s.ok("rm", "--force", "f1")
			s.settled(what+"; then rm", s.states, "none")
		}
		build()
	}
	s.works("after images that were removed")
	t.Logf("%d of %d applies failed", failed, rounds)
}
