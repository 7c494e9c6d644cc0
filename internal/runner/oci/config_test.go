package oci

import (
	"encoding/json"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/runner"
	"berth/internal/storage/mounts"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

func goldenInputs() map[string]runner.Spec {
	base := runner.Spec{
		Hostname: "wn-001", Args: []string{"/bin/sleep", "1000"}, Groups: runner.Groups{Path: "berth/wn-001"},
		Content: mounts.Plan{Root: mounts.Root{At: "/run/berth/nodes/wn-001/root"}, IDs: mounts.IDs{Base: 1 << 29, Size: 65536}},
	}
	full := base
	full.Terminal, full.Cwd, full.Env, full.User = true, "/srv", []string{"PATH=/bin", "A=1"}, runner.User{UID: 1000, GID: 100, Additional: []uint32{5}}
	full.Devices = []runner.Device{
		{Target: "/dev/sdc", Source: "/run/berth/nodes/wn-001/stage/dev0", Block: true, Major: 8, Minor: 32, Access: "rw"},
		{Target: "/dev/fuse", Source: "/run/berth/nodes/wn-001/stage/dev1", Major: 10, Minor: 229, Access: "rwm"},
	}
	full.Mounts = []runner.Mount{
		{Source: "/run/berth/nodes/wn-001/stage/m0", Target: "/eos", Type: "bind", Options: []string{"rbind", "nosuid", "nodev"}},
		{Source: "tmpfs", Target: "/dev/shm", Type: "tmpfs", Options: []string{"size=1g"}},
	}
	full.RLimits = map[string]uint64{"nofile": 20000, "core": 0}
	full.Mask = []string{"/sys/devices/system/cpu/cpu0/thermal_throttle"}
	users := base
	users.KeepPrivs, users.Init, users.Args = true, runner.Busybox, []string{"/sbin/init"}
	users.Content.IDs.UIDs = []mounts.IDLine{{Inside: 0, Host: 1 << 29, Count: 65536}, {Inside: 100000, Host: 100000, Count: 100000}}
	users.Content.IDs.GIDs = []mounts.IDLine{{Inside: 0, Host: 1 << 29, Count: 1500}, {Inside: 1500, Host: 1500, Count: 1}}
	plain := base
	plain.Content.IDs = mounts.IDs{}
	systemd := base
	systemd.Init, systemd.Args, systemd.Cgroup = runner.Systemd, []string{"/sbin/init"}, runner.ReadWrite
	return map[string]runner.Spec{"command": base, "full": full, "no-user-namespace": plain, "users": users, "systemd": systemd}
}

// TestConfigGolden compares whole specifications with testdata. The seccomp filter comes from another library, so testdata
// has only its shape.
func TestConfigGolden(t *testing.T) {
	for name, in := range goldenInputs() {
		spec, err := Config(in)
		if err != nil {
			t.Fatal(err)
		}
		spec.Linux.Seccomp = nil
		b, err := json.MarshalIndent(spec, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		testkit.Golden(t, filepath.Join("testdata", name+".json"), string(b)+"\n")
	}
}

// TestConfigPure checks that the same input gives the same bytes, and that Config does not change the input.
func TestConfigPure(t *testing.T) {
	for name, in := range goldenInputs() {
		before, _ := json.Marshal(in)
		var first []byte
		for range 3 {
			spec, err := Config(in)
			if err != nil {
				t.Fatal(err)
			}
			b, _ := json.Marshal(spec)
			if first == nil {
				first = b
			}
			if string(b) != string(first) {
				t.Errorf("%s: not the same twice", name)
			}
		}
		if after, _ := json.Marshal(in); string(after) != string(before) {
			t.Errorf("%s: the input was changed:\n%s", name, cmp.Diff(string(before), string(after)))
		}
	}
}

// TestSeccomp checks system calls that the filter must allow, and some that it must not.
func TestSeccomp(t *testing.T) {
	for name, in := range goldenInputs() {
		spec, err := Config(in)
		if err != nil {
			t.Fatal(err)
		}
		s := spec.Linux.Seccomp
		if s.DefaultAction != "SCMP_ACT_ERRNO" {
			t.Errorf("%s: default action %s", name, s.DefaultAction)
		}
		if runtime.GOARCH == "amd64" {
			if diff := cmp.Diff("[SCMP_ARCH_X86_64]", archNames(s.Architectures)); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
		var allowed []string
		for _, rule := range s.Syscalls {
			if rule.Action == "SCMP_ACT_ALLOW" && len(rule.Args) == 0 {
				allowed = append(allowed, rule.Names...)
			}
		}
		for _, never := range []string{
			"mount", "unshare", "setns", "clone3", "bpf", "kexec_load", "kexec_file_load", "init_module",
			"finit_module", "open_by_handle_at", "keyctl", "add_key", "userfaultfd", "perf_event_open", "pivot_root", "swapon", "clock_settime",
		} {
			if slices.Contains(allowed, never) {
				t.Errorf("%s: lets %s through", name, never)
			}
		}
		if got, want := slices.Contains(allowed, "reboot"), in.Init != runner.NoInit; got != want {
			t.Errorf("%s: reboot let through: %v, want %v", name, got, want)
		}
		for _, always := range []string{"read", "execve", "openat2", "io_setup", "futex", "chroot"} {
			if !slices.Contains(allowed, always) {
				t.Errorf("%s: refuses %s", name, always)
			}
		}
	}
}

func archNames[T ~string](list []T) string {
	names := make([]string, len(list))
	for i, a := range list {
		names[i] = string(a)
	}
	return "[" + strings.Join(names, " ") + "]"
}

// TestConfigRefuses checks the error of each kind of bad input.
func TestConfigRefuses(t *testing.T) {
	for want, change := range map[string]func(*runner.Spec){
		`host name "": must have 1 to 64 bytes`:                                func(in *runner.Spec) { in.Hostname = "" },
		`node wn-001: no command`:                                              func(in *runner.Spec) { in.Args = nil },
		`root "x": must be an absolute path`:                                   func(in *runner.Spec) { in.Content.Root.At = "x" },
		`cgroup path "..": must be a path below a hierarchy's root`:            func(in *runner.Spec) { in.Groups.Path = ".." },
		`working directory "x": must be an absolute path`:                      func(in *runner.Spec) { in.Cwd = "x" },
		`mount target /proc/sys: nothing can be mounted on or below /proc`:     func(in *runner.Spec) { in.Mounts = []runner.Mount{{Target: "/proc/sys"}} },
		`mount target /: it is the node's own`:                                 func(in *runner.Spec) { in.Mounts = []runner.Mount{{Target: "/"}} },
		`mount target "/a/../proc": must be an absolute path without . and ..`: func(in *runner.Spec) { in.Mounts = []runner.Mount{{Target: "/a/../proc"}} },
		`device /dev/x: access "rx": allowed are r, w and m`:                   func(in *runner.Spec) { in.Devices = []runner.Device{{Target: "/dev/x", Access: "rx"}} },
		`mount target /sys/x: nothing can be mounted on or below /sys`:         func(in *runner.Spec) { in.Devices = []runner.Device{{Target: "/sys/x", Access: "r"}} },
		`rlimit "files": allowed are as, core, cpu, data, fsize, locks, memlock, msgqueue, nice, nofile, nproc, rss, rtprio, rttime, sigpending, stack`: func(in *runner.Spec) { in.RLimits = map[string]uint64{"files": 1} },
	} {
		in := goldenInputs()["command"]
		change(&in)
		_, err := Config(in)
		if err == nil || err.Error() != want || refuse.KindOf(err) != refuse.Invalid {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

// TestCapabilities checks that some capabilities are in neither list.
func TestCapabilities(t *testing.T) {
	for _, list := range [][]Capability{CommandCapabilities(), InitCapabilities()} {
		for _, c := range list {
			if slices.Contains([]string{
				"CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_MKNOD", "CAP_SYS_ADMIN", "CAP_SYS_MODULE", "CAP_SYS_RAWIO",
				"CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH", "CAP_SYS_RESOURCE", "CAP_BPF", "CAP_SYS_TIME",
			}, c.Name) {
				t.Errorf("%s is in a list", c.Name)
			}
			if c.Reason == "" {
				t.Errorf("%s has no reason", c.Name)
			}
		}
	}
}

func TestMergeEnv(t *testing.T) {
	got := runner.MergeEnv([]string{"A=1", "B=2"}, []string{"B=3", "C=4", "A="})
	if diff := cmp.Diff([]string{"A=", "B=3", "C=4"}, got); diff != "" {
		t.Error(diff)
	}
}
