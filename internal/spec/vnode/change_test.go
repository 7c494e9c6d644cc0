package vnode

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestKeysOfFull(t *testing.T) {
	t.Parallel()
	want := []Setting{
		{"cpu.weight", "100"},
		{"cpu.max", "1.5"},
		{"cpu.set", "0-1"},
		{"cpu.numa", "0"},
		{"memory.max", "4GiB"},
		{"memory.high", "3GiB"},
		{"memory.low", "1GiB"},
		{"memory.swap", "0"},
		{"hugepages.2MiB", "512MiB"},
		{"pids", "4096"},
		{"restart", "on-failure"},
		{"rlimits.nofile", "20000"},
		{"io.data.weight", "100"},
		{"io.data.read.rate", "200MB/s"},
		{"io.data.read.iops", "5000"},
		{"io.data.write.rate", "100MB/s"},
		{"io.data.write.iops", "9"},
		{"net.eth0.tx", "1Gbit/s"},
		{"net.eth0.rx", "1Gbit/s"},
	}
	if diff := cmp.Diff(want, Limits(full())); diff != "" {
		t.Error(diff)
	}
}

// TestMachineMemory: a machine has memory, so it is no limit that can be taken off.
func TestMachineMemory(t *testing.T) {
	t.Parallel()
	n := aMachine()
	n.Machine.Memory = 512 << 20
	for _, value := range []string{"max", "0", "0MiB", "much", ""} {
		if err := Change(n, "machine.memory", value); err == nil || n.Machine.Memory != 512<<20 {
			t.Errorf("%q: %v, and then %s", value, err, n.Machine.Memory)
		}
	}
	if err := Change(n, "machine.memory", "max"); err == nil || strings.Contains(err.Error(), "no limit") || !strings.Contains(err.Error(), "128MiB") {
		t.Errorf("max: %v", err)
	}
	if err := Change(n, "machine.memory", "256MiB"); err != nil || n.Machine.Memory != 256<<20 {
		t.Errorf("256MiB: %v, and then %s", err, n.Machine.Memory)
	}
}

// TestChangeKeys clears every limit of a node, sets it again, and expects the same node.
func TestChangeKeys(t *testing.T) {
	t.Parallel()
	n := full()
	keys := Limits(n)
	for _, s := range keys {
		if err := Change(n, s.Key, Max); err != nil {
			t.Fatal(err)
		}
	}
	if left := Limits(n); left != nil {
		t.Errorf("left after clearing: %v", left)
	}
	for _, s := range slices.Backward(keys) {
		if err := Change(n, s.Key, s.Value); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(full(), n); diff != "" {
		t.Error(diff)
	}
}

func TestChangeRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ key, value, want string }{
		{"cpu.wait", "1", "node wn-001 has no such key; it has cpu.weight, cpu.max"},
		{"io.nope.weight", "1", "io.data.read.rate"},
		{"net.eth7.tx", "1Gbit/s", "net.eth0.tx"},
		{"image", "host", "has no such key"},
		{"hugepages", "1", "has no such key"},
		{"cpu.weight", "0", "1 to 10000, or max for no limit"},
		{"cpu.weight", "1.5", "1 to 10000"},
		{"cpu.max", "", "no value"},
		{"cpu.max", "0", "or max for no limit"},
		{"cpu.set", "a", "or max for no limit"},
		{"cpu.numa", "-1", "0 to 1023"},
		{"memory.max", "0", "is no limit"},
		{"memory.max", "4G", "its unit must be"},
		{"memory.swap", "x", "or max for no limit"},
		{"io.data.read.rate", "5", "carries its /s"},
		{"restart", "sometimes", "never, on-failure or always"},
		{"rlimits.files", "1", "unknown limit: as, core"},
		{"rlimits.nofile", "-1", "a whole number, or max"},
		{"rlimits.nofile", "many", "a whole number, or max"},
		{"hugepages.x", "2MiB", "not a size"},
		{"hugepages.2MiB", "x", "not a size"},
	} {
		n := full()
		err := Change(n, c.key, c.value)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Change(%s=%s): %v, want %q in it", c.key, c.value, err, c.want)
		}
		if diff := cmp.Diff(full(), n); diff != "" {
			t.Errorf("Change(%s=%s) failed and changed: %s", c.key, c.value, diff)
		}
	}
}

