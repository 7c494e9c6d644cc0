package fault

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/sys/layout"
	"berth/test/testkit"
)

// world is a host for one test: its own network and mount namespaces, and its own root for Berth. Only the test's goroutine
// may start commands, because the namespaces belong to its thread.
type world struct {
	*testing.T
	dir, root string
	l         layout.Layout
	h         *netlink.Handle
	cg        host.Cgroups
	env       []string        // more variables for berth
	ns        [2]string       // of the thread: network, mounts
	foreign   map[string]bool // mounts of others, by number and folder
}

func newWorld(t *testing.T) *world {
	t.Helper()
	testkit.NeedsRoot(t)
	t.Parallel()
	dir := testkit.Dir(t, "")
	w := &world{T: t, dir: dir, root: filepath.Join(dir, "root")}
	testkit.Must(w, os.Mkdir(w.root, 0o755))
	w.l = layout.New(w.root)
	runtime.LockOSThread() // and never unlocked: the thread and its namespaces end with the test
	testkit.Must(w, unix.Unshare(unix.CLONE_NEWNET|unix.CLONE_NEWNS))
	testkit.Must(w, unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""))
	w.dropForeignMounts()
	w.forwardsNothing()
	var err error
	w.h, err = netlink.NewHandle()
	testkit.Must(w, err)
	w.cg, err = host.ReadCgroups("/proc")
	testkit.Must(w, err)
	for i, kind := range []string{"net", "mnt"} {
		w.ns[i], err = os.Readlink("/proc/thread-self/ns/" + kind)
		testkit.Must(w, err)
	}
	t.Cleanup(w.end)
	w.file("data/x", "x")
	return w
}

// dropForeignMounts takes the mounts of other tests, which run beside this one, out of the world's copy, and notes which mounts
// are left that are not the kernel's. The kernel removes a mount from the copy when somebody on the host removes the folder that
// it is on (ip netns delete, a container's end), and the host would seem to have lost a mount by what Berth did.
func (w *world) dropForeignMounts() {
	w.Helper()
	for _, m := range w.mountinfo() {
		if strings.HasPrefix(m.at, os.TempDir()+"/") {
			_ = unix.Unmount(m.at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) // gone already with the mount that it was on
		}
	}
	w.foreign = map[string]bool{}
	for _, m := range w.mountinfo() {
		if m.at != "/" && !slices.Contains([]string{"proc", "sysfs", "devtmpfs", "cgroup", "cgroup2"}, m.kind) {
			w.foreign[m.key()] = true
		}
	}
}

// forwardsNothing sets what the tests of mode nat read and change. A new network namespace has these settings from the host, where
// others may have changed them.
func (w *world) forwardsNothing() {
	w.Helper()
	for name, value := range map[string]string{
		"ipv4/ip_forward": "0", "ipv6/conf/all/forwarding": "0", "ipv6/conf/all/disable_ipv6": "0", "ipv6/conf/default/disable_ipv6": "0",
		"ipv6/conf/all/accept_ra": "1", "ipv6/conf/default/accept_ra": "1", "ipv6/conf/all/force_forwarding": "0", "ipv6/conf/default/force_forwarding": "0",
		"ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0",
	} {
		file := "/proc/sys/net/" + name
		if _, err := os.Stat(file); err == nil { // force_forwarding is in newer kernels only
			testkit.Must(w, os.WriteFile(file, []byte(value), 0))
		}
	}
}

