package oci

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"berth/internal/refuse"
)

var update = flag.Bool("update", false, "write the golden files anew")

func goldenInputs() map[string]Input {
	base := Input{
		Hostname: "wn-001", Args: []string{"/bin/sleep", "1000"}, Rootfs: "/run/berth/nodes/wn-001/root",
		IDBase: 1 << 29, IDSize: 65536, CgroupsPath: "/berth/wn-001",
	}
	full := base
	full.Terminal, full.Cwd, full.Env, full.User = true, "/srv", []string{"PATH=/bin", "A=1"}, User{UID: 1000, GID: 100, Additional: []uint32{5}}
	full.Devices = []Device{
		{Target: "/dev/sdc", Source: "/run/berth/nodes/wn-001/stage/dev0", Block: true, Major: 8, Minor: 32, Access: "rw"},
		{Target: "/dev/fuse", Source: "/run/berth/nodes/wn-001/stage/dev1", Major: 10, Minor: 229, Access: "rwm"},
	}
	full.Mounts = []Mount{
		{Source: "/run/berth/nodes/wn-001/stage/m0", Target: "/eos", Type: "bind", Options: []string{"rbind", "nosuid", "nodev"}},
		{Source: "tmpfs", Target: "/dev/shm", Type: "tmpfs", Options: []string{"size=1g"}},
	}
	full.RLimits = map[string]uint64{"nofile": 20000, "core": 0}
	full.Mask = []string{"/sys/devices/system/cpu/cpu0/thermal_throttle"}
	plain := base
	plain.IDSize, plain.IDBase = 0, 0
	systemd := base
	systemd.Init, systemd.Args, systemd.Cgroup = Systemd, []string{"/sbin/init"}, ReadWrite
	return map[string]Input{"command": base, "full": full, "no-user-namespace": plain, "systemd": systemd}
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
		file := filepath.Join("testdata", name+".json")
		if *update {
			if err := os.WriteFile(file, append(b, '\n'), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(b)+"\n"); diff != "" {
			t.Errorf("%s (go test -update writes it anew):\n%s", name, diff)
		}
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
		if got, want := slices.Contains(allowed, "reboot"), in.Init != Command; got != want {
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
	for want, change := range map[string]func(*Input){
		`host name "": must have 1 to 64 bytes`:                                func(in *Input) { in.Hostname = "" },
		`node wn-001: no command`:                                              func(in *Input) { in.Args = nil },
		`root "x": must be an absolute path`:                                   func(in *Input) { in.Rootfs = "x" },
		`cgroup path "/": must be an absolute path below a hierarchy's root`:   func(in *Input) { in.CgroupsPath = "/" },
		`working directory "x": must be an absolute path`:                      func(in *Input) { in.Cwd = "x" },
		`mount target /proc/sys: nothing can be mounted on or below /proc`:     func(in *Input) { in.Mounts = []Mount{{Target: "/proc/sys"}} },
		`mount target /: it is the node's own`:                                 func(in *Input) { in.Mounts = []Mount{{Target: "/"}} },
		`mount target "/a/../proc": must be an absolute path without . and ..`: func(in *Input) { in.Mounts = []Mount{{Target: "/a/../proc"}} },
		`device /dev/x: access "rx": allowed are r, w and m`:                   func(in *Input) { in.Devices = []Device{{Target: "/dev/x", Access: "rx"}} },
		`mount target /sys/x: nothing can be mounted on or below /sys`:         func(in *Input) { in.Devices = []Device{{Target: "/sys/x", Access: "r"}} },
		`rlimit "files": allowed are as, core, cpu, data, fsize, locks, memlock, msgqueue, nice, nofile, nproc, rss, rtprio, rttime, sigpending, stack`: func(in *Input) { in.RLimits = map[string]uint64{"files": 1} },
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

// TestNoTargetEscapes checks that no spelling of /, /dev, or a path on or below /proc or /sys is accepted as a target.
func TestNoTargetEscapes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		target := rapid.StringMatching(`(/|\.|\.\.|proc|sys|dev|x|pts){1,8}`).Draw(t, "target")
		if checkTarget(target) != nil {
			return
		}
		clean := filepath.Clean(target)
		for _, p := range []string{"/proc", "/sys"} {
			if clean == p || strings.HasPrefix(clean, p+"/") {
				t.Fatalf("%q is accepted", target)
			}
		}
		if clean == "/" || clean == "/dev" {
			t.Fatalf("%q is accepted", target)
		}
	})
}

func TestMergeEnv(t *testing.T) {
	got := mergeEnv([]string{"A=1", "B=2"}, []string{"B=3", "C=4", "A="})
	if diff := cmp.Diff([]string{"A=", "B=3", "C=4"}, got); diff != "" {
		t.Error(diff)
	}
}
