package fault

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/runner/machine"
	"berth/test/built"
	"berth/test/lab/kernel"
	"berth/test/sample"
	"berth/test/testkit"
)

// guests returns the kernel that machines boot. It is made once, with the program for guests, beside berth.
var guests = sync.OnceValues(func() (string, error) {
	dir := filepath.Dir(berth)
	file, err := kernel.Into(dir)
	if err == nil {
		err = built.Guest(context.Background(), dir)
	}
	return file, err
})

// virtual is a machine with all that a machine can have: disks for its root and of a pool, a device, an interface, a folder of the host, limits.
var virtual = node{"machine", func(w *world) string {
	file, err := guests()
	if lack, lacks := errors.AsType[kernel.Lack](err); lacks {
		w.Skip(lack.Error())
	}
	testkit.Must(w, err)
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		w.Skip("needs the kernel's driver tun")
	}
	disk, _ := w.loop("disk")
	testkit.Must(w, os.Mkdir(w.root+"/pool", 0o755))
	w.ok("pool", "add", "default", "--dir", w.root+"/pool")
	mounts := ""
	if shareDaemon() {
		mounts = "mounts: [{source: " + w.dir + "/data, target: /shared}]\n"
	}
	return `
name: f1
kind: machine
image: file:` + w.packed() + `
command: [/bin/sleep, infinity]
machine: {memory: 192MiB, kernel: ` + file + `}
memory: {max: 512MiB}
delta: {size: 32MiB}
scratch: [{target: /data, size: 16MiB}]
devices: [{path: ` + disk + `, as: /dev/own}]
io: [{name: own, device: ` + disk + `, write: {rate: 20MB/s}}]
network: [{mode: bridge, address: [10.9.8.7/24], rate: {tx: 8Mbit/s, rx: 8Mbit/s}}]
` + mounts
}}

// shareDaemon reports whether machines can have mounts here. The daemon that scripts/setup fetched is put beside berth, and found by PATH, where
// the host has none.
var shareDaemon = sync.OnceValue(func() bool {
	dir := filepath.Dir(berth)
	if text, err := os.ReadFile("../../build/tools/virtiofsd"); err == nil && os.WriteFile(filepath.Join(dir, "virtiofsd"), text, 0o755) == nil {
		os.Setenv("PATH", os.Getenv("PATH")+":"+dir)
	}
	_, err := machine.FindShareDaemon()
	return err == nil
})

// held is the fault point at which a machine is made and waits before its guest's first instruction.
const held = "begun machine.start"

// newHeld makes a scene for a machine that was not made yet.
func newHeld(t *testing.T) *scene {
	t.Helper()
	w := newWorld(t)
	s := &scene{world: w, states: map[string]snapshot{}}
	s.spec = w.file("f1.yaml", virtual.spec(w))
	s.ok("ls")
	s.states["none"] = s.snapshot()
	return s
}

// hold kills a command when the machine that it starts waits, and returns how many fault points the command passed.
func (s *scene) hold(args ...string) (points int) {
	s.Helper()
	if what, killed := s.point(held, args...); !killed {
		s.Fatalf("it does not come to %s: %s", held, what)
	}
	return len(s.points())
}

// heldSteps kills a command that starts a machine at the fault points until that waits. Afterwards the host is in this state.
func (s *scene) heldSteps(state string, args ...string) {
	s.Helper()
	last := s.hold(args...)
	s.repaired(strings.Join(args, " ")+" killed at "+held, state)
	s.walk(sample.Of(s).Sparse(), func(n int) bool {
		if n >= last {
			return false
		}
		what, killed := s.point(n, args...)
		s.repaired(what, state)
		return killed
	})
}

// heldEnds kills a command at its fault points, each time after begin, which leaves a machine that waits and whose maker was killed.
// Afterwards the host is in this state.
func (s *scene) heldEnds(state string, begin func(), args ...string) {
	s.Helper()
	s.walk(sample.Of(s).Sparse(), func(n int) bool {
		begin()
		what, killed := s.point(n, args...)
		s.repaired(what, state)
		return killed
	})
}

