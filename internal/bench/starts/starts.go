// Package starts prepares the runtimes whose starts are measured, and times their commands.
package starts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth/internal/bench/result"
	"berth/internal/bench/side"
	"berth/internal/spec"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/refuse"
)

// Starter is a runtime whose starts are measured.
type Starter struct {
	Name, Title string
	Once        [][]string // commands that run a command in a node and remove the node
	Lasting     [][]string // commands that make a node, start and remove it
	Undo        []string   // removes the node of Lasting where one of these failed; nil: nothing does
	Emulated    string     // see result.Arm
	Slow        bool       // one start takes seconds
}

// How long a node, and a machine, may take to start and end.
const (
	Limit        = time.Minute
	MachineLimit = 3 * time.Minute
)

// Took runs the commands one after the other, within limit, and returns how long they took together, in milliseconds.
func Took(ctx context.Context, commands [][]string, limit time.Duration) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var sum time.Duration
	for _, argv := range commands {
		start := time.Now()
		if err := quietly(ctx, argv); err != nil {
			return 0, err
		}
		sum += time.Since(start)
	}
	return float64(sum.Microseconds()) / 1e3, nil
}

// quietly runs a command. It does not wait for the end of its output, because a node may hold that open.
func quietly(ctx context.Context, argv []string) error {
	said, err := os.CreateTemp("", "berth-bench-")
	if err != nil {
		return err
	}
	defer said.Close()
	if err := os.Remove(said.Name()); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stderr = said
	if err := cmd.Run(); err != nil {
		text := make([]byte, 300)
		n, _ := said.ReadAt(text, 0)
		return fmt.Errorf("run %s %s: %w: %s", filepath.Base(argv[0]), argv[len(argv)-1], err, text[:n])
	}
	return nil
}

// Berth is the program that makes nodes.
type Berth struct {
	Self string   // its path
	Root []string // flags that choose where it keeps its state
}

// Command is a command of it.
func (b Berth) Command(args ...string) []string {
	return append(append([]string{b.Self}, b.Root...), args...)
}

// Starter prepares a container: it writes a node's spec into dir.
func (b Berth) Starter(dir, root string) (Starter, error) {
	name := nodeName("")
	file := filepath.Join(dir, "node.yaml")
	text := "name: " + name + "\nimage: dir:" + root + "\ncommand: [/bin/sleep, \"1000\"]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return Starter{}, fmt.Errorf("write a node's spec: %w", err)
	}
	return Starter{
		Name: "berth", Title: "berth",
		Once:    [][]string{b.Command("run", "--image", "dir:"+root, "--", "/bin/true")},
		Lasting: [][]string{b.Command("apply", "-f", file), b.Command("rm", "--force", name)},
		Undo:    b.Command("rm", "--force", name),
	}, nil
}

// nodeName is the name of a node whose start is measured, with what tells it from its others.
func nodeName(which string) string { return fmt.Sprintf("bench-%d-start%s", os.Getpid(), which) }

// ofMachine is in the name of the machine.
const ofMachine = "-machine"

// RemoveLater returns a function that removes what starts that were interrupted left of Berth's nodes. If this process is killed, they are
// removed, too.
func (b Berth) RemoveLater() (undo func() error, err error) {
	var script strings.Builder
	for _, which := range []string{"", ofMachine} {
		var words []string
		for _, w := range b.Command("rm", "--force", nodeName(which)) {
			words = append(words, side.Quoted(w))
		}
		// There is none, as a rule.
		fmt.Fprintf(&script, "said=$(%s 2>&1); rc=$?; [ $rc = 0 ] || [ $rc = %d ] || { echo \"$said\" >&2; failed=1; }; ", strings.Join(words, " "), refuse.NotFound)
	}
	return side.LastWill(script.String() + "[ -z \"$failed\" ]")
}

// OCIStarter prepares runc or crun: bundles as runc spec makes them, without a user namespace.
func OCIStarter(runtime, dir, root string) (Starter, error) {
	path, err := exec.LookPath(runtime)
	if err != nil {
		return Starter{}, errors.New("it is not installed")
	}
	once, err := runtimeBundle(path, filepath.Join(dir, runtime+"-once"), root, "/bin/true")
	if err != nil {
		return Starter{}, err
	}
	lasting, err := runtimeBundle(path, filepath.Join(dir, runtime+"-lasting"), root, "/bin/sleep", "1000")
	if err != nil {
		return Starter{}, err
	}
	call := func(args ...string) []string {
		return append([]string{path, "--root", filepath.Join(dir, runtime)}, args...)
	}
	id := fmt.Sprintf("berth-bench-%d-%s", os.Getpid(), runtime)
	return Starter{
		Name: runtime, Title: runtime,
		Once: [][]string{call("run", "--bundle", once, id)},
		Lasting: [][]string{
			call("create", "--bundle", lasting, id), call("start", id), call("delete", "--force", id),
		},
	}, nil
}

