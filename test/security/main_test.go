// Package security tests the promises of docs/SECURITY.md: it attacks nodes and the command line as a hostile node, image or user
// of the host would. It runs the built binary on this host's own kernel.
package security

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"berth/test/built"
	"berth/test/env"
	"berth/test/testkit"
)

// build holds the paths of the programs under test. All users can read them, because tests also run them as other users.
var build struct{ dir, berth, probeDir, probe string }

// worlds holds one world per runtime, made at first use.
var worlds = map[string]*world{}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if os.Geteuid() != 0 {
		fmt.Println("no root: the tests are skipped one by one")
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "berth-security-")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(dir)
	build.dir, build.berth = dir, filepath.Join(dir, "berth")
	build.probeDir = filepath.Join(dir, "tools")
	build.probe = filepath.Join(build.probeDir, "probe")
	err = errors.Join(os.Chmod(dir, 0o755), os.Mkdir(build.probeDir, 0o755))
	err = errors.Join(err, built.Probe(context.Background(), build.probe), built.Berth(context.Background(), build.berth))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer endWorlds()
	return m.Run()
}

// world is a Berth root that uses one runtime.
type world struct {
	env.Berth
	runtime string
}

// eachRuntime runs a test with every runtime that is installed.
func eachRuntime(t *testing.T, f func(t *testing.T, w *world)) {
	for _, name := range []string{"crun", "runc"} {
		t.Run(name, func(t *testing.T) { f(t, worldOf(t, name)) })
	}
}

// anyRuntime returns the world of crun if it is installed, else that of runc.
func anyRuntime(t *testing.T) *world {
	t.Helper()
	if _, err := exec.LookPath("crun"); err == nil {
		return worldOf(t, "crun")
	}
	return worldOf(t, "runc")
}

func worldOf(t *testing.T, runtime string) *world {
	t.Helper()
	testkit.NeedsRoot(t)
	if _, err := exec.LookPath(runtime); err != nil {
		t.Skipf("no %s on this host", runtime)
	}
	testkit.Final(t, "a promise of docs/SECURITY.md did not hold")
	if w := worlds[runtime]; w != nil {
		return w
	}
	w := &world{Berth: env.Berth{Program: build.berth, Root: filepath.Join(build.dir, "root-"+runtime), Cwd: "/"}, runtime: runtime}
	if _, stderr, code := w.Try("run", "--image", "host", "--", "/bin/true"); code != 0 {
		t.Fatalf("no node runs here: %s", stderr)
	}
	// Berth stores its choice of a runtime here; the tests set it.
	file := filepath.Join(w.Root, "lib/runtime.json")
	var choice map[string]any
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &choice)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, tried := range choice["tried"].([]any) {
		if r := tried.(map[string]any)["runtime"].(map[string]any); r["name"] == runtime {
			choice["best"] = r
		}
	}
	if text, err = json.Marshal(choice); err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	worlds[runtime] = w
	return w
}

// endWorlds removes what failed tests may have left, and waits for the keepers to end.
func endWorlds() {
	for _, w := range worlds {
		for _, node := range w.End() {
			fmt.Printf("left behind: node %s\n", node)
		}
	}
}

// host runs a command in a default node of image host, which sees the probe at /probe, and nothing else added.
func (w *world) host(t *testing.T, flags []string, command ...string) string {
	t.Helper()
	args := append([]string{"run", "--image", "host", "--mount", build.probeDir + ":/probe:ro"}, flags...)
	return w.OK(t, append(append(args, "--"), command...)...)
}

// probe runs the probe in a default node of image host and reads its answer.
func (w *world) probe(t *testing.T, answer any, args ...string) {
	t.Helper()
	decode(t, w.host(t, nil, append([]string{"/probe/probe"}, args...)...), answer)
}

// up starts a node and removes it when the test ends. The spec gets its name, and image host where it names none.
func (w *world) up(t *testing.T, spec string) (name string) {
	t.Helper()
	name = unique(t)
	if !strings.Contains(spec, "image:") {
		spec += "\nimage: host\nmounts: [{source: " + build.probeDir + ", target: /probe, read_only: true}]"
	}
	if !strings.Contains(spec, "command:") {
		spec += "\ncommand: [/bin/sleep, infinity]"
	}
	file := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(file, []byte("name: "+name+"\n"+spec+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Try("rm", "--force", name) })
	w.OK(t, "apply", "-f", file)
	return name
}

// in runs the probe in a running node.
func (w *world) in(t *testing.T, node string, answer any, args ...string) {
	t.Helper()
	decode(t, w.OK(t, append([]string{"exec", node, "--", "/probe/probe"}, args...)...), answer)
}

// shown is the part of berth show --json that the tests use.
type shown struct {
	PID   int    `json:"pid"`
	State string `json:"state"`
	IDs   string `json:"ids"`
	Exit  struct {
		Code int  `json:"code"`
		OOM  bool `json:"oom"`
	} `json:"exit"`
	Usage struct {
		PIDs int `json:"pids"`
	} `json:"usage"`
}

// base returns the host's id of the node's root.
func (s shown) base(t *testing.T) uint32 {
	t.Helper()
	var base uint32
	if _, err := fmt.Sscan(s.IDs, &base); err != nil {
		t.Fatalf("no id range in %q: %v", s.IDs, err)
	}
	return base
}

func (w *world) show(t *testing.T, node string) shown {
	t.Helper()
	var s shown
	decode(t, w.OK(t, "show", node, "--json"), &s)
	return s
}

func decode(t *testing.T, text string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), v); err != nil {
		t.Fatalf("the probe said %q: %v", text, err)
	}
}

var counter int

// unique returns a name that no other test or run uses.
func unique(t *testing.T) string {
	t.Helper()
	counter++
	return fmt.Sprintf("sec-%d-%d", os.Getpid(), counter)
}

// asUser makes a command run as an ordinary user of the host.
func asUser(cmd *exec.Cmd, uid uint32) *exec.Cmd {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, Groups: []uint32{}}}
	return cmd
}

const nobody = 65534

// plant makes a file on the host, with its folders. The test's cleanup removes what plant has made.
func plant(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	top := path
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(dir); err == nil {
			break
		}
		top = dir
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chmod(path, mode))
	}
	if err != nil {
		t.Fatal(err)
	}
}