// TestMachineKilledAtEachStep kills the commands that make and end a machine, and the keeper, while it waits before its guest's first
// instruction. Of a new node nothing is left, of one that was there before what it has on disks.
func TestMachineKilledAtEachStep(t *testing.T) {
	s := newHeld(t)
	apply := []string{"apply", "-f", s.spec}
	s.heldSteps("none", apply...)
	s.heldEnds("none", func() { s.hold(apply...) }, "repair")
	log := s.dir + "/keeper-faults"
	s.walk(sample.Of(s).Sparse(), func(n int) bool {
		s.endKeeper()
		_ = os.Remove(log)
		r := s.begin([]string{fmt.Sprint("BERTH_FAULT_KEEPER=", n), "BERTH_FAULT_KEEPER_LOG=" + log, "BERTH_FAULT=" + held}, apply...).wait()
		what := fmt.Sprintf("the keeper of apply killed at its point %d, of %q", n, s.passedByKeeper())
		if !r.killed {
			s.failedWell(what, r)
			s.settled(what, s.states, "none")
		}
		s.repaired(what, "none")
		return slices.ContainsFunc(s.passedByKeeper(), func(p string) bool { return strings.HasPrefix(p, fmt.Sprint(n, " ")) })
	})

	other := s.file("other.yaml", "name: f1\nimage: host\ncommand: [/bin/true]\n")
	became := func() { s.ok("apply", "-f", other); s.hold("apply", "--restart", "-f", s.spec) }
	became()
	s.ok("repair")
	s.states["down"] = s.onDisk()
	s.heldSteps("down", "start", "f1")
	s.heldEnds("down", func() { s.hold("start", "f1") }, "stop", "--grace", "0s", "f1")
	s.ok("rm", "f1")
	s.settled("rm", s.states, "none")
	s.walk(sample.Of(s).Sparse(), func(n int) bool {
		became()
		what, killed := s.point(n, "rm", "--force", "f1")
		if state, _ := s.repaired(what, "down", "none"); state == "down" {
			s.ok("rm", "f1")
		}
		return killed
	})
}

// part is a process of a machine, or of who makes it; the last of them: of a daemon's two the one that serves.
func (s *scene) part(word string) (pid int) {
	s.Helper()
	for _, p := range s.processes() {
		if strings.Contains(p.cmd, word) && !p.zombie {
			pid = max(pid, p.pid)
		}
	}
	return pid
}

