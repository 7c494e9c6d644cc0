package bed

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/bench/result"
	"berth/internal/bench/side"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/test/loop"
	"berth/test/testkit"
)

// says is an arm in which a program named tool has a version, and a CPU a name.
func says(version, cpu string) side.Arm {
	return func(_ context.Context, argv []string) ([]byte, error) {
		switch argv[0] {
		case "tool":
			return []byte(version + "\n"), nil
		case "cat":
			if slices.Contains(argv, "/proc/uptime") {
				return []byte("12.34 10.00\n"), nil
			}
			return []byte("processor\t: 0\nmodel name\t: " + cpu + "\n"), nil
		}
		return nil, errors.New("not installed")
	}
}

func machineOptions() *Options {
	return &Options{Machine: &side.Guest{Image: "/a.erofs", Machine: vnode.Machine{Kernel: "/boot/vmlinuz", CPUs: 2, Memory: 1 << 30}}}
}

// The machine is an arm where it can be one; else the notes say why not, and what was made of it is gone.
func TestMachineArm(t *testing.T) {
	const tcg = "QEMU TCG CPU version 2.5+"
	device := result.DiskUsed{Target: result.Target{Kind: "device", Path: "/dev/x"}}
	file := result.DiskUsed{Target: result.Target{Kind: "file", Path: "/srv/f"}}
	for _, c := range []struct {
		name     string
		machines bool
		targets  []result.DiskUsed
		run      side.Arm
		err      error
		emulated string
		note     string // "" where there is an arm
	}{
		{"emulated", true, []result.DiskUsed{device}, says("tool-3.1", tcg), nil, "QEMU, " + tcg, ""},
		{"on a CPU", true, nil, says("tool-3.1", "A CPU"), nil, "", ""},
		{"a folder", true, []result.DiskUsed{device, file}, nil, nil, "", "none of the host's folders (/srv): give it a disk with --device"},
		{"no machine can start", true, nil, nil, refuse.Cannotf("apt-get install it", "no emulator"), "", "no emulator"},
		{"another version", true, nil, says("tool-3.2", tcg), nil, "", "do not have the same tool"},
		{"not in the image", true, nil, says("", tcg), nil, "", "tool"},
		{"a CPU without a name", true, nil, func(context.Context, []string) ([]byte, error) { return nil, nil }, nil, "", "names none"},
		{"an experiment without machines", false, nil, nil, nil, "", "none"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var made *vnode.Node
			removed := false
			lab := Lab{Node: func(_ context.Context, n *vnode.Node) (side.Arm, func(), error) {
				made = n
				return c.run, func() { removed = true }, c.err
			}}
			b := &Bed{Targets: c.targets, Arms: []Arm{{Arm: result.Arm{Name: result.Host}, Run: says("tool-3.1", "")}}}
			d := &Definition{Machines: c.machines, Program: &program{Name: "tool", major: 3}}
			if err := b.withMachine(t.Context(), d, machineOptions(), lab); err != nil {
				t.Fatal(err)
			}
			if c.note != "" {
				left := len(b.Notes) == 1 && strings.HasPrefix(b.Notes[0], "machine is left out: ") && strings.Contains(b.Notes[0], c.note)
				if b.hasMachine() || c.machines != left || c.run != nil && !removed {
					t.Errorf("%d arms, notes %q, removed %v", len(b.Arms), b.Notes, removed)
				}
				return
			}
			if !b.hasMachine() || removed {
				t.Fatalf("notes %q, removed %v", b.Notes, removed)
			}
			a := b.Arms[1]
			if a.Clock == nil || a.Clock.Guest != 12.34 {
				t.Errorf("its clock showed %+v", a.Clock)
			}
			var spec vnode.Node
			testkit.Must(t, json.Unmarshal(a.Node, &spec))
			if a.Emulated != c.emulated || !spec.IsMachine() || spec.Machine.CPUs != 2 || len(spec.Devices) != len(c.targets) {
				t.Errorf("%+v of %+v", a.Arm, made)
			}
			if len(b.Notes) != 1 || !strings.Contains(b.Notes[0], "published of machines") {
				t.Errorf("notes %q", b.Notes)
			}
			if err := b.Close(); err != nil || !removed {
				t.Errorf("it is not removed: %v", err)
			}
		})
	}
}

