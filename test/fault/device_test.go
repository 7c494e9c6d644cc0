package fault

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/test/sample"
	"berth/test/testkit"
)

// loop makes a new file and a loop device on it, and returns both.
func (w *world) loop(name string) (dev, file string) {
	w.Helper()
	file = filepath.Join(w.dir, name)
	testkit.Must(w, os.WriteFile(file, nil, 0o600))
	testkit.Must(w, os.Truncate(file, 1<<20))
	return w.attach("--find", file), file
}

// attach attaches a file to a loop device: a free one with --find, else the named one. The test's cleanup detaches it.
func (w *world) attach(where, file string) string {
	w.Helper()
	out, err := exec.Command("losetup", "--show", where, file).CombinedOutput()
	if err != nil {
		w.Skipf("needs a free loop device: %s", out)
	}
	dev := strings.TrimSpace(string(out))
	w.Cleanup(func() {
		if w.behind(dev) == file {
			_ = exec.Command("losetup", "--detach", dev).Run()
		}
	})
	return dev
}

// inPlace takes the disk off a loop device and attaches another file to it. It returns false if somebody else has taken the device
// meanwhile, which then is another disk as well.
func (w *world) inPlace(dev, file string) bool {
	w.Helper()
	was := w.behind(dev)
	testkit.Must(w, exec.Command("losetup", "--detach", dev).Run())
	testkit.Eventually(w, dev+" is free of "+was, func() bool { return w.behind(dev) != was }) // somebody who looks at all disks may have it open
	mine := false
	testkit.Eventually(w, dev+" has another disk", func() bool {
		mine = exec.Command("losetup", dev, file).Run() == nil
		return w.behind(dev) != ""
	})
	if mine {
		w.Cleanup(func() {
			if w.behind(dev) == file {
				_ = exec.Command("losetup", "--detach", dev).Run()
			}
		})
	}
	return mine
}

// attachElsewhere attaches a file to a free loop device that is not this one, which others may have taken and left again.
func (w *world) attachElsewhere(old, file string) string {
	w.Helper()
	dev := w.attach("--find", file)
	if dev != old {
		return dev
	}
	next := w.attach("--find", file)
	testkit.Must(w, exec.Command("losetup", "--detach", old).Run())
	return next
}

// behind returns the backing file of a loop device, "" if it has none.
func (w *world) behind(dev string) string {
	text, _ := os.ReadFile(filepath.Join("/sys/block", filepath.Base(dev), "loop/backing_file"))
	return strings.TrimSpace(string(text))
}

func number(dev string) string {
	text, _ := os.ReadFile(filepath.Join("/sys/block", filepath.Base(dev), "dev"))
	return strings.TrimSpace(string(text))
}

// devices lists the node's /dev, which of its devices can be opened, and the devices in berth show.
func (s *scene) devices(what string) string {
	s.Helper()
	in := s.ok("exec", "f1", "--", "/bin/sh", "-c", `cd /dev; find . -xdev -type f -o -xdev -type b -o -path './sub*' | sort
		for d in a sub/b; do ( : <$d ) 2>/dev/null && echo "$d opens"; done; exit 0`).out
	var d struct {
		Devices []struct {
			Path, Number, Note string
			Holds              bool
		}
	}
	testkit.Must(s, json.Unmarshal([]byte(s.ok("show", "f1", "--json").out), &d))
	for _, one := range d.Devices {
		if !one.Holds {
			s.Errorf("%s: %s %s does not hold: %s", what, one.Path, one.Number, one.Note)
		}
		in += one.Path + " is " + one.Number + "\n"
	}
	return in
}

// TestDevicesKilledAtEachStep kills a berth set that replaces one device by another. Afterwards the node has either the old
// device or the new one in its /dev, its cgroup and berth show, and nothing of the other.
func TestDevicesKilledAtEachStep(t *testing.T) {
	var a, b string
	s := newScene(t, node{"devices", func(w *world) string {
		a, _ = w.loop("disk-a")
		b, _ = w.loop("disk-b")
		return "\nname: f1\nimage: host\ncommand: [/bin/sleep, infinity]\ndevices: [{path: " + a + ", as: /dev/a}]\n"
	}})
	s.ok("apply", "-f", s.spec)
	before := s.devices("before")
	change := []string{"set", "f1", "devices-=" + a, "devices+=" + b + ":/dev/sub/b:r"}
	s.ok(change...)
	after := s.devices("after")
	for _, want := range []string{"./sub/b\n", "sub/b opens", "/dev/sub/b is b " + number(b)} {
		if !strings.Contains(after, want) || strings.Contains(before, want) {
			t.Fatalf("before it has\n%safter it has\n%s", before, after)
		}
	}
	s.steps(func(n int) bool {
		s.ok("apply", "-f", s.spec)
		what, killed := s.point(n, change...)
		said := ""
		if killed {
			said = s.ok("repair").out
		}
		s.settled(what, s.states, "up")
		switch now := s.devices(what); {
		case now != before && now != after:
			s.Fatalf("%s: the node has\n%s", what, now)
		case !killed && now != after:
			s.Fatalf("%s: it ended well and the node has (-want +got):\n%s", what, cmp.Diff(after, now))
		case strings.Contains(said, "old values") && now != before, strings.Contains(said, "new values") && now != after:
			s.Errorf("%s: repair said %q, the node has\n%s", what, said, now)
		}
		return killed
	})
}

