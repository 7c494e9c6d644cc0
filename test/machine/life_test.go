package machine

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/test/testkit"
)

// spec writes the spec of a machine and returns its file.
func spec(t *testing.T, name, more string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name+".yaml")
	text := fmt.Sprintf(`name: %s
kind: machine
image: file:%s
command: [sh, -c, "echo begun; trap 'echo bye; exit 3' TERM; while :; do sleep 0.1; done"]
machine: {memory: 256MiB, kernel: %s}
memory: {max: 600MiB}
delta: {in: memory}
stop: {grace: 60s}
%s`, name, bench.image, bench.kernel, more)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { berth(t, "", "rm", "--force", name) })
	return path
}

// TestMachine is the life of a machine: three boots, and one that is cut short.
func TestMachine(t *testing.T) {
	needs(t)
	file := spec(t, "m1", "env: {OF: node}\n")
	must(t, "apply", "-f", file)
	if out := must(t, "show", "m1"); !strings.Contains(out, "(emulated CPU)") || !strings.Contains(out, "memory.max  600MiB  600MiB") {
		t.Errorf("show says:\n%s", out)
	}
	numbers := strings.Repeat("0123456789abcde\n", 40_000) // several windows of a stream
	for _, c := range []struct {
		input string
		args  []string
		out   string
		code  int
	}{
		{"", []string{"m1", "--", "sh", "-c", "hostname; echo $OF; exit 5"}, "m1\nnode\n", 5},
		{numbers, []string{"m1", "--", "cat"}, numbers, 0},
		{"", []string{"-u", "daemon", "m1", "--", "id"}, "uid=1(daemon) gid=1(daemon) groups=1(daemon)\n", 0},
		{"", []string{"-u", "1234:99", "-w", "/tmp", "-e", "A=b", "m1", "--", "sh", "-c", "id -u; id -g; pwd; echo $A"}, "1234\n99\n/tmp\nb\n", 0},
		{"", []string{"m1", "--", "/no/such/program"}, "", 127},
		{"", []string{"m1", "--", "/etc/passwd"}, "", 126},
		{"", []string{"m1", "--", "sh", "-c", "kill -9 $$"}, "", 128 + 9},
	} {
		if out, code := berth(t, c.input, append([]string{"exec"}, c.args...)...); out != c.out || code != c.code {
			t.Errorf("exec %q: exit code %d, want %d; %d bytes, want %d: %.200q", c.args, code, c.code, len(out), len(c.out), out)
		}
	}
	if _, code := berth(t, "", "cp", "m1:/etc/passwd", t.TempDir()); code != 3 {
		t.Errorf("cp: exit code %d, want 3", code)
	}
	execInPipes(t)
	seenFromOutside(t)
	for pid := range testkit.Processes("\x00"+bench.Root+"\x00", "\x00keeper\x00") {
		testkit.Must(t, unix.Kill(pid, unix.SIGKILL))
	}
	must(t, "pause", "m1")
	must(t, "unpause", "m1")
	if out := must(t, "exec", "m1", "--", "echo", "on"); out != "on\n" {
		t.Errorf("after a pause and without the keeper, exec says %q", out)
	}
	must(t, "pause", "m1")
	must(t, "stop", "m1")
	if out := must(t, "ls"); !strings.Contains(out, "stopped 3") {
		t.Errorf("after stop, ls says:\n%s", out)
	}
	if out := must(t, "logs", "m1"); !strings.HasPrefix(out, "begun\n") || !strings.HasSuffix(out, "bye\n") {
		t.Errorf("logs say %q", out)
	}

	if out, code := berth(t, "panic\n", "run", "--image", "file:"+bench.image, "--machine", "kernel="+bench.kernel+",memory=256MiB", "--", "sh", "-c", "read -r word; test \"$word\" = panic && echo c > /proc/sysrq-trigger; exit 9"); code != 134 {
		t.Errorf("a machine whose kernel panics: exit code %d: %s", code, out)
	}

	must(t, "start", "m1")
	_, emulator := processes(t)
	if err := unix.Kill(emulator, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the machine has ended", func() bool { return strings.Contains(must(t, "ls"), "exited 137") })

	boots := bench.Command("start", "m1")
	testkit.Must(t, boots.Start())
	testkit.Eventually(t, "the machine boots", func() bool {
		live, _ := os.ReadFile(filepath.Join(bench.Root, "run/nodes/m1/journal"))
		return strings.Contains(string(live), "machine.start")
	})
	must(t, "rm", "--force", "m1")
	if err := boots.Wait(); err == nil {
		t.Error("rm --force waits until a machine has booted")
	}
	for _, dir := range []string{"run/nodes", "lib/nodes"} {
		if left, _ := os.ReadDir(filepath.Join(bench.Root, dir)); len(left) > 0 {
			t.Errorf("%s holds %v", dir, left)
		}
	}
}

// execInPipes: what a shell promises of a command among others holds for exec.
func execInPipes(t *testing.T) {
	t.Helper()
	for script, want := range map[string]string{
		"printf 'a\nb\n' | while read -r n; do exec_m1 true; echo $n; done": "a\nb\n",
		"exec_m1 yes | head -n 1":                                                         "y\n",
		"exec_m1 sh -c 'echo a; echo b >&2; echo c; echo d >&2' 2>&1":                     "a\nb\nc\nd\n",
		"exec_m1 sh -c 'while :; do sleep 1000; done & yes >/dev/null & exit 4'; echo $?": "4\n",
	} {
		cmd := exec.Command("sh", "-c", `exec_m1() { "$BERTH" --root "$ROOT" exec m1 -- "$@"; }; `+script)
		cmd.Env = append(os.Environ(), "BERTH="+bench.Program, "ROOT="+bench.Root)
		cmd.Stderr = os.Stderr
		if out, err := cmd.Output(); string(out) != want || err != nil {
			t.Errorf("%s: %q, want %q: %v", script, out, want, err)
		}
	}
}

// TestInitSystem: an init system is process 1 of the machine, and is asked to end as it understands it.
func TestInitSystem(t *testing.T) {
	needs(t)
	file := spec(t, "m3", "")
	text, err := os.ReadFile(file)
	testkit.Must(t, err)
	for _, line := range strings.SplitAfter(string(text), "\n") {
		if strings.HasPrefix(line, "command:") {
			text = []byte(strings.Replace(string(text), line, "command: [/sbin/init]\nno_new_privileges: true\n", 1))
		}
	}
	testkit.Must(t, os.WriteFile(file, text, 0o600))
	must(t, "apply", "-f", file)
	out := must(t, "exec", "m3", "--", "sh", "-c", "readlink /proc/1/exe; grep NoNewPrivs /proc/1/status; ls /proc/self/fd; tr '\\0' '\\n' </proc/1/environ | grep ^PATH= | head -c 5")
	for _, want := range []string{"/bin/busybox\n", "NoNewPrivs:\t1\n", "\n0\n1\n2\n3\nPATH="} { // ls has the folder open as 3
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in what process 1 looks like:\n%s", want, out)
		}
	}
	must(t, "stop", "m3")
	if out := must(t, "ls"); !strings.Contains(out, "stopped 0") {
		t.Errorf("after stop, ls says:\n%s", out)
	}
}