// A run with machines is refused before anything is measured where it can have none, and where their image lacks what is run. What was
// made to see that is gone.
func TestCheckMachine(t *testing.T) {
	const tcg = "QEMU TCG CPU version 2.5+"
	path := t.TempDir()
	t.Setenv("PATH", path)
	testkit.Must(t, os.WriteFile(filepath.Join(path, "tool"), []byte("#!/bin/sh\necho tool-3.1\n"), 0o755))
	onHost, missing := &program{Name: "tool", major: 3}, &program{Name: "other-tool", major: 3}
	with, without := []Definition{{Machines: true}, {}}, []Definition{{}}
	onDisk := []Definition{{Machines: true, Disk: []Job{{Name: "r", Pattern: "read", Block: 4096}}}}
	kernel := func(path string) *Options {
		o := machineOptions()
		o.Machine.Kernel = path
		return o
	}
	disks := func(dirs, devices []string) *Options {
		o := machineOptions()
		o.Dirs, o.Devices = dirs, devices
		return o
	}
	runs := func(words ...string) side.Arm {
		return func(ctx context.Context, argv []string) ([]byte, error) {
			if slices.Contains(words, argv[0]) {
				return says("", tcg)(ctx, []string{"cat"})
			}
			return nil, errors.New("not found")
		}
	}
	for _, c := range []struct {
		name string
		o    *Options
		defs []Definition
		run  side.Arm
		want string // in the refusal; "" where there is none
	}{
		{"not asked for", &Options{}, without, nil, ""},
		{"fine", machineOptions(), with, runs("cat", "true"), ""},
		{"no experiment for it", machineOptions(), without, nil, "none of these experiments"},
		{"no kernel", kernel("/none"), with, nil, "no kernel"},
		{"only in a folder", disks([]string{"/srv"}, nil), onDisk, nil, "none of the host's folders"},
		{"no device of its own", disks([]string{"/srv"}, nil), []Definition{{Machines: true, Disk: onDisk[0].Disk, Disks: firstDevice}}, nil, "takes a block device of its own"},
		{"on a device", disks(nil, []string{"/dev/x"}), onDisk, runs("cat", "true"), ""},
		{"a disk that is none", disks(nil, []string{"/dev/none"}), onDisk, nil, "no device"},
		{"in a folder, and on CPUs", disks([]string{"/srv"}, nil), slices.Concat(onDisk, with), runs("cat", "true"), ""},
		{"it does not start", kernel("/broken"), with, nil, "no greeting"},
		{"no cat", machineOptions(), with, runs("true"), "cat does not run in the arm machine"},
		{"no true", machineOptions(), with, runs("cat"), "true does not run in the arm machine"},
		{"not on the host", machineOptions(), []Definition{{Machines: true, Program: missing}}, runs("cat"), ""},
		{"not in the image", machineOptions(), []Definition{{Machines: true, Program: onHost}}, runs("cat"), "tool does not run in the arm machine"},
		{"another version", machineOptions(), []Definition{{Machines: true, Program: onHost}}, says("tool-3.2", tcg), "do not have the same tool"},
		{"the same version", machineOptions(), []Definition{{Machines: true, Program: onHost}}, says("tool-3.1", tcg), ""},
	} {
		made, removed := 0, 0
		lab := Lab{
			Can: func(_ context.Context, n *vnode.Node) error {
				for _, d := range n.Devices {
					if d.Path == "/dev/none" {
						return refuse.Cannotf("give another", "no device")
					}
				}
				if n.Machine.Kernel == "/none" {
					return refuse.Cannotf("give another", "no kernel")
				}
				return nil
			},
			Node: func(_ context.Context, n *vnode.Node) (side.Arm, func(), error) {
				if n.Machine.Kernel == "/broken" {
					return nil, nil, refuse.Cannotf("give another", "no greeting")
				}
				if made++; len(n.Devices) > 0 {
					t.Errorf("%s: it has disks, which are not held yet", c.name)
				}
				return c.run, func() { removed++ }, nil
			},
		}
		err := CheckMachine(t.Context(), c.o, lab, c.defs)
		if (err == nil) != (c.want == "") || err != nil && (refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", c.name, err)
		}
		if made != removed || made == 1 != (c.run != nil) {
			t.Errorf("%s: %d made, %d removed", c.name, made, removed)
		}
	}
	if err := (&Options{Machine: &side.Guest{Image: "/a"}}).Complete(); refuse.KindOf(err) != refuse.Invalid {
		t.Errorf("without a kernel: %v", err)
	}
	o := &Options{Machine: &side.Guest{Image: "/a", Machine: vnode.Machine{Kernel: "/k"}}}
	if err := o.Complete(); err != nil || o.Machine.CPUs < 1 || o.Machine.Memory != 1<<30 {
		t.Errorf("%v %+v", err, o.Machine)
	}
}