func TestDiff(t *testing.T) {
	t.Parallel()
	before, after := full(), full()
	after.CPU.Max = 2000
	after.Memory.Swap = nil
	after.Command = []string{"/bin/sh", "-c", "sleep 1"}
	after.Restart = ""
	after.IO[0].Read.Rate = 0
	after.IO = append(after.IO, IO{Name: "new", Path: "/srv", Weight: 5})
	after.Network[0].Rate.TX = 2e9
	after.Network[1].Mode = Macvlan
	after.Mounts = nil
	userns := false
	after.UserNamespace = &userns
	want := []Difference{
		{"command", "/sbin/init", `/bin/sh, -c, "sleep 1"`, false},
		{"restart", "on-failure", "never", true},
		{"cpu.max", "1.5", "2", true},
		{"memory.swap", "0", "", true},
		{"io.data.read.rate", "200MB/s", "", true},
		{"net.eth0.tx", "1Gbit/s", "2Gbit/s", true},
		{"net.eth1.mode", "bridge", "macvlan", false},
		{"mounts./eos.source", "/eos", "", false},
		{"mounts./eos.target", "/eos", "", false},
		{"mounts./eos.gateway", "bind", "", false},
		{"mounts./eos.read_only", "true", "", false},
		{"mounts./eos.map", "identity", "", false},
		{"mounts./data.source", "[2001:db8::1]:/export", "", false},
		{"mounts./data.target", "/data", "", false},
		{"mounts./data.gateway", "nfs", "", false},
		{"mounts./data.via", "host", "", false},
		{"mounts./data.options", "hard=true,vers=4.2", "", false},
		{"mounts./data.map", "identity", "", false},
		{"user_namespace", "true", "false", false},
		{"io.new.name", "", "new", false},
		{"io.new.path", "", "/srv", false},
		{"io.new.weight", "", "5", true},
	}
	if diff := cmp.Diff(want, Diff(before, after)); diff != "" {
		t.Error(diff)
	}
}

func TestDiffIgnoresDefaults(t *testing.T) {
	t.Parallel()
	userns := true
	before := &Node{Name: "a", Network: []Network{{}}, Devices: []Device{{Path: "/dev/fuse"}, {Path: "/dev/kvm"}}}
	after := &Node{
		Name: "a", Hostname: "a", Restart: Never, UserNamespace: &userns, Delta: Delta{In: OnDisk},
		Network: []Network{{Name: "eth0", Mode: Bridge, MAC: "auto"}},
		Devices: []Device{{Path: "/dev/kvm", Access: "rw"}, {Path: "/dev/fuse"}},
	}
	if diffs := Diff(before, after); diffs != nil {
		t.Errorf("differ: %v", diffs)
	}
}

// TestDiffSeesEveryField clears each field of the full node in turn, so that a field added later is not forgotten.
func TestDiffSeesEveryField(t *testing.T) {
	t.Parallel()
	limits := Limits(full())
	var paths [][]int
	var find func(t reflect.Type, path []int)
	find = func(typ reflect.Type, path []int) {
		for i := range typ.NumField() {
			p := append(slices.Clone(path), i)
			if f := typ.Field(i).Type; f.Kind() == reflect.Struct && f != reflect.TypeFor[Image]() {
				find(f, p)
				continue
			}
			paths = append(paths, p)
		}
	}
	clears := func(name string, typ reflect.Type, pick func(*Node) any) {
		paths = nil
		find(typ, nil)
		for _, p := range paths {
			n := full()
			v := reflect.ValueOf(pick(n)).Elem().FieldByIndex(p)
			if v.IsZero() {
				continue
			}
			v.SetZero()
			diffs := Diff(full(), n)
			field := name + typ.FieldByIndex(p).Name
			silent := []string{"Network.Name", "Network.MAC", "Mount.Gateway", "Mount.Map", "In", "UserNamespace"} // their value is the default
			if len(diffs) == 0 && !slices.Contains(silent, field) {
				t.Errorf("clearing %s is no difference", field)
			}
			for _, d := range diffs {
				isLimit := slices.ContainsFunc(limits, func(s Setting) bool { return s.Key == d.Key })
				if isLimit && !d.Live && !strings.HasPrefix(d.Key, "rlimits.") { // removing an rlimit needs a restart
					t.Errorf("%s is a limit and not live", d.Key)
				}
			}
		}
	}
	clears("", reflect.TypeFor[Node](), func(n *Node) any { return n })
	clears("IO.", reflect.TypeFor[IO](), func(n *Node) any { return &n.IO[0] })
	clears("Network.", reflect.TypeFor[Network](), func(n *Node) any { return &n.Network[0] })
	clears("Device.", reflect.TypeFor[Device](), func(n *Node) any { return &n.Devices[1] })
	clears("Mount.", reflect.TypeFor[Mount](), func(n *Node) any { return &n.Mounts[0] })
	clears("Mount.", reflect.TypeFor[Mount](), func(n *Node) any { return &n.Mounts[1] })
	clears("Scratch.", reflect.TypeFor[Scratch](), func(n *Node) any { return &n.Scratch[0] })
}
