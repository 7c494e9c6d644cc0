package protect

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/host/block"
	"berth/internal/spec/vnode"
	"berth/internal/sys/layout"
	"berth/internal/sys/step"
	"berth/test/built"
	"berth/test/env"
	"berth/test/testkit"
)

// A disk that is known by its folder alone is not looked for where that folder's file system is not mounted.
func TestDiskOfFolder(t *testing.T) {
	dir := t.TempDir()
	at, err := mountPoint(dir)
	if err != nil || !strings.HasPrefix(dir, at) {
		t.Fatalf("%s is on the file system at %q, %v", dir, at, err)
	}
	for mount, want := range map[string]bool{at: false, "/srv/elsewhere": true} {
		_, err := diskNow(&block.Engine{Asked: dir, Mount: mount}, diskOf(dir))
		if refused := err != nil && strings.Contains(err.Error(), "run berth repair"); refused != want {
			t.Errorf("was mounted at %s: %v", mount, err)
		}
	}
}

// loopDisk is a loop device with a number of this test's own, so that nobody else takes it while it has no file.
type loopDisk struct {
	t    *testing.T
	path string
}

func newLoopDisk(t *testing.T, i int) loopDisk {
	t.Helper()
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no loop devices for this user: ", err)
	}
	number := 1000 + os.Getpid()%100000*2 + i
	call := func(request uint) error {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, ctl.Fd(), uintptr(request), uintptr(number))
		if errno != 0 {
			return errno
		}
		return nil
	}
	d := loopDisk{t, "/dev/loop" + strconv.Itoa(number)}
	if err := call(unix.LOOP_CTL_ADD); err != nil {
		ctl.Close()
		t.Fatalf("make %s: %v", d.path, err)
	}
	t.Cleanup(func() {
		defer ctl.Close()
		d.detach()
		if err := call(unix.LOOP_CTL_REMOVE); err != nil {
			t.Errorf("remove %s: %v", d.path, err)
		}
	})
	return d
}

func (d loopDisk) attach(file string) {
	d.t.Helper()
	if out, err := exec.Command("losetup", d.path, file).CombinedOutput(); err != nil {
		d.t.Fatalf("losetup: %v: %s", err, out)
	}
}

// unplug is detach, after which the device has a queue as that of a new disk.
func (d loopDisk) unplug() {
	d.t.Helper()
	d.detach()
	// A loop device keeps its queue.
	if err := os.WriteFile(filepath.Join("/sys/block", filepath.Base(d.path), "queue/scheduler"), []byte("none"), 0); err != nil {
		d.t.Fatal(err)
	}
}

// detach takes the file away and waits until the device has none: udev may hold it for a moment.
func (d loopDisk) detach() {
	d.t.Helper()
	_ = exec.Command("losetup", "--detach", d.path).Run() // it may have none
	testkit.Eventually(d.t, d.path+" has no file", func() bool { return exec.Command("losetup", d.path).Run() != nil })
}

