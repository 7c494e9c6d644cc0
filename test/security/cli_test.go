package security

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"berth/internal/image/imagetest"
	"berth/test/env"
	"berth/test/testkit"
)

// TestNamesStayInside checks that no node name on the command line leads to a path outside of the folder of nodes.
func TestNamesStayInside(t *testing.T) {
	w := anyRuntime(t)
	// Targets for names with "..": a node of another root, and a folder that looks like a node.
	name := w.up(t, "")
	outside := t.TempDir()
	copyFile(t, filepath.Join(w.Root, "lib/nodes", name, "spec.json"), filepath.Join(outside, "spec.json"))
	rel, err := filepath.Rel(filepath.Join(w.Root, "lib/nodes"), outside)
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 100_000)
	for _, bad := range []string{rel, "../nodes/" + name, "./" + name, name + "/", name + "/.", "..", ".", "", "/", name + "\n", "-", long, name + "/delta", "../../lib/nodes/" + name} {
		for _, command := range [][]string{
			{"show", bad},
			{"show", "--spec", bad},
			{"logs", bad},
			{"start", bad},
			{"stop", bad},
			{"rm", bad},
			{"rm", "--force", bad},
			{"set", bad, "pids=100"},
			{"exec", bad, "--", "/bin/true"},
			{"image", "rm", bad},
			{"run", "--image", "host", "--name", bad + "/x", "--", "/bin/true"},
		} {
			stdout, stderr, code := w.Try(command...)
			if code == 0 || stdout != "" {
				t.Errorf("berth %.80q: exit code %d: %.200s%.200s", command, code, stdout, stderr)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(outside, "spec.json")); err != nil {
		t.Error(err)
	}
	if w.show(t, name).State != "running" {
		t.Error("the node does not run any more")
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestHostileSpecs checks that berth refuses hostile files of -f with a message. It reads only a bounded part of each.
func TestHostileSpecs(t *testing.T) {
	w := anyRuntime(t)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	sparse := write("sparse", "")
	if err := os.Truncate(sparse, 1<<40); err != nil {
		t.Fatal(err)
	}
	node := "name: a\nimage: host\ncommand: [x]\n"
	bomb := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for i := 'b'; i < 'k'; i++ {
		bomb += fmt.Sprintf("%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n", i, i, i-1, i-1, i-1, i-1, i-1, i-1, i-1, i-1, i-1)
	}
	const most = 1 << 20
	for _, file := range []string{
		dir, "/dev/zero", "/dev/null", "/proc/self/mem", filepath.Join(dir, "none"), sparse,
		write("bomb", bomb), write("deep flow", strings.Repeat("[", most)), write("deep map", strings.Repeat("{a: ", most/4)),
		write("deep list", strings.Repeat("- ", most/2)), write("documents", strings.Repeat("---\n", most/4)), write("keys", strings.Repeat("? ", most/2)),
		write("nodes", strings.Repeat("name: a\n---\n", most/120)), write("quote", node+`hostname: "`+strings.Repeat(`\x41`, most/5)), write("tags", "!!python/object/apply:os.system [id]"),
		write("merge", "base: &b {name: a}\n<<: *b\n"), write("long word", node+"hostname: "+strings.Repeat("x", most-100)),
		write("many mounts", node+"mounts: ["+strings.Repeat("{source: /a, target: /b},", most/30)+"]"), write("number", node+"pids: "+strings.Repeat("9", 10_000)),
		write("escapes", "name: \"\\u001b[2J\"\nimage: host\n"), write("nul", "name: a\x00b\n"), write("utf16", "\xff\xfen\x00a\x00m\x00e\x00"),
	} {
		for _, command := range []string{"plan", "apply", "run"} {
			stdout, stderr, code := w.Try(command, "-f", file)
			want := map[string]int{"plan": 2, "apply": 2, "run": 125}[command]
			if code != want || stdout != "" || stderr == "" || strings.Contains(stderr, "goroutine") {
				t.Errorf("%s -f %s: exit code %d: %.300s%.300s", command, file, code, stdout, stderr)
			}
			if odd := control(stderr); odd != "" {
				t.Errorf("%s -f %s: its message holds %q", command, file, odd)
			}
		}
	}
}

// TestSpecFromAPipe checks that SIGINT ends berth while it waits for a pipe without a writer.
func TestSpecFromAPipe(t *testing.T) {
	w := anyRuntime(t)
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := w.Command("plan", "-f", fifo)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	looks := 0
	testkit.Eventually(t, "berth waits for a writer", func() bool { // one of its threads opens a file, and still does
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", cmd.Process.Pid))
		opens := slices.ContainsFunc(tasks, func(task string) bool {
			text, _ := os.ReadFile(task)
			return strings.HasPrefix(string(text), fmt.Sprint(unix.SYS_OPENAT, " "))
		})
		if looks++; !opens {
			looks = 0
		}
		return looks == 5
	})
	_ = cmd.Process.Signal(syscall.SIGINT)
	kill := time.AfterFunc(testkit.Bound(), func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != 2 {
		t.Errorf("it ended with %v", cmd.ProcessState)
	}
}

// control returns the text from the first character that a terminal would interpret, "" if there is none.
func control(text string) string {
	for i, r := range text {
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)) {
			return text[i:min(len(text), i+20)]
		}
	}
	return ""
}

// evil clears the screen, renames the window, and forges a line on a terminal that interprets it.
const evil = "\x1b[2J\x1b]0;owned\x07\r\u009b31m\u202e\nforged  running  1"

// TestTerminalInjection checks that berth's output never contains control characters or forged lines of specs, images or nodes.
func TestTerminalInjection(t *testing.T) {
	w := anyRuntime(t)
	look := func(args ...string) {
		t.Helper()
		stdout, stderr, _ := w.Try(args...)
		if odd := control(stdout + stderr); odd != "" {
			t.Errorf("berth %s: %q", args[0], odd)
		}
		for line := range strings.Lines(stdout + stderr) {
			if strings.HasPrefix(line, "forged") {
				t.Errorf("berth %s: %q", args[0], line)
			}
		}
	}
	command, err := json.Marshal([]string{"/bin/sleep", "10000", evil})
	if err != nil {
		t.Fatal(err)
	}
	word, _ := json.Marshal("/bin/" + evil)
	dir := t.TempDir()
	for i, text := range []string{
		"name: evil\nimage: host\ncommand: " + string(command),
		"name: evil\nimage: host\ncommand: [" + string(word) + "]",
		"name: " + string(word) + "\nimage: dir:/x\nhostname: " + string(word),
		string(word) + ": x\nname: a",
		"name: evil\nimage: " + string(word),
		"name: evil\nimage: host\ncommand: [/bin/true]\nmounts: [{source: " + string(word) + ", target: /x}]",
	} {
		file := filepath.Join(dir, fmt.Sprint(i, ".yaml"))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		look("plan", "-f", file)
		look("plan", "--json", "-f", file)
		look("apply", "-f", file)
		look("run", "-f", file)
		look("ls")
		look("ls", "--json")
		look("show", "evil")
		look("show", "--json", "evil")
		look("show", "--spec", "evil")
		w.Try("rm", "--force", "evil")
	}
	look("run", "--image", "host", "--name", evil, "--", "/bin/true")
	look("run", "--image", evil)
	look("show", evil)
	look("set", "x", evil)
	look(evil)

	// An image: its name, its configuration, the interpreter of its program.
	script := imagetest.Layer(t, imagetest.Entry{Name: "x", Mode: 0o755, Data: "#!/" + evil[:20] + "\n"}, imagetest.Entry{Name: "d\x1b[2J", Type: tar.TypeDir},
		imagetest.Entry{Name: "e", Mode: 0o755, Data: string(elfWithLoader("/lib/" + evil))})
	for i, c := range []imagetest.Config{{Cmd: []string{"/x", evil}, User: evil}, {Cmd: []string{"/x"}}, {Cmd: []string{"/e"}}, {Cmd: []string{evil}, WorkingDir: "/" + evil, Env: []string{"A=" + evil}}} {
		img := imagetest.Image{Config: c, Layers: [][]byte{script}}
		look("image", "import", imagetest.DockerArchive(t, "evil"+fmt.Sprint(i)+evil, img), "evil-"+fmt.Sprint(i))
		look("image", "import", imagetest.DockerArchive(t, "evil"+evil, img))
		look("run", "--image", "oci:evil-"+fmt.Sprint(i))
		look("image", "ls")
		look("image", "ls", "--json")
	}
	for i := range 4 {
		w.Try("image", "rm", "evil-"+fmt.Sprint(i))
	}
}

// elfWithLoader returns the head of an ELF program with the given loader.
func elfWithLoader(loader string) []byte {
	program := elf64(append([]byte(loader), 0))
	program[64] = 3         // PT_INTERP instead of PT_LOAD
	program[64+8] = 64 + 56 // offset of the name
	program[64+32] = byte(len(loader) + 1)
	program[64+33] = 0
	return program
}

// TestLogsOnATerminal checks that berth logs escapes control characters on a terminal and not in a file.
func TestLogsOnATerminal(t *testing.T) {
	w := anyRuntime(t)
	name := w.up(t, `command: [/usr/bin/printf, 'a\033[2Jb\233c\n']`)
	testkit.Eventually(t, "the end of the node", func() bool { return w.show(t, name).State == "exited" })
	if out := w.OK(t, "logs", name); out != "a\x1b[2Jb\x9bc\n" {
		t.Errorf("a file gets %q", out)
	}
	var seen bytes.Buffer
	tty, master := testkit.Terminal(t)
	cmd := w.Command("logs", name)
	cmd.Stdout, cmd.Stderr = tty, tty
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	tty.Close()
	_, _ = io.Copy(&seen, master) // ends with EIO
	if got := strings.ReplaceAll(seen.String(), "\r", ""); got != `a\u001b[2Jb\x9bc`+"\n" {
		t.Errorf("a terminal gets %q", got)
	}
}

// TestOrdinaryUser checks that a user who is not root gets an error message.
func TestOrdinaryUser(t *testing.T) {
	w := anyRuntime(t)
	root := filepath.Join(t.TempDir(), "root")
	if err := os.Chmod(filepath.Dir(root), 0o777); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"run", "--image", "host", "--", "/bin/true"}, {"apply", "-f", "/dev/stdin"}, {"repair"}} {
		for _, dir := range []string{root, w.Root} {
			cmd := asUser(exec.Command(build.berth, append([]string{"--root", dir}, args...)...), nobody)
			cmd.Stdin = strings.NewReader("name: a\nimage: host\ncommand: [/bin/true]\n")
			_, stderr, code := env.Try(cmd)
			if code == 0 || strings.Contains(stderr, "goroutine") || !strings.Contains(stderr, "root") && !strings.Contains(stderr, "permission denied") {
				t.Errorf("berth --root %s %s: exit code %d: %s", dir, args[0], code, stderr)
			}
		}
	}
}
