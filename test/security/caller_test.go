package security

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth/internal/sys/inherit"
	"berth/internal/sys/thread"
	"berth/test/env"
)

// questions ask a process what it has of its caller, a line each.
const questions = `grep Cpus_allowed_list /proc/self/status; nice; ionice | head -1; chrt -p $$ | head -1 | sed "s,.*: ,,"; ulimit -t; ulimit -f; ulimit -d; ulimit -v; ulimit -s; ulimit -Sn
echo personality $(cat /proc/self/personality); grep THP_enabled /proc/self/status; cat /proc/self/coredump_filter
echo memory $(head -1 /proc/self/numa_maps | cut -d' ' -f2); grep -E 'cpu time|file size|data size|address space|stack size|open files' /proc/1/limits`

// burden runs a command with all that a caller can burden it with, that can be taken off, and that a shell shows.
const burden = `ulimit -S -t 3333; ulimit -S -f 100000; ulimit -S -d 50000000; ulimit -S -v 60000000; ulimit -S -s 4096; ulimit -S -n 77
echo 1 > /proc/self/coredump_filter; exec taskset -c 0 chrt --batch 0 nice -n 7 ionice -c 2 -n 7 setarch -R "$0" "$@"`

// burdenedTry starts a command by burden, with timer slack, a memory policy, merging of equal pages and without huge pages besides.
func burdenedTry(t *testing.T, cmd *exec.Cmd) (stdout, stderr string, code int) {
	t.Helper()
	cmd.Args = append([]string{"sh", "-c", burden, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	if err := thread.Own(func() error {
		if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 7_000_000, 0, 0, 0); err != nil {
			return err
		}
		nodes := uint64(1)
		const preferred = 1 // MPOL_PREFERRED
		_, _, errno := unix.Syscall(unix.SYS_SET_MEMPOLICY, preferred, uintptr(unsafe.Pointer(&nodes)), 64)
		if errno != 0 && errno != unix.ENOSYS {
			return errno
		}
		if err := unix.Prctl(unix.PR_SET_THP_DISABLE, 1, 0, 0, 0); err != nil { // of the whole process
			return err
		}
		defer unix.Prctl(unix.PR_SET_THP_DISABLE, 0, 0, 0, 0)                                                    // nothing else of this test program minds
		if err := unix.Prctl(unix.PR_SET_MEMORY_MERGE, 1, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) { // a kernel without KSM
			return err
		}
		defer unix.Prctl(unix.PR_SET_MEMORY_MERGE, 0, 0, 0, 0)
		if err := unix.Prctl(unix.PR_MCE_KILL, unix.PR_MCE_KILL_SET, unix.PR_MCE_KILL_EARLY, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return err
		}
		stdout, stderr, code = env.Try(cmd)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return stdout, stderr, code
}

// TestCallersState checks that a node has no more of what its caller had of limits, priorities and policies than one from a caller without
// any: the node of run, commands of exec, and process 1 of a node whose keeper such a caller started.
func TestCallersState(t *testing.T) {
	host, stderr, code := burdenedTry(t, exec.Command("/bin/sh", "-c", questions))
	if code != 0 {
		t.Fatal(stderr)
	}
	eachRuntime(t, func(t *testing.T, w *world) {
		name := unique(t)
		t.Cleanup(func() { w.Try("rm", "--force", name) })
		up := w.Command("apply", "-f", "-")
		up.Stdin = strings.NewReader("name: " + name + "\nimage: host\ncommand: [/bin/sleep, infinity]\nmounts: [{source: " + build.probeDir + ", target: /probe, read_only: true}]\n")
		if _, stderr, code := burdenedTry(t, up); code != 0 { // it starts the keeper
			t.Fatal(stderr)
		}
		slack, err := os.ReadFile(fmt.Sprintf("/proc/%d/timerslack_ns", w.show(t, name).PID)) // a node cannot read its own
		if err != nil || string(slack) != "50000\n" {
			t.Errorf("timer slack of process 1: %q, %v", slack, err)
		}
		for _, how := range [][]string{{"run", "--image", "host", "--mount", build.probeDir + ":/probe:ro"}, {"exec", name}} {
			said, stderr, code := burdenedTry(t, w.Command(append(slices.Clip(how), "--", "/probe/probe", "prctls")...))
			if code != 0 {
				t.Fatal(stderr)
			}
			var has map[string]int
			decode(t, said, &has)
			if has["timer slack"] != 50_000 || has["merging"] > 0 || has["memory failure"] != unix.PR_MCE_KILL_DEFAULT && has["memory failure"] != -1 {
				t.Errorf("%s: %v", how[0], has)
			}
			args := append(slices.Clip(how), "--", "sh", "-c", questions)
			want := strings.Split(w.OK(t, args...), "\n")
			got, stderr, code := burdenedTry(t, w.Command(args...))
			if code != 0 {
				t.Fatal(stderr)
			}
			burdened := strings.Split(host, "\n")
			for i, line := range strings.Split(got, "\n") {
				if i >= len(want) || line != want[i] {
					t.Errorf("%s: %q of a burdened caller, else %q", how[0], line, want[min(i, len(want)-1)])
				}
				if i < 13 && line == burdened[i] && (i > 0 || runtime.NumCPU() > 1) {
					t.Errorf("%s: %q, as the caller had it", how[0], line)
				}
			}
			if !strings.Contains(got, "Max cpu time              unlimited            unlimited") {
				t.Errorf("%s: limits of process 1: %s", how[0], got)
			}
		}
	})
}

// restricted runs a command from a thread that was given a restriction which nobody takes off.
func restricted(cmd *exec.Cmd, restrict func() error) (stderr string, code int, err error) {
	err = thread.Own(func() error {
		if err := restrict(); err != nil {
			return err
		}
		_, stderr, code = env.Try(cmd)
		return nil
	})
	return stderr, code, err
}

// TestRestrictedCaller checks that berth starts no node for a caller whose restrictions the node would inherit and nobody can take off, and
// that it changes nothing: a node that it shall start again goes on.
func TestRestrictedCaller(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		name, other := w.up(t, ""), unique(t)
		pid := w.show(t, name).PID
		file := filepath.Join(t.TempDir(), "node.yaml")
		if err := os.WriteFile(file, []byte("name: "+other+"\nimage: host\ncommand: [/bin/true]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		for what, restrict := range map[string]func() error{
			"no_new_privs": func() error { return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) },
			"a seccomp filter": func() error {
				allow := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0x7fff0000}} // SECCOMP_RET_ALLOW
				program := unix.SockFprog{Len: 1, Filter: &allow[0]}
				return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
			},
			"a smaller bounding set":                     func() error { return unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_PTRACE, 0, 0, 0) },
			"a Landlock domain, which forbids mounts":    func() error { return landlock(1<<9, 0) }, // LANDLOCK_ACCESS_FS_MAKE_SOCK
			"a Landlock domain, which forbids TCP ports": func() error { return landlock(0, 1<<1) }, // LANDLOCK_ACCESS_NET_CONNECT_TCP
			"a time namespace":                           func() error { return orNone(unix.Unshare(unix.CLONE_NEWTIME), unix.EINVAL) },
			"securebits": func() error {
				const noRoot, locked = 1, 2
				return unix.Prctl(unix.PR_SET_SECUREBITS, noRoot<<2|locked<<2, 0, 0, 0) // no setuid fixup, which berth does not need
			},
		} {
			for _, act := range []struct {
				code int
				args []string
			}{
				{125, []string{"run", "--image", "host", "--", "true"}}, // run and exec say so that berth failed
				{125, []string{"exec", name, "--", "true"}},
				{3, []string{"restart", name}},
				{3, []string{"apply", "-f", file}},
			} {
				stderr, code, err := restricted(w.Command(act.args...), restrict)
				if errors.Is(err, errNone) {
					t.Logf("%s: %v", what, err)
					continue
				}
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				if code != act.code || !strings.Contains(stderr, what) {
					t.Errorf("%s with %s: exit code %d: %s", act.args[0], what, code, stderr)
				}
			}
		}
		if now := w.show(t, name).PID; now != pid {
			t.Errorf("process 1 of the node that was not started again was %d and is %d", pid, now)
		}
		if _, stderr, code := w.Try("show", other); code != 4 {
			t.Errorf("of the node that was not made there is something: exit code %d: %s", code, stderr)
		}
	})
}

