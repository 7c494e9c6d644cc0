package copy

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/testkit"
)

func first(a, _ string) string { return a }

func stringReader(s string) io.Reader { return strings.NewReader(s) }

// copiers returns the processes that copy files of node one of these tests.
func copiers() []int {
	return slices.Collect(maps.Keys(testkit.Processes("berth\x00copier\x00", `"Node":"one"`)))
}

// TestCopier looks at a copier at work: what it may do, and what the node sees of it.
func TestCopier(t *testing.T) {
	nodes(t)
	cmd := bench.Command("cp", "-", "one:/tmp")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	defer in.Close()
	var pid int
	status := func(key string) string {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		for line := range strings.Lines(string(text)) {
			if v, ok := strings.CutPrefix(line, key+":"); ok {
				return strings.Join(strings.Fields(v), " ")
			}
		}
		return ""
	}
	testkit.Eventually(t, "copier in the node's root", func() bool {
		for _, p := range copiers() {
			pid = p
		}
		root, _ := os.Readlink(fmt.Sprintf("/proc/%d/root", pid))
		_, err := os.Stat(fmt.Sprintf("/proc/%d/root/etc/inittab", pid))
		return pid != 0 && root != "" && err == nil
	})
	init := strings.TrimSpace(first(must(t, "show", "--json", "one")))
	_, after, _ := strings.Cut(init, `"pid": `)
	number, _, _ := strings.Cut(after, ",")
	link := func(pid, name string) string {
		s, _ := os.Readlink("/proc/" + pid + "/" + name)
		return s
	}
	own := strconv.Itoa(pid)
	if exe := link(own, "exe"); !strings.HasPrefix(exe, "/memfd:berth-copier") {
		t.Errorf("its program is %s", exe)
	}
	if u := link(own, "ns/user"); u == link(number, "ns/user") || u == link("self", "ns/user") || u == "" {
		t.Errorf("its user namespace %s is the node's or the host's", u)
	}
	ours, _ := os.ReadFile("/proc/" + own + "/uid_map")
	theirs, _ := os.ReadFile("/proc/" + number + "/uid_map")
	if string(ours) != string(theirs) || len(ours) == 0 {
		t.Errorf("its ids are %q, the node's %q", ours, theirs)
	}
	groups, _ := os.ReadFile("/proc/" + own + "/cgroup")
	if !strings.Contains(string(groups), "/one\n") && !strings.Contains(string(groups), "/one/helpers") {
		t.Errorf("it is in the groups\n%s", groups)
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/"+own+"/mem", &st); err != nil || st.Uid != 0 {
		t.Errorf("its memory belongs to %d (%v): it can be dumped", st.Uid, err)
	}
	if n := status("NSpid"); strings.Contains(n, " ") {
		t.Errorf("it is in a pid namespace of its own: %s", n)
	}
	if seen := first(must(t, "exec", "one", "--", "ps")); strings.Contains(seen, "copier") {
		t.Errorf("the node sees\n%s", seen)
	}
	// berth is killed: nothing of the copier stays.
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "end of the copier", func() bool { return len(copiers()) == 0 })
}

// TestSwappedLinks copies into a folder and out of one that a program of the node swaps for a link to the root all the time.
func TestSwappedLinks(t *testing.T) {
	nodes(t)
	marker := filepath.Join(t.TempDir(), "marker") // a path of the host
	if err := os.WriteFile(marker, []byte("of the host"), 0o644); err != nil {
		t.Fatal(err)
	}
	tree := filepath.Join(t.TempDir(), "tree")
	for i := range 100 {
		dir := filepath.Join(tree, strconv.Itoa(i%10))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	must(t, "exec", "one", "--", "mkdir", "-p", "/tmp/swap/tree")
	up := strings.Repeat("../", 20) + filepath.Dir(marker)
	swap := bench.Command("exec", "one", "--", "sh", "-c", `cd /tmp/swap; echo ready
while :; do for d in tree tree/3 tree/7; do mv $d away; ln -s "$0" $d; rm $d; mv away $d; done; done`, up)
	out, err := swap.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := swap.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = swap.Process.Signal(syscall.SIGTERM)
		_ = swap.Wait()
	}()
	if _, err := io.ReadFull(out, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadDir(filepath.Dir(marker))
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for i := range 8 {
		if bench.Command("cp", tree, "one:/tmp/swap").Run() != nil {
			refused++
		}
		to := filepath.Join(t.TempDir(), strconv.Itoa(i))
		if bench.Command("cp", "one:/tmp/swap", to).Run() != nil {
			refused++
		}
		_ = filepath.WalkDir(to, func(path string, d fs.DirEntry, err error) error { // follows no link: one that was copied leads to the host
			if err == nil && d.Name() == "marker" {
				t.Errorf("a file of the host came out of the node: %s", path)
			}
			return nil
		})
	}
	t.Logf("%d of 16 copies were refused", refused)
	after, err := os.ReadDir(filepath.Dir(marker))
	if err != nil || len(after) != len(before) {
		t.Errorf("the host's folder has %d files now, %d before (%v)", len(after), len(before), err)
	}
}

// TestKilled kills berth cp at random moments, in both directions. No process stays, and no half file has its name.
func TestKilled(t *testing.T) {
	nodes(t)
	const size = 8 << 20
	tree := filepath.Join(t.TempDir(), "tree")
	if err := os.Mkdir(tree, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 12 {
		if err := os.WriteFile(filepath.Join(tree, strconv.Itoa(i)), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	must(t, "cp", tree, "one:/tmp/whole")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	dice := rand.New(rand.NewPCG(seed, 0))
	complete := 0
	for i := range 12 {
		to := filepath.Join(t.TempDir(), "out")
		args := []string{"cp", "one:/tmp/whole", to}
		if i%2 == 0 {
			must(t, "exec", "one", "--", "rm", "-rf", "/tmp/part")
			args = []string{"cp", tree, "one:/tmp/part"}
		}
		cmd := bench.Command(args...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(dice.IntN(120)) * time.Millisecond) // the moment of the kill
		_ = cmd.Process.Kill()
		if cmd.Wait() == nil {
			complete++
		}
		testkit.Eventually(t, "end of the copier", func() bool { return len(copiers()) == 0 })
		if i%2 == 0 {
			list := first(must(t, "exec", "one", "--", "sh", "-c", "mkdir -p /tmp/part; cd /tmp/part; find . -type f | while read -r f; do stat -c '%s %n' $f; done"))
			for line := range strings.Lines(list) {
				if !strings.HasPrefix(line, strconv.Itoa(size)+" ") || strings.Contains(line, ".berth-") {
					t.Errorf("half a file in the node: %s", line)
				}
			}
			continue
		}
		files, _ := os.ReadDir(to)
		for _, f := range files {
			if info, err := f.Info(); err != nil || info.Size() != size {
				t.Errorf("half a file on the host: %s", f.Name())
			}
		}
	}
	t.Logf("%d of 12 copies were complete before the kill", complete)
}