// PodmanStarter sets low resource limits, because podman would raise them, which needs CAP_SYS_RESOURCE. If the default runtime of podman
// does not work (crun of Debian 12 on a hybrid host), podman uses runc. It keeps its things in a folder of the benchmark, not among the host's
// own containers, and without the driver that mounts something for as long as nobody unmounts it; with --rootfs no image is stored there.
func PodmanStarter(dir, root string) (Starter, bool) {
	path, err := exec.LookPath("podman")
	if err != nil {
		return Starter{}, false
	}
	name := fmt.Sprintf("berth-bench-%d", os.Getpid())
	options := []string{"--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"}
	call := func(words ...[]string) []string {
		own := []string{path, "--root", filepath.Join(dir, "podman"), "--runroot", filepath.Join(dir, "podman-run"), "--storage-driver", "vfs"}
		return slices.Concat(append([][]string{own}, words...)...)
	}
	once := func() []string {
		return call([]string{"run", "--rm"}, options, []string{"--rootfs", root, "/bin/true"})
	}
	title := "podman"
	if words := once(); exec.Command(words[0], words[1:]...).Run() != nil {
		options, title = append(options, "--runtime", "runc"), "podman with runc"
	}
	return Starter{
		Name: "podman", Title: title,
		Once: [][]string{once()},
		Lasting: [][]string{
			call([]string{"create", "--name", name}, options, []string{"--rootfs", root, "/bin/sleep", "1000"}),
			call([]string{"start", name}),
			call([]string{"rm", "--force", "--time", "0", name}),
		},
	}, true
}

// LXCStarter writes the configuration of a container without a network, which uses the root directly.
func LXCStarter(dir, root string) (Starter, bool, error) {
	if _, err := exec.LookPath("lxc-start"); err != nil {
		return Starter{}, false, nil //nolint:nilerr // not installed: the arm is left out
	}
	name := fmt.Sprintf("berth-bench-%d", os.Getpid())
	at := filepath.Join(dir, "lxc", name)
	if err := os.MkdirAll(at, 0o755); err != nil {
		return Starter{}, false, fmt.Errorf("make a folder for LXC: %w", err)
	}
	config := filepath.Join(at, "config")
	text := "lxc.rootfs.path = dir:" + root + "\nlxc.uts.Name = bench\nlxc.net.0.type = empty\nlxc.init.cmd = /bin/sleep 1000\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return Starter{}, false, fmt.Errorf("write LXC's configuration: %w", err)
	}
	in := []string{"-P", filepath.Join(dir, "lxc"), "-n", name}
	return Starter{
		Name: "lxc", Title: "LXC",
		Once: [][]string{append(append([]string{"lxc-start"}, in...), "--foreground", "-s", "lxc.init.cmd=/bin/true")},
		Lasting: [][]string{
			append(append([]string{"lxc-start"}, in...), "--daemon"),
			append(append([]string{"lxc-stop"}, in...), "--kill"),
		},
	}, true, nil
}

// BusyboxRoot makes a root of Debian's busybox-static and its applets true, sleep and sh. It refuses where that is not
// installed.
func BusyboxRoot(dir string) error {
	program, err := os.ReadFile("/bin/busybox")
	if errors.Is(err, os.ErrNotExist) {
		return refuse.Cannotf("apt-get install busybox-static", "/bin/busybox, of which a root is made, is not installed")
	}
	if err != nil {
		return fmt.Errorf("read busybox: %w", err)
	}
	for _, d := range []string{"bin", "dev", "etc", "proc", "sys", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return fmt.Errorf("make a root: %w", err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "bin/busybox"), program, 0o755); err != nil {
		return fmt.Errorf("make a root: %w", err)
	}
	for _, applet := range []string{"true", "sleep", "sh"} {
		if err := os.Symlink("busybox", filepath.Join(dir, "bin", applet)); err != nil {
			return fmt.Errorf("make a root: %w", err)
		}
	}
	return nil
}

// runtimeBundle makes a plain bundle as the runtime's own `spec` makes it: no user namespace, no network, no terminal,
// the root read-only. It returns dir.
func runtimeBundle(runtime, dir, root string, args ...string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make a bundle: %w", err)
	}
	cmd := exec.Command(runtime, "spec")
	cmd.Dir = dir
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s spec: %w", filepath.Base(runtime), err)
	}
	file := filepath.Join(dir, "config.json")
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("make a bundle: %w", err)
	}
	var spec map[string]any
	if err := json.Unmarshal(text, &spec); err != nil {
		return "", fmt.Errorf("make a bundle: what %s spec wrote cannot be read: %s", filepath.Base(runtime), jsonfile.Wrong(text, err))
	}
	process, ok := spec["process"].(map[string]any)
	if !ok {
		return "", errors.New("make a bundle: the runtime's spec has no process")
	}
	process["terminal"], process["args"] = false, args
	spec["root"] = map[string]any{"path": root, "readonly": true}
	if text, err = json.Marshal(spec); err != nil {
		return "", fmt.Errorf("make a bundle: %w", err)
	}
	return dir, os.WriteFile(file, text, 0o600)
}

// MachineStarter prepares a machine of an image that has sleep and true, and starts it once to see its CPU.
func (b Berth) MachineStarter(ctx context.Context, guest *side.Guest, dir string) (Starter, error) {
	n := guest.Spec()
	n.Name = nodeName(ofMachine)
	once := b.Command("run", "--image", n.Image.String(), "--machine", guest.Parts(), "--")
	ctx, cancel := context.WithTimeout(ctx, MachineLimit)
	defer cancel()
	out, err := side.Host(ctx, append(slices.Clone(once), side.AskCPU()...))
	if err != nil {
		return Starter{}, err
	}
	s := Starter{Name: result.VirtualMachine, Title: "virtual machine", Slow: true, Once: [][]string{append(once, "true")}}
	if s.Emulated, err = side.EmulationOf(string(out)); err != nil {
		return Starter{}, err
	}
	file := filepath.Join(dir, "machine.yaml")
	text, err := spec.Marshal(n)
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		return Starter{}, fmt.Errorf("write a machine's spec: %w", err)
	}
	s.Lasting = [][]string{b.Command("apply", "-f", file), b.Command("rm", "--force", n.Name)}
	s.Undo = b.Command("rm", "--force", n.Name)
	return s, nil
}
