package oci

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/image/imagetest"
	"berth/internal/runner"
	"berth/internal/sys/proc"
	"berth/test/testkit"
)

// TestInside checks a command node from inside: ids, capabilities, seccomp filter, read-only paths.
func TestInside(t *testing.T) {
	const script = `
hostname
cat /proc/self/uid_map | tr -s ' '
grep -E '^(CapInh|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs|Seccomp):' /proc/self/status
[ $(ls -d /proc/[0-9]* | wc -l) -lt 6 ] && echo its own processes only
cat /proc/sys/net/ipv4/ping_group_range
mknod /tmp/null c 1 3 2>&1
mount -t tmpfs tmpfs /tmp 2>&1
hostname other 2>&1
echo x 2>/dev/null > /proc/sys/kernel/hostname || echo /proc/sys is read-only
echo x 2>/dev/null > /sys/kernel/uevent_helper || echo /sys is read-only
wc -c < /proc/keys
unshare -U true 2>&1
unshare -n true 2>&1
echo $container
`
	eachRuntime(t, func(t *testing.T, r Runtime) {
		want := `wn-001
 0 536870912 65536
CapInh:	0000000000000000
CapPrm:	00000000800405fb
CapEff:	00000000800405fb
CapBnd:	00000000800405fb
CapAmb:	0000000000000000
NoNewPrivs:	1
Seccomp:	2
its own processes only
0	65535
mknod: /tmp/null: Operation not permitted
mount: permission denied (are you root?)
hostname: sethostname: Operation not permitted
/proc/sys is read-only
/sys is read-only
0
unshare: unshare(0x10000000): Operation not permitted
unshare: unshare(0x40000000): Operation not permitted

`
		want = strings.ReplaceAll(want, "00000000800405fb", capMask(t, CommandCapabilities()))
		got := sh(t, r, script, nil)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

// capMask returns a capability list as /proc/PID/status prints it.
func capMask(t *testing.T, list []Capability) string {
	t.Helper()
	numbers := map[string]uint{
		"CAP_CHOWN": unix.CAP_CHOWN, "CAP_DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "CAP_FOWNER": unix.CAP_FOWNER,
		"CAP_FSETID": unix.CAP_FSETID, "CAP_KILL": unix.CAP_KILL, "CAP_NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE,
		"CAP_SETFCAP": unix.CAP_SETFCAP, "CAP_SETGID": unix.CAP_SETGID, "CAP_SETPCAP": unix.CAP_SETPCAP,
		"CAP_SETUID": unix.CAP_SETUID, "CAP_SYS_CHROOT": unix.CAP_SYS_CHROOT, "CAP_SYS_BOOT": unix.CAP_SYS_BOOT,
		"CAP_AUDIT_WRITE": unix.CAP_AUDIT_WRITE,
	}
	mask := uint64(0)
	for _, c := range list {
		n, ok := numbers[c.Name]
		if !ok {
			t.Fatalf("%s is new in a list: is it safe?", c.Name)
		}
		mask |= 1 << n
	}
	return fmt.Sprintf("%016x", mask)
}

// TestInit checks what an init gets beyond a command.
func TestInit(t *testing.T) {
	eachRuntime(t, func(t *testing.T, r Runtime) {
		got := sh(t, r, `grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status; echo $container; grep -cE ' /run(/lock)? ' /proc/mounts; touch /run/x && echo writable`,
			func(in *runner.Spec) { in.Init = runner.Busybox })
		want := "CapEff:\t" + capMask(t, InitCapabilities()) + "\nNoNewPrivs:\t0\nSeccomp:\t2\nberth\n2\nwritable\n"
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

// TestHalt checks that busybox init boots, and that its poweroff ends the node.
func TestHalt(t *testing.T) {
	t.Parallel()
	eachRuntime(t, func(t *testing.T, r Runtime) {
		n := newNode(t, r, func(in *runner.Spec) { in.Init, in.Args = runner.Busybox, []string{"/sbin/init"} })
		n.up(t)
		for range 100 {
			if _, err := os.Stat(procPath(n.create.Init.PID, "root/run/booted")); err == nil {
				break
			}
			sleepMS(20)
		}
		if err := unix.Kill(n.create.Init.PID, unix.SIGUSR2); err != nil {
			t.Fatal(err)
		}
		n.ended(t)
	})
}

// TestDevices checks that a device can be opened only if it was asked for, even if a device node for it exists.
func TestDevices(t *testing.T) {
	eachRuntime(t, func(t *testing.T, r Runtime) {
		dir := t.TempDir()
		node := filepath.Join(dir, "loop-control") // anybody may open it whom its mode and the device cgroup allow
		if err := unix.Mknod(node, unix.S_IFCHR|0o666, int(unix.Mkdev(10, 237))); err != nil {
			t.Skipf("cannot make device nodes in %s: %v", dir, err)
		}
		if err := os.Chmod(node, 0o666); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(node)
		if err != nil {
			t.Skipf("the kernel has no loop devices: %v", err)
		}
		f.Close()
		device := runner.Device{Target: "/dev/asked", Source: node, Major: 10, Minor: 237, Access: "rw"}
		closed := runner.Mount{Source: device.Source, Target: "/dev/closed", Type: "bind", Options: []string{"bind"}}
		const script = `for d in null zero random full tty asked closed; do (: < /dev/$d) 2>/dev/null && echo $d opens || echo $d closed; done`
		got := sh(t, r, script, func(in *runner.Spec) { in.Devices, in.Mounts = []runner.Device{device}, []runner.Mount{closed} })
		want := "null opens\nzero opens\nrandom opens\nfull opens\ntty closed\nasked opens\nclosed opens\n"
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		got = sh(t, r, script, func(in *runner.Spec) { in.Mounts = []runner.Mount{closed} })
		want = "null opens\nzero opens\nrandom opens\nfull opens\ntty closed\nasked closed\nclosed closed\n"
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

// Test32Bit checks that a 32-bit system call kills the program.
func Test32Bit(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the program is for amd64")
	}
	// mov eax, 20 (getpid); int 0x80; mov eax, 60; xor edi, edi; syscall (exit 0)
	program := tinyELF([]byte{0xb8, 20, 0, 0, 0, 0xcd, 0x80, 0xb8, 60, 0, 0, 0, 0x31, 0xff, 0x0f, 0x05})
	file := filepath.Join(t.TempDir(), "int80")
	if err := os.WriteFile(file, program, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := exec.Command(file).Run(); err != nil {
		t.Skipf("the host itself cannot do 32-bit system calls: %v", err)
	}
	eachRuntime(t, func(t *testing.T, r Runtime) {
		got := sh(t, r, "/int80; echo $?", func(in *runner.Spec) {
			in.Mounts = []runner.Mount{{Source: file, Target: "/int80", Type: "bind", Options: []string{"bind", "ro"}}}
		})
		if !strings.HasSuffix(got, "159\n") { // 128 + SIGSYS
			t.Errorf("got %q, want 159: killed by SIGSYS", got)
		}
	})
}

// TestExec checks the exit codes, rights and descriptors of commands that exec runs.
func TestExec(t *testing.T) {
	t.Parallel()
	eachRuntime(t, func(t *testing.T, r Runtime) {
		n := newNode(t, r, nil)
		n.up(t)
		table := []struct {
			args []string
			code int
			out  string
		}{
			{
				[]string{"sh", "-c", `echo $FROM; grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status; ls /proc/self/fd | wc -w; cat /proc/self/uid_map | tr -s ' '`},
				0,
				"exec\nCapEff:\t" + capMask(t, CommandCapabilities()) + "\nNoNewPrivs:\t1\nSeccomp:\t2\n4\n 0 536870912 65536\n",
			},
			{[]string{"sh", "-c", "exit 7"}, 7, ""},
			{[]string{"nothing-here"}, runner.ExitNotFound, "cannot run nothing-here: not found in PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"},
			{[]string{"/etc/passwd"}, runner.ExitCannotRun, "cannot run /etc/passwd: /etc/passwd is not executable\n"},
			{[]string{"/proc"}, runner.ExitCannotRun, "cannot run /proc: /proc is not a file\n"},
		}
		for _, c := range table {
			cmd := n.execCmd(t, c.args...)
			out, err := cmd.CombinedOutput()
			var ee *exec.ExitError
			if err != nil && !errors.As(err, &ee) {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.out, string(out)); diff != "" || cmd.ProcessState.ExitCode() != c.code {
				t.Errorf("%q: exit code %d, want %d\n%s", c.args, cmd.ProcessState.ExitCode(), c.code, diff)
			}
		}
		out, err := n.execCmd(t, "sleep", "0.1").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	})
}

// TestExecGroups checks that commands of exec are in the node's groups.
func TestExecGroups(t *testing.T) {
	t.Parallel()
	eachRuntime(t, func(t *testing.T, r Runtime) {
		n := newNode(t, r, nil)
		n.up(t)
		cmd := n.execCmd(t, "sh", "-c", "cat /proc/self/cgroup; cat /proc/1/cgroup >&2")
		var own, init strings.Builder
		cmd.Stdout, cmd.Stderr = &own, &init
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(init.String(), own.String()); diff != "" {
			t.Error(diff)
		}
	})
}

// TestUndoSparesOthers checks that undo does not kill another process that has the node's PID by now.
func TestUndoSparesOthers(t *testing.T) {
	other := exec.Command("sleep", "100")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	dir := t.TempDir()
	pidFile := filepath.Join(dir, "pid")
	for _, s := range []*Create{
		{Init: proc.ID{PID: other.Process.Pid, Start: 1}},
		{CgroupsPath: "/berth-no-such"},
	} {
		s.Launch.State, s.Launch.ID, s.Launch.PIDFile, s.Launch.Log = dir, "x", pidFile, filepath.Join(dir, "log")
		if err := os.WriteFile(pidFile, fmt.Append(nil, other.Process.Pid), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.Undo(t.Context()); err != nil {
			t.Fatal(err)
		}
		if st, err := proc.Read(other.Process.Pid); err != nil || st.Ended() {
			t.Fatalf("the other process is gone: %v %c", err, st.State)
		}
	}
}

// TestBadCommand checks the exit code of each way in which a command cannot run, and that nothing is left half made.
func TestBadCommand(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"text": "hello\n", "badscript": "#!/no/such/interpreter\n", "broken": "\x7fELF", "emptyscript": "#!\n",
	}
	dir := t.TempDir()
	var binds []runner.Mount
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		binds = append(binds, runner.Mount{Source: filepath.Join(dir, name), Target: "/x/" + name, Type: "bind", Options: []string{"bind"}})
	}
	binds = append(binds, capable(t))
	eachRuntime(t, func(t *testing.T, r Runtime) {
		for _, c := range []struct {
			arg  string
			code int
		}{
			{"/x/capable", runner.ExitCannotRun},
			{"nothing-here", runner.ExitNotFound},
			{"/bin/nothing-here", runner.ExitNotFound},
			{"/etc/passwd", runner.ExitCannotRun},
			{"/etc", runner.ExitCannotRun},
			{"/x/text", runner.ExitCannotRun},
			{"/x/badscript", runner.ExitNotFound},
			{"/x/broken", runner.ExitCannotRun},
			{"/x/emptyscript", runner.ExitCannotRun},
			{"/bin/true", 0},
			{"true", 0},
		} {
			n := newNode(t, r, func(in *runner.Spec) { in.Args, in.Mounts = []string{c.arg}, binds })
			err := n.doAll(t.Context())
			var ce *runner.CommandError
			if !errors.As(err, &ce) {
				ce = &runner.CommandError{}
				if err != nil {
					t.Errorf("%s: %v", c.arg, err)
				}
			}
			if ce.Code != c.code {
				t.Errorf("%s: code %d (%v), want %d", c.arg, ce.Code, err, c.code)
			}
		}
	})
}

// capable returns a mount of a program whose file asks for a capability that no node has: CAP_NET_RAW, as Debian's ping did.
func capable(t *testing.T) runner.Mount {
	t.Helper()
	file := filepath.Join(t.TempDir(), "capable")
	program, err := os.ReadFile(filepath.Join(imagetest.BusyboxDir(t), "bin/busybox"))
	if err == nil {
		err = os.WriteFile(file, program, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 20) // struct vfs_cap_data
	binary.LittleEndian.PutUint32(data, 0x02000001)
	binary.LittleEndian.PutUint32(data[4:], 1<<unix.CAP_NET_RAW)
	if err := unix.Setxattr(file, "security.capability", data, 0); err != nil {
		t.Skipf("no capabilities of files in %s: %v", filepath.Dir(file), err)
	}
	return runner.Mount{Source: file, Target: "/x/capable", Type: "bind", Options: []string{"bind"}}
}

// TestExecCannotRun checks that exec reports a program that the kernel refuses, and a working folder that is gone.
func TestExecCannotRun(t *testing.T) {
	t.Parallel()
	bind := capable(t)
	eachRuntime(t, func(t *testing.T, r Runtime) {
		n := newNode(t, r, func(in *runner.Spec) { in.Mounts, in.Cwd = []runner.Mount{bind}, "/wd" })
		n.create.Launch.Plan.Root.Memory = true
		n.up(t)
		out, _ := n.execCmd(t, "/x/capable", "true").CombinedOutput()
		const want = "cannot run /x/capable: operation not permitted: its file asks for CAP_NET_RAW, which the node does not have\n"
		if string(out) != want {
			t.Errorf("%q", out)
		}
		if out, err := n.execCmd(t, "rmdir", "/wd").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		cmd := n.execCmd(t, "/bin/true")
		out, _ = cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != runner.ExitCannotRun || string(out) != "cannot run /bin/true: its working folder /wd is not in the node\n" {
			t.Errorf("exit code %d: %q", code, out)
		}
	})
}

// TestLockNotInherited checks that the waiting init does not hold the node's lock after create.
func TestLockNotInherited(t *testing.T) {
	eachRuntime(t, func(t *testing.T, r Runtime) {
		n := newNode(t, r, nil)
		path := filepath.Join(t.TempDir(), "lock")
		held, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Flock(int(held.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		n.create.Launch.Lock = held
		if err := n.bundle.Do(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := n.create.Do(t.Context()); err != nil {
			t.Fatal(err)
		}
		held.Close() // as a kill would, without unlocking
		again, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer again.Close()
		if err := unix.Flock(int(again.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			t.Errorf("the waiting init holds the lock: %v", err)
		}
	})
}

// TestRuntimeGone checks that a missing runtime gives exit code 3 and the remedy.
func TestRuntimeGone(t *testing.T) {
	testkit.NeedsRoot(t)
	n := newNode(t, Runtime{Name: "runc", Path: "/no/such/runc"}, nil)
	err := n.doAll(t.Context())
	if err == nil || !strings.Contains(err.Error(), "apt-get install runc") {
		t.Errorf("got %v, want a refusal with the remedy", err)
	}
}