// file writes a file in the world's folder and returns its path.
func (w *world) file(name, text string) string {
	w.Helper()
	path := filepath.Join(w.dir, name)
	testkit.Must(w, os.MkdirAll(filepath.Dir(path), 0o755))
	testkit.Must(w, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// result is how a command ended.
type result struct {
	code     int
	killed   bool
	out, err string
	took     time.Duration
}

func (r result) String() string {
	return strings.TrimSpace(strings.TrimSpace(r.out) + " | " + strings.TrimSpace(r.err))
}

// job is a command at work.
type job struct {
	w     *world
	cmd   *exec.Cmd
	began time.Time
}

// begin starts berth in its own process group, with additional environment variables.
func (w *world) begin(env []string, args ...string) *job {
	w.Helper()
	return w.beginBy(berth, env, args...)
}

// beginBy is begin with another berth.
func (w *world) beginBy(berth string, env []string, args ...string) *job {
	w.Helper()
	j := &job{w: w, began: time.Now()}
	j.cmd = exec.Command(berth, append([]string{"--root", w.root}, args...)...)
	j.cmd.Env = slices.Concat(os.Environ(), w.env, env)
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// Files, not pipes: processes that the command leaves behind must not block Wait.
	out, err := os.CreateTemp(w.dir, "out-")
	testkit.Must(w, err)
	errs, err := os.CreateTemp(w.dir, "err-")
	testkit.Must(w, err)
	j.cmd.Stdout, j.cmd.Stderr = out, errs
	testkit.Must(w, j.cmd.Start())
	return j
}

// kill kills the command's process with SIGKILL; its children continue.
func (j *job) kill() { _ = j.cmd.Process.Kill() }

func (j *job) wait() result {
	j.w.Helper()
	ended := make(chan error, 1)
	go func() { ended <- j.cmd.Wait() }()
	var err error
	select {
	case err = <-ended:
	case <-time.After(testkit.Bound()):
		where := whereabouts(j.cmd.Process.Pid)
		j.kill()
		j.w.Fatalf("berth %v hangs:\n%s", j.cmd.Args[3:], where)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		j.w.Fatal(err)
	}
	ws := j.cmd.ProcessState.Sys().(syscall.WaitStatus)
	r := result{code: ws.ExitStatus(), killed: ws.Signaled() && ws.Signal() == syscall.SIGKILL, took: time.Since(j.began)}
	r.out, r.err = take(j.cmd.Stdout), take(j.cmd.Stderr)
	return r
}

// whereabouts returns the state, system call and kernel stack of each thread of a process.
func whereabouts(pid int) string {
	var all strings.Builder
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, t := range tasks {
		for _, name := range []string{"stat", "syscall", "stack"} {
			text, err := os.ReadFile(filepath.Join(t, name))
			fmt.Fprintln(&all, strings.TrimSpace(string(text)), err)
		}
	}
	return all.String()
}

// take reads an output file and removes it.
func take(w any) string {
	f := w.(*os.File)
	defer os.Remove(f.Name())
	defer f.Close()
	text, _ := os.ReadFile(f.Name())
	return string(text)
}

func (w *world) berth(args ...string) result {
	w.Helper()
	return w.begin(nil, args...).wait()
}

// ok runs berth, which must succeed.
func (w *world) ok(args ...string) result {
	w.Helper()
	r := w.berth(args...)
	if r.code != 0 {
		w.Fatalf("berth %v: exit %d: %s", args, r.code, r)
	}
	return r
}

// status returns a node's entry of berth ls --json, the zero value if there is no such node.
func (w *world) status(name string) (s struct {
	Name, State string
	PID         int
	Restarts    int
	Exit        *struct {
		Code    int
		Signal  string
		Unknown bool
	}
},
) {
	w.Helper()
	all := []struct {
		Name, State string
		PID         int
		Restarts    int
		Exit        *struct {
			Code    int
			Signal  string
			Unknown bool
		}
	}{}
	testkit.Must(w, json.Unmarshal([]byte(w.ok("ls", "--json").out), &all))
	for _, one := range all {
		if one.Name == name {
			return one
		}
	}
	return s
}

// end removes everything that the test left: processes, cgroups, mounts, files.
func (w *world) end() {
	_ = exec.CommandContext(context.Background(), berth, "--root", w.root, "ls").Run()
	testkit.Happens(func() bool { return w.killAll() == 0 })
	for _, d := range w.cgroupDirs() {
		_ = unix.Rmdir(d)
	}
	w.h.Close()
	for _, m := range w.mounts() {
		if at := strings.Fields(m)[1]; strings.HasPrefix(at, w.dir) {
			_ = unix.Unmount(at, unix.MNT_DETACH)
		}
	}
}

// killAll kills what is left of the world's processes and returns how many there were.
func (w *world) killAll() int {
	n := 0
	for _, p := range w.processes() {
		if !p.zombie {
			_ = unix.Kill(p.pid, unix.SIGKILL)
			n++
		}
	}
	return n
}
