package fault

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/image/imagetest"
	"berth/test/sample"
	"berth/test/testkit"
)

// crowd is a world with several nodes.
type crowd struct {
	*scene
	names []string
	specs []string
}

func newCrowd(t *testing.T) *crowd {
	w := newWorld(t)
	c := &crowd{scene: &scene{world: w}}
	w.adapter("lent0")
	bb := imagetest.BusyboxDir(t)
	for i, rest := range []string{
		"image: host\nmemory: {max: 64MiB}\nnetwork: [{mode: bridge}]\n",
		"image: host\nnetwork: [{mode: phys, parent: lent0, name: data0}, {mode: bridge}]\n",
		"image: dir:" + bb + "\ncpu: {max: 1}\nnetwork: [{mode: bridge, address: [10.1.1.3/24]}]\nrestart: always\n",
		"image: dir:" + bb + "\ndelta: {in: memory, size: 8MiB}\n",
	} {
		name := fmt.Sprintf("f%d", i+1)
		c.names = append(c.names, name)
		c.specs = append(c.specs, w.file(name+".yaml", "name: "+name+"\ncommand: [/bin/sleep, infinity]\n"+rest))
	}
	for i := range c.names {
		w.ok("apply", "-f", c.specs[i])
	}
	w.ok(append([]string{"rm", "--force"}, c.names...)...)
	c.states = map[string]snapshot{"none": w.snapshot()}
	return c
}

// TestKilledAtRandom kills three concurrent commands on several nodes at random moments, and sometimes the keeper too.
func TestKilledAtRandom(t *testing.T) {
	c := newCrowd(t)
	r := sample.Of(t)
	for round := range r.Rounds(20) {
		var jobs []*job
		var what []string
		for range 3 {
			i := r.IntN(len(c.names))
			args := [][]string{
				{"apply", "-f", c.specs[i]},
				{"apply", "-f", c.specs[i]},
				{"rm", "--force", c.names[i]},
				{"set", c.names[i], fmt.Sprintf("pids=%d", 20+r.IntN(20))},
				{"run", "--image", "host", "--name", "r" + c.names[i], "--", "/bin/sleep", "0.1"},
				{"stop", "--grace", "0s", c.names[i]},
				{"start", c.names[i]},
				{"repair"},
			}[r.IntN(8)]
			what = append(what, strings.Join(args, " "))
			jobs = append(jobs, c.begin(nil, args...))
			time.Sleep(time.Duration(r.IntN(10_000)) * time.Microsecond)
		}
		time.Sleep(time.Duration(r.IntN(60_000)) * time.Microsecond)
		for _, j := range jobs {
			_ = unix.Kill(-j.cmd.Process.Pid, unix.SIGKILL)
		}
		if r.IntN(4) == 0 {
			if pid := c.keeperPid(); pid != 0 {
				_ = unix.Kill(pid, unix.SIGKILL)
				what = append(what, "the keeper")
			}
		}
		for i, j := range jobs {
			if res := j.wait(); !res.killed {
				what[i] += fmt.Sprintf(" (exit %d)", res.code)
			}
		}
		killed := fmt.Sprintf("round %d, killed: %s", round, strings.Join(what, ", "))
		c.check(killed)
	}
}

// check runs repair, applies and removes all nodes, and checks that nothing is left.
func (c *crowd) check(what string) {
	c.Helper()
	if r := c.berth("repair"); r.code != 0 {
		c.Fatalf("%s: repair: exit %d: %s", what, r.code, r)
	}
	for i, name := range c.names {
		if r := c.berth("apply", "-f", c.specs[i]); r.code != 0 {
			c.Fatalf("%s: then apply %s: exit %d: %s", what, name, r.code, r)
		}
		if st := c.status(name); st.State != "running" {
			c.Fatalf("%s: then apply %s: it is %s", what, name, st.State)
		}
	}
	if r := c.berth(append([]string{"rm", "--force"}, c.names...)...); r.code != 0 {
		c.Fatalf("%s: then rm: exit %d: %s", what, r.code, r)
	}
	c.settled(what+"; then rm of all", c.states, "none")
}

