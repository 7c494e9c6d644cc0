package security

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth/test/env"
	"berth/test/testkit"
)

// TestNothingInherited checks that a node inherits nothing of berth's caller: descriptors, groups, umask, blocked or ignored
// signals, environment, oom_score_adj.
func TestNothingInherited(t *testing.T) {
	ignoreReserved(t)
	eachRuntime(t, func(t *testing.T, w *world) {
		secret, err := os.Open("/root")
		if err != nil {
			t.Fatal(err)
		}
		defer secret.Close()
		name := unique(t)
		t.Cleanup(func() { w.Try("rm", "--force", name) })
		spec := "name: " + name + "\nimage: host\ncommand: [/bin/sleep, infinity]\nmounts: [{source: " + build.probeDir + ", target: /probe, read_only: true}]\n"
		burdened := func(args ...string) *exec.Cmd {
			cmd := w.Command(args...)
			// A shell ignores signals and sets the umask before it runs berth.
			cmd.Args = append([]string{"sh", "-c", `trap '' USR1 USR2 PIPE; umask 0; echo 300 > /proc/self/oom_score_adj; exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
			cmd.Path = "/bin/sh"
			cmd.ExtraFiles = []*os.File{secret, secret, secret, secret}
			cmd.Env = append(os.Environ(), "BERTH_SECRET=x", "LISTEN_FDS=4", "LISTEN_PID=1", "NOTIFY_SOCKET=/run/x")
			cmd.Dir = "/root"
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Groups: []uint32{0, 4, 42}}}
			return cmd
		}
		up := burdened("apply", "-f", "-")
		up.Stdin = strings.NewReader(spec)
		if _, stderr, code := env.Try(up); code != 0 {
			t.Fatal(stderr)
		}
		// What stays beside the node, the keeper first of all, does not hold the caller's files open either.
		beside := testkit.Processes(w.Root)
		if len(beside) == 0 {
			t.Error("there is no keeper")
		}
		for pid, what := range beside {
			fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
			if err != nil {
				continue // it has ended
			}
			for _, fd := range fds {
				if to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name())); to == secret.Name() {
					t.Errorf("%q has descriptor %s of the caller", what, fd.Name())
				}
			}
		}
		for how, args := range map[string][]string{
			"run":  {"run", "--image", "host", "--mount", build.probeDir + ":/probe:ro", "--"},
			"exec": {"exec", name, "--"},
		} {
			t.Run(how, func(t *testing.T) {
				ask := func(answer any, what ...string) {
					t.Helper()
					stdout, stderr, code := env.Try(burdened(append(slices.Clip(args), append([]string{"/probe/probe"}, what...)...)...))
					if code != 0 {
						t.Fatal(stderr)
					}
					decode(t, stdout, answer)
				}
				var open map[string]map[string]string
				ask(&open, "fds")
				for process, fds := range open {
					for fd, target := range fds {
						if len(fd) > 1 || fd > "2" {
							t.Errorf("process %s has descriptor %s: %s", process, fd, target)
						}
					}
				}
				for _, pid := range []string{"1", "self"} {
					var got map[string]string
					ask(&got, "status", pid)
					// The probe is a Go program, whose runtime unblocks all signals and catches most of them. So check the ignored ones.
					for key, want := range map[string]string{"Groups": "", "Umask": "0022", "SigIgn": strings.Repeat("0", 16)} {
						if got[key] != want {
							t.Errorf("process %s: %s is %q, not %q", pid, key, got[key], want)
						}
					}
				}
				var got map[string]string
				ask(&got, "read", "/proc/self/oom_score_adj", "/proc/1/oom_score_adj")
				for file, score := range got {
					if score != "read 1" {
						t.Errorf("%s: %s", file, score)
					}
				}
				var links map[string]string
				ask(&links, "links", "/proc/self/cwd", "/proc/1/cwd")
				for of, dir := range links {
					if dir != "/" {
						t.Errorf("%s is %s", of, dir)
					}
				}
			})
		}
		env := w.OK(t, "exec", name, "--", "/usr/bin/env")
		if strings.Contains(env, "SECRET") || strings.Contains(env, "LISTEN") || strings.Contains(env, "NOTIFY") {
			t.Errorf("the caller's environment: %s", env)
		}
	})
}

// ignoreReserved makes this process and its children ignore signal 32, which the C library reserves and no shell can set.
func ignoreReserved(t *testing.T) {
	t.Helper()
	const signal = 32
	type action struct {
		handler, flags, restorer uintptr
		mask                     uint64
	}
	set := func(act, was *action) {
		if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, signal, uintptr(unsafe.Pointer(act)), uintptr(unsafe.Pointer(was)), 8, 0, 0); errno != 0 {
			t.Fatal("ignore signal 32: ", errno)
		}
	}
	was := &action{}
	set(&action{handler: 1}, was)
	t.Cleanup(func() { set(was, nil) })
}

// TestNoDescriptorOfTheLock checks from the host that the init of a running node has neither its lock nor other files of Berth
// open, for both ways to start a node.
func TestNoDescriptorOfTheLock(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		name := w.up(t, "")
		dir := fmt.Sprintf("/proc/%d/fd", w.show(t, name).PID)
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			target, _ := os.Readlink(dir + "/" + e.Name())
			if e.Name() > "2" || len(e.Name()) > 1 || strings.Contains(target, "/locks/") {
				t.Errorf("%s is open: %s", e.Name(), target)
			}
		}
		// So the lock is free.
		w.OK(t, "set", name, "cpu.weight=50")
	})
}