// An experiment in a folder has no arm machine, so none is counted when the time and the pairs are.
func TestMachinesOnlyWhereTheyAre(t *testing.T) {
	d := Definition{Machines: true, Disk: []Job{{Name: "r", Pattern: "read", Block: 4096}}}
	on := func(o *Options) (time.Duration, int) { return d.Cost(o), d.CompareWith(o) }
	folder, device, without := machineOptions(), machineOptions(), &Options{Devices: []string{"/dev/x"}}
	folder.Dirs, device.Devices = []string{"/srv"}, []string{"/dev/x"}
	plain, one := on(without)
	if cost, with := on(folder); cost != plain || with != one {
		t.Errorf("in a folder: %v and %d, without a machine %v and %d", cost, with, plain, one)
	}
	if cost, with := on(device); cost <= plain || with != one+1 {
		t.Errorf("on a device: %v and %d, without a machine %v and %d", cost, with, plain, one)
	}
}

// A machine with fewer CPUs than the host is compared in rows for which it has too few: the notes say so.
func TestMachineWithFewerCPUs(t *testing.T) {
	instances := instancesOf()
	most := instances[len(instances)-1]
	for cpus, want := range map[int]bool{most: false, most + 1: false, most - 1: true} {
		o := machineOptions()
		o.Machine.CPUs = cpus
		b := &Bed{}
		lab := Lab{Node: func(context.Context, *vnode.Node) (side.Arm, func(), error) { return says("", "A CPU"), func() {}, nil }}
		d := &Definition{About: result.About{Measures: []result.Measure{{Name: "work"}}}, Machines: true}
		testkit.Must(t, b.compute(t.Context(), d, o, lab, func(n int) (Runner, []string) { return stressRun{n}, nil }))
		if said := strings.Contains(strings.Join(b.Notes, " "), "rows with more instances"); said != want || !b.hasMachine() {
			t.Errorf("%d of %d CPUs: notes %q", cpus, most, b.Notes)
		}
	}
}

// A machine's clock that is surely off is named, one that may be right is not.
func TestMachineClocks(t *testing.T) {
	then := time.Now().Add(-10000 * time.Second) // long ago: this test may be held up
	first := side.ClockReading{Guest: 10, From: then, To: then}
	for _, c := range []struct{ up, want string }{
		{"10010.00 0.00\n", ""}, {"14010.00 0.00\n", "that of machine ran between"}, {"5010.00 0.00\n", "that of machine ran between -5"}, {"", "was not compared"},
	} {
		b := &Bed{Arms: []Arm{{Arm: result.Arm{Name: result.Host}}, {
			Arm: result.Arm{Name: result.VirtualMachine}, Clock: &first,
			Run: func(context.Context, []string) ([]byte, error) { return []byte(c.up), nil },
		}}}
		notes := strings.Join(b.Clocks(t.Context()), "; ")
		if (notes == "") != (c.want == "") || !strings.Contains(notes, c.want) {
			t.Errorf("%q: %q", c.up, notes)
		}
	}
}

