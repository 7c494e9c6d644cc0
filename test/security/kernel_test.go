package security

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/image/imagetest"
	"berth/internal/runner/oci"
)

// TestRefused checks that every kernel interface that the probe tries is refused, in process 1 and in exec.
func TestRefused(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		got := map[string]string{}
		w.probe(t, &got, "refused")
		checkRefused(t, got)
		name := w.up(t, "")
		got = map[string]string{}
		w.in(t, name, &got, "refused")
		checkRefused(t, got)
	})
}

func checkRefused(t *testing.T, got map[string]string) {
	t.Helper()
	if len(got) < 60 {
		t.Errorf("only %d attempts", len(got))
	}
	for what, became := range got {
		switch became {
		case "EPERM", "EACCES", "ENOSYS":
		default:
			t.Errorf("%s: %s", what, became)
		}
	}
}

// TestCapabilities checks that nodes have exactly the documented capabilities, and none ambient or inheritable.
func TestCapabilities(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		command := w.up(t, "")
		init := w.up(t, "image: dir:"+imagetest.BusyboxDir(t)+"\ncommand: [/bin/busybox, init]\nmounts: [{source: "+build.probeDir+", target: /probe, read_only: true}]")
		for _, node := range []struct {
			name   string
			caps   []oci.Capability
			noNew  string
			reason string
		}{
			{command, oci.CommandCapabilities(), "1", "a command"},
			{init, oci.InitCapabilities(), "0", "an init"},
		} {
			want := fmt.Sprintf("%016x", capabilityMask(t, node.caps))
			for _, pid := range []string{"1", "self"} {
				got := map[string]string{}
				w.in(t, node.name, &got, "status", pid)
				for key, value := range map[string]string{
					"CapBnd": want, "CapPrm": want, "CapEff": want, "CapInh": strings.Repeat("0", 16), "CapAmb": strings.Repeat("0", 16),
					"NoNewPrivs": node.noNew, "Seccomp": "2", "Groups": "", "Uid": "0\t0\t0\t0", "Umask": "0022",
				} {
					if got[key] != value {
						t.Errorf("%s, process %s: %s is %q, not %q", node.reason, pid, key, got[key], value)
					}
				}
			}
		}
	})
}

func capabilityMask(t *testing.T, list []oci.Capability) uint64 {
	t.Helper()
	numbers := map[string]int{
		"CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_FOWNER": 3, "CAP_FSETID": 4, "CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7,
		"CAP_SETPCAP": 8, "CAP_NET_BIND_SERVICE": 10, "CAP_SYS_CHROOT": 18, "CAP_SYS_BOOT": 22, "CAP_AUDIT_WRITE": 29, "CAP_SETFCAP": 31,
	}
	var mask uint64
	for _, c := range list {
		n, known := numbers[c.Name]
		if !known {
			t.Fatalf("%s is new: is it harmless?", c.Name) // NET_ADMIN, SYS_ADMIN, MKNOD, NET_RAW must never get here
		}
		mask |= 1 << n
	}
	return mask
}

// TestOtherCallTables checks that i386 and x32 system calls kill the caller. It assembles the programs byte by byte.
func TestOtherCallTables(t *testing.T) {
	if unix.SYS_GETPID != 39 {
		t.Skip("no other call tables on this processor")
	}
	exit42 := []byte{0xbf, 42, 0, 0, 0, 0xb8, 60, 0, 0, 0, 0x0f, 0x05} // mov edi,42; mov eax,60 (exit); syscall
	programs := map[string][]byte{
		"an i386 program":            elf32([]byte{0xbb, 42, 0, 0, 0, 0xb8, 1, 0, 0, 0, 0xcd, 0x80}),     // exit(42)
		"an i386 call from 64 bits":  elf64(append([]byte{0xb8, 20, 0, 0, 0, 0xcd, 0x80}, exit42...)),    // getpid by int 0x80
		"an x32 call":                elf64(append([]byte{0xb8, 39, 0, 0, 0x40, 0x0f, 0x05}, exit42...)), // getpid of x32
		"a 64-bit program (control)": elf64(append([]byte{0xb8, 39, 0, 0, 0, 0x0f, 0x05}, exit42...)),    // getpid
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	eachRuntime(t, func(t *testing.T, w *world) {
		for what, program := range programs {
			path := filepath.Join(dir, strings.ReplaceAll(what, " ", "-"))
			if err := os.WriteFile(path, program, 0o755); err != nil {
				t.Fatal(err)
			}
			if code := exitCode(exec.Command(path).Run()); code != 42 {
				t.Logf("this kernel does not run %s: %d", what, code)
				continue
			}
			out := w.OK(t, "run", "--image", "host", "--mount", dir+":/programs:ro", "--", "/bin/sh", "-c", "/programs/'"+filepath.Base(path)+"'; echo $?")
			want := strconv.Itoa(128 + int(unix.SIGSYS))
			if strings.Contains(what, "control") {
				want = "42"
			}
			if strings.TrimSpace(out) != want {
				t.Errorf("%s ended with %q, not %s", what, out, want)
			}
		}
	})
}

func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return e.ExitCode()
	}
	return -1
}