// processes returns the monitor of m1 and its emulator.
func processes(t *testing.T) (monitor, emulator int) {
	t.Helper()
	monitor = monitorOf(t, "m1")
	return monitor, childOf(t, monitor)
}

// seenFromOutside checks what the monitor and the emulator have of the host.
func seenFromOutside(t *testing.T) {
	t.Helper()
	monitor, emulator := processes(t)
	complaints, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/2", emulator)) // the monitor keeps the last of them
	testkit.Must(t, err)
	for pid, wants := range map[int][]string{
		monitor:  {"CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"},
		emulator: {"CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"},
	} {
		at := func(name string) string { return fmt.Sprintf("/proc/%d/%s", pid, name) }
		status, err := os.ReadFile(at("status"))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range wants {
			if !strings.Contains(string(status), w+"\n") {
				t.Errorf("process %d lacks %q:\n%s", pid, w, status)
			}
		}
		if strings.Contains(string(status), "Uid:\t0\t") {
			t.Errorf("process %d is root", pid)
		}
		if files, err := os.ReadDir(at("root")); err != nil || len(files) > 0 {
			t.Errorf("the root of process %d holds %v %v", pid, files, err)
		}
		if mounts, _ := os.ReadFile(at("mountinfo")); strings.Count(string(mounts), "\n") != 1 {
			t.Errorf("process %d sees mounts:\n%s", pid, mounts)
		}
		if net, _ := os.ReadFile(at("net/dev")); strings.Count(string(net), ":") != 1 {
			t.Errorf("process %d sees interfaces:\n%s", pid, net)
		}
		fds, err := os.ReadDir(at("fd"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range fds {
			to, err := os.Readlink(filepath.Join(at("fd"), f.Name()))
			own := err != nil || strings.HasPrefix(to, "anon_inode:") || strings.HasPrefix(to, "socket:") || strings.HasPrefix(to, "/memfd:berth-machine") ||
				to == bench.image || to == complaints || to == filepath.Join(bench.Root, "run/nodes/m1/log") || pid == monitor && (to == os.DevNull || strings.Contains(to, "/cpu.")) // Go's runtime reads its own limit
			if !own {
				t.Errorf("process %d has descriptor %s: %s", pid, f.Name(), to)
			}
		}
	}
}

// TestRefusals: what a machine cannot have, and what this version does not do for machines.
func TestRefusals(t *testing.T) {
	needs(t)
	for more, want := range map[string]int{
		"sysctls: {net.core.somaxconn: 9}\n":          2,
		"users: [{from: 5000, count: 1, as: same}]\n": 2,
		"scratch: [{target: /a, size: 1GiB}]\n":       4, // no such pool
		"devices: [{path: /dev/net/tun}]\n":           3,
		"mounts: [{source: /srv, target: /srv}]\n":    3,
		"network: [{mode: bridge, dhcp: true}]\n":     3,
		"network: [{mode: macvlan, parent: lo}]\n":    3,
	} {
		if _, code := berth(t, "", "plan", "-f", spec(t, "m2", more)); code != want {
			t.Errorf("%s: exit code %d, want %d", more, code, want)
		}
	}
}