// TestReplugKilledAtEachStep kills the keeper while it returns a replugged disk to a node. The disk has a new device number
// and another disk has the old one. After a repair the node's device and limits are on its own disk only.
func TestReplugKilledAtEachStep(t *testing.T) {
	var a, file, other string
	s := newScene(t, node{"replug", func(w *world) string {
		a, file = w.loop("disk-a")
		other = w.file("disk-b", strings.Repeat("b", 1<<20))
		return replugSpec(a)
	}})
	log := s.dir + "/keeper-faults"
	here := a // the loop device that has the node's disk now
	testkit.Must(s, os.WriteFile(log, nil, 0o600))
	s.endKeeper()
	s.begin([]string{"BERTH_FAULT_KEEPER_LOG=" + log}, "apply", "-f", s.spec).wait()
	first := len(s.passedByKeeper())
	deaths, taken := 0, 0 // keepers that were killed at a point; times that the other disk got the number
	for n, stride := sample.Of(s).Points(first); ; n += stride {
		if n > first+1000 {
			s.Fatal("1000 fault points and no end")
		}
		s.ok("rm", "--force", "f1")
		s.endKeeper()
		_ = os.Remove(log)
		testkit.Must(s, os.WriteFile(s.spec, []byte(replugSpec(here)), 0o600))
		r := s.begin([]string{fmt.Sprint("BERTH_FAULT_KEEPER=", n), "BERTH_FAULT_KEEPER_LOG=" + log}, "apply", "-f", s.spec).wait()
		if r.code != 0 { // the keeper was killed while it made the node
			s.failedWell("the keeper killed at "+s.lastOfKeeper(), r)
			continue
		}
		// The disk is unplugged, another one takes its device number, and it returns as another device.
		keeper, old := s.keeperPid(), here
		mine := s.inPlace(old, other)
		if mine {
			taken++
		}
		here = s.attachElsewhere(old, file)
		want := fmt.Sprintf("/dev/a is b %s", number(here))
		// The keeper writes the device table last.
		table := func() string { text, _ := os.ReadFile(s.l.Node("f1").Devices()); return string(text) }
		done := fmt.Sprintf(`"minor":%s,`, strings.TrimPrefix(number(here), "7:"))
		killed := func() bool { return keeper == 0 || s.keeperPid() != keeper } // inside the node's mount namespace the keeper cannot write its fault log
		if !testkit.Happens(func() bool { return killed() || strings.Contains(table(), done) }) {
			log, _ := os.ReadFile(s.l.KeeperLog())
			s.Fatalf("the node does not get its disk back as %s: it has\n%s\n%s%q", number(here), table(), log, s.passedByKeeper())
		}
		s.ok("repair") // it waits for the node's lock, so the keeper has passed its last fault point, which is after the table is written
		ended := !killed()
		what := "the keeper killed at " + s.lastOfKeeper()
		if got := s.devices(what); !strings.Contains(got, want) || !strings.Contains(got, "a opens") {
			s.Errorf("%s: want %s, the node has\n%s", what, want, got)
		}
		if got := s.limits(what); !cmp.Equal(got, map[string]string{"io.d.read.rate": "5MB/s", "io.d.write.iops": "70", "pids": got["pids"]}) {
			s.Errorf("%s: its limits are %v", what, got)
		}
		s.onlyOn(what, number(here), number(old))
		if mine {
			testkit.Must(s, exec.Command("losetup", "--detach", old).Run())
		}
		if !ended {
			deaths++
			continue
		}
		if deaths == 0 || taken == 0 {
			s.Errorf("the keeper was killed %d times, and %d times another disk had the number: nothing was shown", deaths, taken)
		}
		s.Logf("keeper's points: %q", s.passedByKeeper()[min(first, len(s.passedByKeeper())):])
		return
	}
}

func replugSpec(disk string) string {
	return "\nname: f1\nimage: host\ncommand: [/bin/sleep, infinity]\ndevices: [{path: " + disk + ", as: /dev/a}]\n" +
		"io: [{name: d, device: " + disk + ", read: {rate: 5MB/s}, write: {iops: 70}}]\n"
}

// onlyOn checks that the limits and the device list in the node's cgroups name its own disk and not the other one.
func (s *scene) onlyOn(what, mine, other string) {
	s.Helper()
	for _, dir := range s.cgroupDirs() {
		for _, name := range []string{"blkio.throttle.read_bps_device", "blkio.throttle.write_iops_device", "io.max", "devices.list"} {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil || filepath.Base(dir) != "f1" {
				continue
			}
			if name == "io.max" && len(text) == 0 { // the v2 tree of a hybrid host
				continue
			}
			lines := strings.NewReplacer(" ", "\n").Replace(string(text))
			has := func(number string) bool { return strings.Contains("\n"+lines, "\n"+number+"\n") }
			if !has(mine) || has(other) {
				s.Errorf("%s: its disk is %s, not %s, and %s has\n%s", what, mine, other, name, text)
			}
		}
	}
}