func (d loopDisk) sysfs(file string) string {
	d.t.Helper()
	text, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(d.path), file))
	if err != nil {
		d.t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func (d loopDisk) isBFQ() bool { return strings.Contains(d.sysfs("queue/scheduler"), "[bfq]") }

// diskFiles makes a folder that a node can pass through, with files for loop devices.
func diskFiles(t *testing.T, n int) (dir string, files []string) {
	t.Helper()
	dir = testkit.Dir(t, "/var/tmp")
	for i := range n {
		files = append(files, filepath.Join(dir, fmt.Sprintf("disk%d", i)))
		if err := os.WriteFile(files[i], make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, files
}

// TestEngineAfterBoot plays a boot over which two disks change places: names, numbers and the kernel's counts of disks say
// that nothing has changed. The disk that was asked for is switched, and no other; one that is not there is a note.
func TestEngineAfterBoot(t *testing.T) {
	testkit.NeedsRoot(t)
	dir, files := diskFiles(t, 3)
	one, two := newLoopDisk(t, 0), newLoopDisk(t, 1)
	one.attach(files[0])
	two.attach(files[1])
	if !strings.Contains(one.sysfs("queue/scheduler"), "bfq") {
		t.Skip("no BFQ in this kernel")
	}
	v := New(layout.New(filepath.Join(dir, "root")))
	l, err := v.lock(t.Context()) // makes the folder
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	loans := block.Loans(filepath.Join(dir, "loans"))
	cg, err := host.ReadCgroups("/proc")
	if err != nil {
		t.Fatal(err)
	}
	protect := func(unit string, disk loopDisk) string {
		t.Helper()
		target := target{kind: kindUnit, name: unit}
		steps, err := v.diskSteps(&target, cg, Options{Disks: []string{disk.path}, Engine: vnode.BFQ})
		if err != nil {
			t.Fatal(err)
		}
		j, err := step.Create(target.journal(v), unit, "the boot before")
		if err != nil {
			t.Fatal(err)
		}
		e := steps[0].(*block.Engine)
		e.Loans = loans
		if err := j.Do(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		if err := j.SetPhase(step.Up); err != nil {
			t.Fatal(err)
		}
		return target.journal(v)
	}
	first := protect("first.service", one)
	gone := protect("gone.service", two)

	counts := map[string]string{first: one.sysfs("diskseq"), gone: two.sysfs("diskseq")}
	one.unplug()
	two.unplug()
	one.attach(files[2]) // another disk in the place of the first
	two.attach(files[0])
	for path, disk := range map[string]loopDisk{first: one, gone: two} { // the count begins anew: it may be the same
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		now := strings.ReplaceAll(string(text), `"seq":`+counts[path]+`,`, `"seq":`+disk.sysfs("diskseq")+`,`)
		if err := os.WriteFile(path, []byte(now), 0o600); err != nil || now == string(text) {
			t.Fatalf("%v; %s", err, now)
		}
	}
	if err := os.RemoveAll(string(loans)); err != nil {
		t.Fatal(err)
	}
	did, err := v.Repair(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"first.service": "disk " + filepath.Base(two.path) + " switched to bfq again",
		"gone.service":  "not switched to bfq: disk " + filepath.Base(two.path) + " (file " + files[1] + ") is not there, or two say that they are it",
	}
	for _, d := range did {
		if want[d.Name] != d.Did {
			t.Errorf("%s: %q, want %q", d.Name, d.Did, want[d.Name])
		}
		delete(want, d.Name)
	}
	if len(want) > 0 || one.isBFQ() || !two.isBFQ() {
		t.Errorf("nothing was said of %v; BFQ on the other disk: %v, on the one that was asked for: %v", want, one.isBFQ(), two.isBFQ())
	}
	again, err := v.Repair(t.Context()) // the journal has the new place: nothing is left to do
	if err != nil || len(again) != 1 || again[0].Name != "gone.service" {
		t.Errorf("repaired again: %v, %v", again, err)
	}
	two.unplug() // and once more, without a boot in between
	one.unplug()
	one.attach(files[0])
	two.attach(files[1])
	if _, err = v.Repair(t.Context()); err != nil || !one.isBFQ() || !two.isBFQ() {
		t.Errorf("disks that came back: %v, %v, %v", one.isBFQ(), two.isBFQ(), err)
	}
	for _, path := range []string{first, gone} {
		j, err := v.open(path)
		if err == nil {
			err = j.Close(t.Context())
		}
		if err != nil {
			t.Error(err)
		}
	}
	if one.isBFQ() || two.isBFQ() {
		t.Error("a disk was not given back what it had")
	}
}

// TestEngineReplugged pulls a disk out from under a node and plugs it in elsewhere: there it gets the engine and the weight
// that the spec asks for, and at the node's end what it had. Protecting a service is no worse off for a disk that is gone.
func TestEngineReplugged(t *testing.T) {
	testkit.NeedsRoot(t)
	if testing.Short() {
		t.Skip("needs a longer run: it builds berth")
	}
	dir, files := diskFiles(t, 1)
	one, two := newLoopDisk(t, 0), newLoopDisk(t, 1)
	one.attach(files[0])
	if !strings.Contains(one.sysfs("queue/scheduler"), "bfq") {
		t.Skip("no BFQ in this kernel")
	}
	b := env.In(dir)
	testkit.Must(t, built.Berth(t.Context(), b.Program))
	run := func(args ...string) string {
		t.Helper()
		out, err := b.Command(args...).CombinedOutput()
		if err != nil {
			t.Errorf("berth %s: %v: %s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	eventually := func(what string, is func() bool) {
		t.Helper()
		if !testkit.Happens(is) {
			t.Fatalf("%s: did not happen\n%s", what, run("show", "n"))
		}
	}
	weight := regexp.MustCompile(`(?m)^io\.data\.weight +300 +300 `)

	service := exec.Command("sleep", "1000")
	if err := service.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = service.Process.Kill()
		_ = service.Wait() // that it was killed is no news
	})
	pid := strconv.Itoa(service.Process.Pid)
	spec := filepath.Join(dir, "n.yaml")
	text := "name: n\nimage: host\ncommand: [/bin/sleep, infinity]\nio: [{name: data, device: " + one.path + ", weight: 300, engine: bfq}]\n"
	if err := os.WriteFile(spec, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Command("rm", "--force", "n").Run() }) // if it is still there
	run("apply", "-f", spec)
	run("protect", pid, "--disk", one.path, "--engine", "bfq")
	if !one.isBFQ() || !weight.MatchString(run("show", "n")) || strings.Contains(run("ls"), "engine off") {
		t.Fatalf("at first: BFQ %v\n%s%s", one.isBFQ(), run("show", "n"), run("ls"))
	}

	one.unplug()
	eventually("the node knows", func() bool { return strings.Contains(run("show", "n"), "io.data.weight: the disk is unplugged") })
	if out := run("plan", "-f", spec); !strings.Contains(out, "the disk of io.data is unplugged") {
		t.Errorf("plan:\n%s", out)
	}
	run("set", "n", "pids=99")
	run("set", "n", "pids=4096")
	if out := run("ls"); !strings.Contains(out, "protected, engine off") {
		t.Errorf("ls of a service whose disk is gone:\n%s", out)
	}
	if out := run("repair"); !strings.Contains(out, pid+" not switched to bfq: disk ") {
		t.Errorf("repair of a service whose disk is gone:\n%s", out)
	}
	other := exec.Command("sleep", "1000")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	})
	if out := run("protect", strconv.Itoa(other.Process.Pid)); !strings.Contains(out, pid+" not switched to bfq: disk ") {
		t.Errorf("protect another service:\n%s", out)
	}
	run("unprotect", strconv.Itoa(other.Process.Pid))

	two.attach(files[0])
	eventually("the disk is switched where it is now", two.isBFQ)
	eventually("its weight is back", func() bool { return weight.MatchString(run("show", "n")) })
	if one.isBFQ() || two.sysfs("queue/iosched/low_latency") != "0" {
		t.Errorf("BFQ in the old place: %v; low_latency in the new: %s", one.isBFQ(), two.sysfs("queue/iosched/low_latency"))
	}
	if out := run("repair"); !strings.Contains(out, pid+" disk "+filepath.Base(two.path)+" switched to bfq again") {
		t.Errorf("repair when it is back:\n%s", out)
	}
	if out := run("repair") + run("ls"); !strings.Contains(out, "nothing to repair") || strings.Contains(out, "engine off") {
		t.Errorf("after repair:\n%s", out)
	}
	run("rm", "--force", "n")
	if !two.isBFQ() {
		t.Error("the node took the engine from the service")
	}
	run("unprotect", pid)
	if two.isBFQ() {
		t.Error("the disk has not been given back what it had")
	}
	for _, d := range []loopDisk{one, two} {
		if left, _ := filepath.Glob("/run/berth.disks/" + filepath.Base(d.path) + ".*"); len(left) > 0 { // the pattern is sound
			t.Errorf("left: %v", left)
		}
	}
}