// TestMachinesPartsKilled kills the monitor, the emulator, the daemon of a mount and the keeper of a machine that waits before its guest's first instruction, while
// the command goes on that made it, and whichever of them is there at a random moment before: the command fails with a sentence, and nothing
// is left.
func TestMachinesPartsKilled(t *testing.T) {
	s := newHeld(t)
	words := []string{"berth machine monitor", "qemu-system", " keeper"}
	if shareDaemon() {
		words = append(words, "virtiofsd")
	}
	for _, word := range words {
		what, r, paused := s.pausedAt(held, func() {
			pid := s.part(word)
			if pid == 0 {
				s.Fatalf("there is no %s: %q", word, s.processLines())
			}
			testkit.Must(s, unix.Kill(pid, unix.SIGKILL))
			testkit.Eventually(s, word+" has ended", func() bool { return s.part(word) != pid })
			if word == " keeper" { // the machine does not need it, and would boot
				testkit.Must(s, unix.Kill(s.part("qemu-system"), unix.SIGKILL))
			}
		}, "apply", "-f", s.spec)
		if !paused || r.code == 0 || !strings.Contains(r.err, "the machine has ended") {
			s.Fatalf("%s: %s is killed, and it ends with %d: %s", what, word, r.code, r)
		}
		s.failedWell(what, r)
		s.settled(what+"\n"+word+" is killed", s.states, "none")
	}
	began := time.Now()
	s.hold("apply", "-f", s.spec)
	took := time.Since(began)
	s.repaired("held", "none")
	w := sample.Of(s)
	for range w.Rounds(24) {
		s.endKeeper()
		delay := time.Duration(w.Int64N(int64(took)))
		word := sample.Some(w, 1, append(words, "berth machine launch")...)[0]
		j := s.begin([]string{"BERTH_FAULT=" + held}, "apply", "-f", s.spec)
		time.Sleep(delay)
		pid := s.part(word)
		if pid != 0 {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		what := fmt.Sprintf("%s, process %d, is killed %v after apply began", word, pid, delay)
		if r := j.wait(); !r.killed {
			s.failedWell(what, r)
			s.settled(what+": "+r.String(), s.states, "none")
		}
		s.repaired(what, "none")
	}
}

// TestMachineKilledWhileItRuns boots a machine three times. set is killed at its fault points, the keeper, the monitor and the emulator are
// killed while the guest runs, and stop and rm at one point each.
func TestMachineKilledWhileItRuns(t *testing.T) {
	s := newHeld(t)
	s.ok("apply", "-f", s.spec)
	s.states["up"] = s.snapshot()
	s.machineSet()
	s.endKeeper()
	s.ok("ls")
	s.settled("the keeper was killed", s.states, "up")

	kills := func(pid int) { t.Helper(); testkit.Must(t, unix.Kill(pid, unix.SIGKILL)) }
	ended := func(what string) {
		t.Helper()
		testkit.Eventually(t, what+" is killed, and the machine has ended", func() bool { return s.status("f1").State == "exited" })
		if st := s.status("f1"); st.Exit == nil || st.Exit.Unknown && s.tells() || !st.Exit.Unknown && st.Exit.Code != 137 {
			t.Errorf("%s is killed, and the machine ended so: %+v", what, st.Exit)
		}
	}
	// The monitor ends while the guest is asked for memory: the change is taken back, and nothing of the machine is left.
	s.ok("set", "f1", "machine.memory=192MiB") // it boots with that again
	monitor := s.status("f1").PID
	asking, r, paused := s.pausedAt("begun machine.resize", func() { kills(monitor) }, "set", "f1", "machine.memory=144MiB")
	if !paused || r.code == 0 || !strings.Contains(r.err, "the machine has ended") || strings.Contains(r.err, "taking it back failed") {
		t.Errorf("%s, the monitor is killed: %s", asking, r)
	}
	ended("the monitor")
	s.states["down"] = s.onDisk()
	s.ok("start", "f1")
	s.settled("start", s.states, "up")
	kills(s.part("qemu-system"))
	ended("the emulator")
	s.settled("the emulator is killed", s.states, "down")

	s.ok("start", "f1")
	w := sample.Of(s)
	what, killed := s.point(1+w.IntN(20), "stop", "--grace", "0s", "f1")
	if killed {
		s.ok("repair")
	}
	state := s.settled(what, s.states, "up", "down")
	what, killed = s.point(1+w.IntN(60), "rm", "--force", "f1")
	if killed {
		s.ok("repair")
	}
	if s.settled(what+", and was "+state, s.states, state, "none") != "none" {
		s.ok("rm", "--force", "f1")
		s.settled(what+"\nthen rm", s.states, "none")
	}
}

// machineSet kills berth set of a running machine: its limits are the old ones or the new ones, and the kernel has them.
func (s *scene) machineSet() {
	s.Helper()
	before := s.limits("before")
	back := []string{"set", "f1", "machine.memory=192MiB", "memory.max=512MiB", "io.own.write.rate=20MB/s", "net.eth0.tx=8Mbit/s"}
	change := []string{"set", "f1", "machine.memory=128MiB", "memory.max=576MiB", "io.own.write.rate=10MB/s", "net.eth0.tx=4Mbit/s"}
	s.ok(change...)
	after := s.limits("after")
	if cmp.Equal(before, after) {
		s.Fatalf("set changed nothing: %v", after)
	}
	s.walk(sample.Of(s).Sparse(), func(n int) bool {
		s.ok(back...)
		what, killed := s.point(n, change...)
		if killed {
			s.ok("repair")
		}
		s.settled(what, s.states, "up")
		if now := s.limits(what); !cmp.Equal(now, after) && (!killed || !cmp.Equal(now, before)) {
			s.Fatalf("%s: the limits are %v, before they were %v, and after it they are %v", what, now, before, after)
		}
		return killed
	})
}

// onDisk returns what there is of a machine that does not run. That is files alone.
func (s *scene) onDisk() snapshot {
	s.Helper()
	var now snapshot
	more := func() (all []string) {
		now = s.snapshot()
		for _, line := range now {
			if !slices.Contains(s.states["none"], line) && !strings.HasPrefix(line, "file lib/") && !strings.HasPrefix(line, "file pool/") {
				all = append(all, line)
			}
		}
		return all
	}
	if !testkit.Happens(func() bool { return len(more()) == 0 }) {
		s.Fatalf("of a machine that has ended there is %q", more())
	}
	return now
}