// TestApplyRacesRm lets six commands race for one node: each succeeds or fails with an expected exit code, and rm leaves nothing.
func TestApplyRacesRm(t *testing.T) {
	c := newCrowd(t)
	r := sample.Of(t)
	codes := map[string]int{}
	for range r.Rounds(25) {
		i := r.IntN(2)
		var jobs []*job
		for range 6 {
			jobs = append(jobs, c.begin(nil, [][]string{
				{"apply", "-f", c.specs[i]},
				{"apply", "-f", c.specs[i]},
				{"rm", "--force", c.names[i]},
				{"stop", "--grace", "0s", c.names[i]},
				{"set", c.names[i], "pids=30"},
				{"start", c.names[i]},
				{"repair"},
				{"run", "-f", c.specs[i], "--", "/bin/true"},
			}[r.IntN(8)]...))
			time.Sleep(time.Duration(r.IntN(20_000)) * time.Microsecond)
		}
		for _, j := range jobs {
			res := j.wait()
			verb := j.cmd.Args[3]
			codes[fmt.Sprint(verb, " ", res.code)]++
			switch {
			case res.code == 0, res.code == 4 && verb != "apply", res.code == 5 && verb == "apply", verb == "run" && (res.code == 125 || res.code == 137): // 137: rm killed it
				if res.code != 0 && res.code != 137 && !strings.HasPrefix(res.err, "berth: ") {
					t.Errorf("%v: exit %d: %s", j.cmd.Args[3:], res.code, res)
				}
			default:
				t.Errorf("%v: exit %d: %s", j.cmd.Args[3:], res.code, res)
			}
		}
		c.berth("rm", "--force", c.names[i])
		c.settled(fmt.Sprint("after a race for ", c.names[i]), c.states, "none")
	}
	t.Log(codes)
	if codes["apply 0"]+codes["start 0"]+codes["run 0"] == 0 {
		t.Error("nothing ever started")
	}
}

var (
	wroteRecord = regexp.MustCompile(`^\d+ (begun|done|phase|journal created|set begun|set ended)`)
	claims      = regexp.MustCompile(` (ids\.|link.claim-mac|image\.)`)
)

// TestTornJournal kills commands just after they have written a journal record, and truncates that record at a random byte
// like an interrupted write.
func TestTornJournal(t *testing.T) {
	s := newScene(t, lent)
	r := sample.Of(t)
	s.ok("apply", "-f", s.spec)
	for _, args := range [][]string{{"apply", "-f", s.spec}, {"rm", "--force", "f1"}} {
		s.steps(func(n int) bool {
			if args[0] == "apply" {
				s.ok("rm", "--force", "f1")
			} else {
				s.ok("apply", "-f", s.spec)
			}
			what, killed := s.point(n, args...)
			if killed && wroteRecord.MatchString(what) {
				what += "; " + s.tear(r, what)
			}
			s.repaired(what, "none", "up")
			s.ok("apply", "-f", s.spec)
			s.settled(what, s.states, "up")
			return killed
		})
	}
	s.ok("rm", "--force", "f1")
}

// tear truncates the last record of the journal that was written last. The name of the fault point tells which one that is.
func (s *scene) tear(r sample.Walk, point string) string {
	s.Helper()
	last := s.l.Node("f1").Journal()
	_, err := os.Stat(last)
	if err != nil || claims.MatchString(point) || strings.HasSuffix(point, s.l.Node("f1").Claims()) {
		last = s.l.Node("f1").Claims()
	}
	text, err := os.ReadFile(last)
	testkit.Must(s, err)
	begin := strings.LastIndexByte(strings.TrimSuffix(string(text), "\n"), '\n') + 1
	cut := begin + r.IntN(len(text)-begin)
	testkit.Must(s, os.Truncate(last, int64(cut)))
	return fmt.Sprintf("%s cut at byte %d of %d", last, cut, len(text))
}

// TestLostClaims truncates the claims journal of a stopped node at a random byte, as a power cut may. Nothing of the node is removed;
// where too little of the journal is left, repair says so, and rm --force removes the node with all its claims.
func TestLostClaims(t *testing.T) {
	s := newScene(t, onHost)
	r := sample.Of(t)
	for round := range r.Rounds(12) {
		s.ok("apply", "-f", s.spec)
		s.ok("stop", "--grace", "0s", "f1")
		claims := s.l.Node("f1").Claims()
		text, err := os.ReadFile(claims)
		testkit.Must(s, err)
		cut := r.IntN(len(text))
		if round == 0 {
			cut = 0
		}
		testkit.Must(s, os.Truncate(claims, int64(cut)))
		what := fmt.Sprintf("claims cut at byte %d of %d", cut, len(text))
		repaired := s.berth("repair")
		s.settled(what+"\nrepair: "+repaired.String(), s.states, "down")
		switch {
		case repaired.code == 0:
		case repaired.code == 1 && strings.Contains(repaired.err, claims) && strings.Contains(repaired.err, "berth rm --force f1"):
			s.ok("ls")
			s.ok("rm", "--force", "f1")
			s.settled(what+"\nrm", s.states, "none")
		default:
			s.Fatalf("%s: repair: exit %d: %s", what, repaired.code, repaired)
		}
		s.works(what)
	}
}

// TestBackAtOnce removes nodes and makes them again at once: kernel objects that are still being torn down do not get in the way.
func TestBackAtOnce(t *testing.T) {
	each(t, []node{shared, onHost, lent}, func(s *scene) {
		for range sample.Of(s).Rounds(20) {
			s.ok("apply", "-f", s.spec)
			s.ok("rm", "--force", "f1")
		}
		s.settled("after some turns", s.states, "none")
	})
}
