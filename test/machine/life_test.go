package machine

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/sys/treetar/treetest"
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

// shows reports whether show says that a limit is asked for and in force.
func shows(out, key, value string) bool {
	return regexp.MustCompile(`(?m)^ *` + regexp.QuoteMeta(key) + ` +` + value + ` +` + value + ` `).MatchString(out)
}

// TestMachine is the life of a machine: three boots, and one that is cut short.
func TestMachine(t *testing.T) {
	needs(t)
	file := spec(t, "m1", "env: {OF: node}\n")
	must(t, "apply", "-f", file)
	if out := must(t, "show", "m1"); !strings.Contains(out, "(emulated CPU)") || !shows(out, "memory.max", "600MiB") {
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
	execInPipes(t)
	execOnTerminal(t)
	copyFiles(t)
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
	if _, code := berth(t, "", "cp", "m1:/etc/passwd", t.TempDir()); code != 5 {
		t.Errorf("cp from a stopped machine: exit code %d, want 5", code)
	}
	if out := must(t, "logs", "m1"); !strings.HasPrefix(out, "begun\n") || !strings.HasSuffix(out, "bye\n") {
		t.Errorf("logs say %q", out)
	}

	if out, code := berth(t, "panic\n", "run", "--image", "file:"+bench.image, "--machine", "kernel="+bench.kernel+",memory=256MiB", "--", "sh", "-c", "read -r word; test \"$word\" = panic && echo c > /proc/sysrq-trigger; exit 9"); code != 134 {
		t.Errorf("a machine whose kernel panics: exit code %d: %s", code, out)
	}

	runOnTerminal(t)

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

// onTerminal starts berth on a terminal, 33 by 99. ended waits for its exit code.
func onTerminal(t *testing.T, args ...string) (tty, master *os.File, s *testkit.Screen, ended func() int) {
	t.Helper()
	tty, master = testkit.Terminal(t)
	testkit.Resize(t, tty, 33, 99)
	s = testkit.Watch(t, master)
	before, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	testkit.Must(t, err)
	cmd := bench.Command(args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	testkit.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return tty, master, s, func() int {
		_ = cmd.Wait()
		if after, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS); err != nil || *after != *before {
			t.Errorf("the mode of the user's terminal was not given back: %v", err)
		}
		return cmd.ProcessState.ExitCode()
	}
}

// types types on a terminal. In what is typed the words that the test waits for are in two parts, as the terminal repeats it.
func types(t *testing.T, master *os.File, line string) {
	t.Helper()
	_, err := master.WriteString(line)
	testkit.Must(t, err)
}

// execOnTerminal: exec -it gives a shell that one can work with.
func execOnTerminal(t *testing.T) {
	t.Helper()
	tty, master, s, ended := onTerminal(t, "exec", "-it", "m1", "--", "sh")
	types(t, master, "stty size; tty; echo $TERM\r")
	s.Shows("33 99\r\n/dev/pts/0\r\nxterm\r\n")
	testkit.Resize(t, tty, 44, 300)
	types(t, master, `until [ "$(stty size)" = "44 300" ]; do sleep 0.1; done; echo re""sized`+"\r")
	s.Shows("resized")
	types(t, master, `sh -c 'trap "echo stop""ped; exit 1" INT; echo rea""dy; while :; do sleep 0.1; done'`+"\r")
	s.Shows("ready")
	types(t, master, "\x03")
	s.Shows("stopped")
	types(t, master, "exit 6\r")
	if code := ended(); code != 6 {
		t.Errorf("exec -it: exit code %d", code)
	}
}

// copyFiles: what cp and export promise of files holds for a machine's.
func copyFiles(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	testkit.Must(t, os.MkdirAll(at("tree/sub"), 0o750))
	testkit.Must(t, os.WriteFile(at("tree/a\xffb"), []byte(strings.Repeat("0123456789abcde\n", 20_000)), 0o640))
	testkit.Must(t, os.Chown(at("tree/a\xffb"), 1000, 99))
	testkit.Must(t, os.Link(at("tree/a\xffb"), at("tree/sub/same")))
	testkit.Must(t, os.Symlink("/no/such", at("tree/link")))
	testkit.Must(t, os.WriteFile(at("tree/hole"), []byte("end"), 0o600))
	testkit.Must(t, os.Truncate(at("tree/hole"), 8<<20))
	want := treetest.Read(t, at("tree"), treetest.Whole())
	must(t, "cp", "-a", at("tree"), "m1:/tmp/a\xff")
	must(t, "cp", "-a", "m1:/tmp/a\xff", at("back"))
	if d := cmp.Diff(want, treetest.Read(t, at("back"), treetest.Whole())); d != "" {
		t.Errorf("into the machine and out again (-want +got):\n%s", d)
	}
	stream, err := exec.Command("tar", "-C", at("tree"), "-c", "link").Output()
	testkit.Must(t, err)
	if _, code := berth(t, string(stream), "cp", "-", "m1:/tmp"); code != 0 {
		t.Errorf("cp of a stream: exit code %d", code)
	}
	list := exported(t, "m1")
	for _, name := range []string{"bin/busybox", "proc/", "tmp/link", `tmp/a\377/sub/same`} {
		if !slices.Contains(list, name) {
			t.Errorf("%q is not in what is exported: %q", name, list)
		}
	}
	if slices.Contains(list, "proc/1/") {
		t.Errorf("what is mounted is exported: %q", list)
	}
	r, w, err := os.Pipe()
	testkit.Must(t, err)
	testkit.Must(t, r.Close())
	cmd := bench.Command("cp", "m1:/bin", "-")
	cmd.Stdout = w
	said := &bytes.Buffer{}
	cmd.Stderr = said
	_ = cmd.Run()
	testkit.Must(t, w.Close())
	if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(said.String(), "the reader of the copy went away") {
		t.Errorf("cp to a reader who has gone: %v: %s", cmd.ProcessState, said)
	}
	if _, code := berth(t, "", "cp", "m1:/tmp/link", at("none")); code != 4 { // it leads nowhere
		t.Errorf("cp of what is not there: exit code %d", code)
	}
}

// exported lists what export writes.
func exported(t *testing.T, node string) []string {
	t.Helper()
	names := exec.Command("tar", "-t")
	names.Stdin = strings.NewReader(must(t, "export", node))
	list, err := names.Output()
	testkit.Must(t, err)
	return strings.Split(string(list), "\n")
}

// runOnTerminal: the command of run -it finds a terminal in its size.
func runOnTerminal(t *testing.T) {
	t.Helper()
	_, master, s, ended := onTerminal(t, "run", "-it", "--image", "file:"+bench.image, "--machine", "kernel="+bench.kernel+",memory=256MiB", "--", "sh", "-c", "stty size; tty; stty -echo; echo ready; read -r x; echo got $x; exit 7")
	s.Shows("33 99\r\n/dev/pts/0\r\nready\r\n")
	types(t, master, "word\r")
	s.Shows("got word\r\n")
	if code := ended(); code != 7 {
		t.Errorf("run -it: exit code %d", code)
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
	said, _ := berth(t, "", "stop", "m3")
	if out := must(t, "ls"); !strings.Contains(out, "stopped 0") {
		t.Errorf("stop said %q; after it ls says:\n%s\nevents:\n%s\nthe machine said:\n%s", said, out, must(t, "events", "m3"), must(t, "logs", "m3"))
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
		"sysctls: {net.core.somaxconn: 9}\n":                                      2,
		"users: [{from: 5000, count: 1, as: same}]\n":                             2,
		"scratch: [{target: /a, size: 1GiB}]\n":                                   4, // no such pool
		"devices: [{path: /dev/net/tun}]\n":                                       3,
		"mounts: [{source: \"h:/srv\", target: /srv, gateway: nfs, via: host}]\n": 3,
		"mounts: [{source: /no/such/folder, target: /srv}]\n":                     4,
		"network: [{mode: bridge, dhcp: true}]\n":                                 3,
		"network: [{mode: macvlan, parent: lo}]\n":                                3,
	} {
		if _, code := berth(t, "", "plan", "-f", spec(t, "m2", more)); code != want {
			t.Errorf("%s: exit code %d, want %d", more, code, want)
		}
	}
}