// TestCallersMounts runs nodes for a caller in a mount namespace of its own, as a service with PrivateTmp has it: that is no restriction.
func TestCallersMounts(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		name := w.up(t, "")
		for _, args := range [][]string{{"run", "--image", "host", "--", "true"}, {"exec", name, "--", "true"}} {
			cmd := w.Command(args...)
			unshared := exec.Command("unshare", append([]string{"--mount", cmd.Path}, cmd.Args[1:]...)...)
			unshared.Env, unshared.Dir = cmd.Env, cmd.Dir
			if _, stderr, code := env.Try(unshared); code != 0 {
				t.Errorf("%s: exit code %d: %s", args[0], code, stderr)
			}
		}
	})
}

// TestHardLimits gives berth hard limits, which it takes off if it may. If not, it refuses one of CPU time by name, and takes one of files.
func TestHardLimits(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		name := w.up(t, "")
		for _, how := range [][]string{{"run", "--image", "host"}, {"exec", name}} {
			ask := func(limits string) (stdout, stderr string, code int) {
				cmd := w.Command(append(slices.Clip(how), "--", "sh", "-c", "ulimit -Hn")...)
				cmd.Args = append([]string{"sh", "-c", limits + `; exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
				cmd.Path = "/bin/sh"
				return env.Try(cmd)
			}
			want, stderr, code := ask("true")
			if code != 0 {
				t.Fatal(stderr)
			}
			if !raises(t) {
				want = "777\n"
			}
			if got, stderr, code := ask("ulimit -n 777"); code != 0 || got != want {
				t.Errorf("%s: exit code %d, %q open files, not %q: %s", how[0], code, got, want, stderr)
			}
			_, stderr, code = ask("ulimit -t 3333")
			if raises(t) && code != 0 || !raises(t) && (code != 125 || !strings.Contains(stderr, "a hard resource limit (ulimit) of 3333 for cpu")) {
				t.Errorf("%s: exit code %d: %s", how[0], code, stderr)
			}
		}
	})
}

// raises reports whether this process may raise hard limits: CAP_SYS_RESOURCE.
func raises(t *testing.T) bool {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		t.Fatal(err)
	}
	return sets[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

var errNone = errors.New("this kernel has none")

// orNone is an error, or errNone if it is one of those by which a kernel says so.
func orNone(err error, says ...unix.Errno) error {
	for _, errno := range says {
		if errors.Is(err, errno) {
			return errNone
		}
	}
	return err
}

// landlock gives this thread a domain that forbids some acts in the file system or the network.
func landlock(files, network uint64) error {
	attr := struct{ files, network uint64 }{files, network}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return orNone(errno, unix.ENOSYS, unix.EOPNOTSUPP, unix.E2BIG, unix.EINVAL)
	}
	defer unix.Close(int(fd))
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 { // with CAP_SYS_ADMIN
		return errno
	}
	return nil
}

// TestCallersStateIsListed checks that docs/SECURITY.md lists all that is taken off or refused.
func TestCallersStateIsListed(t *testing.T) {
	text, err := os.ReadFile("../../docs/SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(text), "### State of the caller")
	list, _, _ = strings.Cut(list, "\n### ")
	for _, name := range inherit.Names() {
		if !strings.Contains(list, "`"+name+"`") {
			t.Errorf("%q is not listed", name)
		}
	}
}
