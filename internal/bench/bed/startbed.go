package bed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"berth/internal/bench/result"
	"berth/internal/bench/side"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/refuse"
)

// Starter is a runtime whose starts are measured.
type Starter struct {
	Name, Title string
	Once        [][]string // commands that run a command in a node and remove the node
	Lasting     [][]string // commands that make a node, start and remove it
}

// The rows of the experiment.
const (
	runOnce    = "run and remove"
	makeRemove = "make, start, remove"
)

// makeStartBed makes a root of busybox, and the bundle or configuration for each installed runtime. The reference is runc, or crun
// if there is no runc.
func makeStartBed(ctx context.Context, b *Bed, _ *Definition, _ *Options, lab Lab) error {
	dir, err := os.MkdirTemp(startDir(), "berth-bench-start-")
	if err != nil {
		return fmt.Errorf("make a folder for roots and bundles: %w", err)
	}
	b.undo = append(b.undo, func() error { return os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil { // the nodes' ids pass through
		return err
	}
	root := filepath.Join(dir, "image")
	if err := BusyboxRoot(root); err != nil {
		return err
	}
	var all []Starter
	for _, runtime := range []string{"runc", "crun"} {
		s, err := OCIStarter(runtime, dir, root)
		if err != nil {
			b.Notes = append(b.Notes, runtime+" is left out: "+err.Error())
			continue
		}
		all = append(all, s)
	}
	if s, ok := podmanStarter(dir, root); ok {
		all = append(all, s)
	}
	if s, ok, err := lxcStarter(dir, root); err != nil {
		return err
	} else if ok {
		all = append(all, s)
	}
	ours, err := BerthStarter(lab, dir, root)
	if err != nil {
		return err
	}
	return b.tryStarters(ctx, append(all, ours))
}

// startDir returns the folder for all files: one in memory, as /run is on most hosts.
func startDir() string {
	if fi, err := os.Stat("/dev/shm"); err == nil && fi.IsDir() {
		return "/dev/shm"
	}
	return ""
}

// tryStarters starts each runtime once and makes an arm of each that works.
func (b *Bed) tryStarters(ctx context.Context, all []Starter) error {
	once := startRun{runOnce, map[string][][]string{}}
	lasting := startRun{makeRemove, map[string][][]string{}}
	for _, s := range all {
		once.of[s.Name], lasting.of[s.Name] = s.Once, s.Lasting
		a := Arm{Arm: result.Arm{Name: s.Name, Title: s.Title}, Run: side.Host}
		_, err := once.Measure(ctx, a, 0, 0)
		if err == nil {
			_, err = lasting.Measure(ctx, a, 0, 0)
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && s.Name == "berth":
			return err
		case err != nil:
			b.Notes = append(b.Notes, fmt.Sprintf("%s is left out: %v", s.Name, err))
			continue
		}
		b.Arms = append(b.Arms, a)
	}
	if len(b.Arms) < 2 {
		return refuse.Cannotf("apt-get install runc", "no other runtime that works here is installed: there is nothing to compare with")
	}
	ref := b.Arms[0].Name
	once.of[result.Null], lasting.of[result.Null] = once.of[ref], lasting.of[ref]
	b.WithNull()
	b.Rows = []Row{
		{Row: result.Row{Name: runOnce, Command: once.of["berth"][0]}, Job: once},
		{Row: result.Row{Name: makeRemove, Command: lasting.of["berth"][0]}, Job: lasting},
	}
	return nil
}

// startRun is a row: the commands of each arm, one after the other.
type startRun struct {
	name string
	of   map[string][][]string // by the arm's name
}

func (s startRun) Measure(ctx context.Context, a Arm, _, _ time.Duration) (map[string]float64, error) {
	ms, err := Took(ctx, s.of[a.Name])
	if err != nil {
		return nil, err
	}
	return map[string]float64{"wall_ms": ms}, nil
}

// Took runs the commands one after the other and returns how long they took together, in milliseconds.
func Took(ctx context.Context, commands [][]string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
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

// BerthStarter prepares Berth: it writes a node's spec into dir.
func BerthStarter(lab Lab, dir, root string) (Starter, error) {
	name := "bench-" + strconv.Itoa(os.Getpid()) + "-start"
	spec := filepath.Join(dir, "node.yaml")
	text := "name: " + name + "\nimage: dir:" + root + "\ncommand: [/bin/sleep, \"1000\"]\n"
	if err := os.WriteFile(spec, []byte(text), 0o600); err != nil {
		return Starter{}, fmt.Errorf("write a node's spec: %w", err)
	}
	berth := func(args ...string) []string { return append(append([]string{lab.Self}, lab.Root...), args...) }
	return Starter{
		Name: "berth", Title: "berth",
		Once:    [][]string{berth("run", "--image", "dir:"+root, "--", "/bin/true")},
		Lasting: [][]string{berth("apply", "-f", spec), berth("rm", "--force", name)},
	}, nil
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

// podmanStarter sets low resource limits, because podman would raise them, which needs CAP_SYS_RESOURCE. If the default runtime of podman
// does not work (crun of Debian 12 on a hybrid host), podman uses runc. It keeps its things in a folder of the benchmark, not among the host's
// own containers, and without the driver that mounts something for as long as nobody unmounts it; with --rootfs no image is stored there.
func podmanStarter(dir, root string) (Starter, bool) {
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

// lxcStarter writes the configuration of a container without a network, which uses the root directly.
func lxcStarter(dir, root string) (Starter, bool, error) {
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