// Where the machine that holds a disk has ended, nothing more is written there.
func TestMachineThatHeldDiskIsGone(t *testing.T) {
	answers, ended := says("", "A CPU"), func(context.Context, []string) ([]byte, error) { return nil, errors.New("it has ended") }
	for _, c := range []struct {
		name string
		run  side.Arm
		held *heldDevice
		gone bool
	}{
		{"it answers", answers, &heldDevice{Storage{Device: "/dev/x"}, nil}, false},
		{"it has ended", ended, &heldDevice{Storage{Device: "/dev/x"}, nil}, true},
		{"held by this process", ended, &heldDevice{Storage{Device: "/dev/x"}, func() error { return nil }}, false},
	} {
		b := &Bed{held: []*heldDevice{c.held}, Arms: []Arm{{Arm: result.Arm{Name: result.Host}, Run: ended}, {Arm: result.Arm{Name: result.VirtualMachine}, Run: c.run}}}
		testkit.Must(t, b.LayOut(t.Context(), &Definition{Disks: EachDisk}, &Options{}))
		if err := b.Gone(); (err != nil) != c.gone || c.gone && !strings.Contains(err.Error(), "/dev/x against being mounted") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// The node of a start that failed is removed, so that the next trial does not find it.
func TestFailedStartIsUndone(t *testing.T) {
	left := filepath.Join(t.TempDir(), "left")
	run := startRun{
		of:   map[string][][]string{result.VirtualMachine: {{"touch", left}, {"false"}}, "fine": {{"true"}}},
		undo: map[string][]string{result.VirtualMachine: {"rm", left}, "fine": {"touch", left}},
	}
	for arm, fails := range map[string]bool{result.VirtualMachine: true, "fine": false} {
		_, err := run.Measure(t.Context(), Arm{Arm: result.Arm{Name: arm}}, 0, 0)
		if _, there := os.Stat(left); (err != nil) != fails || !errors.Is(there, os.ErrNotExist) {
			t.Errorf("%s: %v, what it left: %v", arm, err, there)
		}
	}
}

// Rows have the published figures of each arm, and those of machines only beside one.
func TestPublishedOfMachines(t *testing.T) {
	target := result.DiskUsed{Target: result.Target{Kind: "device", Path: "/dev/x", Size: 1 << 20}}
	job := Job{Name: "64 KiB", Pattern: "write", Block: 64 << 10}
	for _, c := range []struct {
		experiment, last string
		want             []string
	}{
		{"fio-b", result.Node, []string{""}},
		{"fio-b", result.VirtualMachine, []string{result.Node}},
		{"wnodes-volume", result.VirtualMachine, []string{result.VirtualMachine}},
		{"wnodes-volume", result.Node, nil},
	} {
		b := &Bed{Targets: []result.DiskUsed{target}, Arms: []Arm{{}, {Arm: result.Arm{Name: c.last}}}}
		testkit.Must(t, b.DiskRows(&Definition{About: result.About{Name: c.experiment}, Disk: []Job{job}}))
		var arms []string
		for _, f := range b.Rows[0].Published {
			arms = append(arms, f.Arm)
		}
		if !slices.Equal(arms, c.want) {
			t.Errorf("%s with %s: figures of %q, want %q", c.experiment, c.last, arms, c.want)
		}
	}
}

// A device that is written to is held, let go for a machine, and held again where there is none.
func TestRealDeviceIsLent(t *testing.T) {
	testkit.NeedsRoot(t)
	one := Storage{Device: loop.ForTest(t, 4<<20), DestroyData: true, Size: 4 << 20}
	b := &Bed{}
	target, undo, err := prepare(t.Context(), one, func(int64, int64) {})
	testkit.Must(t, err)
	b.Later(b.hold(one, target, undo))
	held := func() bool {
		f, err := os.OpenFile(one.Device, os.O_RDONLY|unix.O_EXCL, 0)
		if err == nil {
			f.Close()
		}
		return errors.Is(err, unix.EBUSY)
	}
	if !held() {
		t.Error("it is not held")
	}
	testkit.Must(t, b.lend())
	if held() {
		t.Error("it is held, and no machine can have it")
	}
	testkit.Must(t, b.holdAgain())
	if !held() {
		t.Error("it is not held again")
	}
	if err := b.Close(); err != nil || held() {
		t.Errorf("it is held at the end: %v", err)
	}
}