// elf64 returns a minimal static 64-bit program with the given code.
func elf64(code []byte) []byte {
	const at, headers = 0x400000, 64 + 56
	var b bytes.Buffer
	b.Write([]byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	for _, v := range []any{
		uint16(2), uint16(62), uint32(1), uint64(at + headers), uint64(64), uint64(0), uint32(0),
		uint16(64), uint16(56), uint16(1), uint16(0), uint16(0), uint16(0),
		uint32(1), uint32(5), uint64(0), uint64(at), uint64(at), uint64(headers + len(code)), uint64(headers + len(code)), uint64(0x1000),
	} {
		_ = binary.Write(&b, binary.LittleEndian, v)
	}
	return append(b.Bytes(), code...)
}

// elf32 returns a minimal static 32-bit program with the given code.
func elf32(code []byte) []byte {
	const at, headers = 0x400000, 52 + 32
	var b bytes.Buffer
	b.Write([]byte{0x7f, 'E', 'L', 'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	for _, v := range []any{
		uint16(2), uint16(3), uint32(1), uint32(at + headers), uint32(52), uint32(0), uint32(0),
		uint16(52), uint16(32), uint16(1), uint16(0), uint16(0), uint16(0),
		uint32(1), uint32(0), uint32(at), uint32(at), uint32(headers + len(code)), uint32(headers + len(code)), uint32(5), uint32(0x1000),
	} {
		_ = binary.Write(&b, binary.LittleEndian, v)
	}
	return append(b.Bytes(), code...)
}

// TestKernelFiles checks that files that reveal or change the host's kernel read as empty or fail, and cannot be written.
func TestKernelFiles(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		got := map[string]string{}
		w.probe(t, &got, append([]string{"write"}, hostSettings()...)...)
		checkNotWritten(t, got)
		got = map[string]string{}
		w.probe(t, &got, "read", "/proc/kcore", "/proc/kmsg", "/proc/keys", "/proc/timer_list", "/proc/sysrq-trigger", "/proc/kpageflags",
			"/proc/1/mem", "/dev/mem", "/dev/kmsg", "/dev/port", "/sys/firmware/dmi/entries/0-0/raw", "/proc/interrupts")
		for path, what := range got {
			if strings.HasPrefix(what, "read") {
				t.Errorf("%s: %s", path, what)
			}
		}
	})
}

// hostSettings returns kernel files that change the host, each with a harmless value.
func hostSettings() []string {
	all := []string{"/proc/sysrq-trigger=h", "/proc/sys/vm/drop_caches=1", "/sys/power/state=", "/sys/kernel/uevent_helper=", "/proc/irq/default_smp_affinity=3"}
	for _, p := range []string{
		"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hostname", "/proc/sys/kernel/randomize_va_space",
		"/proc/sys/vm/overcommit_memory", "/proc/sys/fs/file-max", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv4/ping_group_range",
		"/proc/sys/user/max_user_namespaces", "/proc/sys/kernel/sem", "/sys/kernel/mm/transparent_hugepage/enabled",
	} {
		if text, err := os.ReadFile(p); err == nil {
			all = append(all, p+"="+strings.TrimSpace(string(text)))
		}
	}
	queues, _ := filepath.Glob("/sys/block/*/queue/read_ahead_kb")
	for _, p := range queues[:min(2, len(queues))] {
		all = append(all, p+"=128")
	}
	return all
}

func checkNotWritten(t *testing.T, got map[string]string) {
	t.Helper()
	for what, became := range got {
		if !slices.Contains([]string{"EROFS", "EACCES", "EPERM", "ENOENT"}, became) {
			t.Errorf("write %s: %s", what, became)
		}
	}
}

// TestProcesses checks that a node sees and reaches only its own processes.
func TestProcesses(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		var seen []int
		w.probe(t, &seen, "pids")
		if len(seen) != 1 || seen[0] != 1 {
			t.Errorf("the node sees the processes %v", seen)
		}
		other := exec.Command("/bin/sleep", "60")
		if err := other.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
		pids := []string{strconv.Itoa(os.Getpid()), strconv.Itoa(other.Process.Pid), strconv.Itoa(os.Getppid())}
		got := map[string]string{}
		w.probe(t, &got, append([]string{"signal"}, pids...)...)
		for pid, became := range got {
			if became != "ESRCH" {
				t.Errorf("process %s of the host: %s", pid, became)
			}
		}
	})
}

// TestOwnKeyring checks that process 1 has its own session keyring, named after the node, and not its caller's. TestRefused checks
// that nodes cannot use keyrings.
func TestOwnKeyring(t *testing.T) {
	if _, err := os.Stat("/proc/keys"); err != nil {
		t.Skip("no keyrings in this kernel")
	}
	eachRuntime(t, func(t *testing.T, w *world) {
		name := w.up(t, "")
		keys, err := os.ReadFile("/proc/keys")
		if err != nil {
			t.Fatal(err)
		}
		// crun makes the keyring as the host's root, runc as the node's root, where it only shows in /proc/key-users.
		users, err := os.ReadFile("/proc/key-users")
		if err != nil {
			t.Fatal(err)
		}
		if user := fmt.Sprintf("%5d:", w.show(t, name).base(t)); !strings.Contains(string(keys), name+": empty") && !strings.Contains(string(users), user) {
			t.Errorf("no keyring of node %s among\n%s\nnor of user %s among\n%s", name, keys, user, users)
		}
	})
}
