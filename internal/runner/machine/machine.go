// Package machine runs nodes as virtual machines by QEMU: a guest with a kernel of its own, whose root is the same packed image.
//
// # How a machine fits the seam
//
// It is a second [runner.Family] beside package oci; which of the two runs a node is decided by the kind in its spec (package
// mechanisms). Plan, journal, keeper, show, logs and exec do not know the difference, because the node's first process is not
// QEMU but a monitor, a process of Berth's own (Monitor), which is to the machine what an init is to a container:
//
//	machine.create   the monitor exists, QEMU below it has all its disks and waits before the guest's first instruction (-S)
//	machine.start    the guest boots, makes its root, and runs the node's command
//
// The monitor is process 1 of a PID namespace and QEMU's parent in it. So whoever kills the monitor kills QEMU (the kernel does
// it), and a monitor whose QEMU was killed ends. It is in the node's groups before its first instruction, and QEMU with it: the
// node's limits are the machine's. It holds both lines to QEMU, which have no name in any file system: the one to QEMU's own
// protocol (QMP) and the one to Berth's program in the guest (package guest). Root reaches it by a socket in the node's folder.
// Its exit status is that of the guest's command, which no exit status of QEMU could be.
//
// # What QEMU has
//
// Root opens the image and hands in a descriptor. QEMU runs as a user of the node's own range of ids, without capabilities, with
// its system call filter, in an own network, IPC and PID namespace. Its root is a file system in memory with the host's /usr,
// read-only, until it has started; then that and the kernel are unmounted, and what stays is empty. The monitor becomes another
// user of the range then, and has no capabilities either: it reads what the guest sends.
//
// # What comes from a guest
//
// It is hostile. Frames have at most 64 KiB (package wire), a stream may be ahead of its reader by what it was granted, and a
// guest that breaks the rules ends its own line, or its own machine.
package machine

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/runner"
	"berth/internal/runner/machine/wire"
	"berth/internal/sys/file"
	"berth/internal/sys/fork"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/refuse"
	"berth/internal/sys/sibling"
	"berth/internal/sys/step"
)

// Name is the family's name in a launch.
const Name = "machine"

// Program is the emulator's program.
const Program = "qemu-system-x86_64"

// Guest is the program that runs in guests.
const Guest = "berth-guest"

// Family is the emulators of this host. It implements runner.Family.
type Family struct{}

// Kinds implements runner.Family.
func (Family) Kinds() step.Kinds {
	return step.Kinds{
		"machine.create": func() step.Step { return &Create{} },
		"machine.start":  func() step.Step { return &Start{} },
		"machine.resize": func() step.Step { return &Resize{} },
	}
}

// found is the emulator as it was when its version was asked for.
type found struct {
	Emulator
	Inode uint64 `json:"inode"`
	Mtime int64  `json:"mtime"` // ns
}

// Emulator is QEMU. It implements runner.Runner.
type Emulator struct {
	Path    string `json:"path"`
	Version string `json:"version"`
	Guest   string `json:"guest"` // the program for guests
}

func (e Emulator) String() string { return "QEMU " + e.Version + " (emulated CPU)" }

// Remembered implements runner.Family.
func (Family) Remembered(t runner.Trial) runner.Runner {
	b, err := os.ReadFile(cache(t))
	if err != nil {
		return nil
	}
	var f found
	if json.Unmarshal(b, &f) != nil {
		return nil
	}
	now, err := look()
	if err != nil || now.Path != f.Path || now.Inode != f.Inode || now.Mtime != f.Mtime {
		return nil
	}
	f.Guest = now.Guest
	return f.Emulator
}

// cache is the file with the emulator's version.
func cache(t runner.Trial) string {
	return strings.TrimSuffix(t.Cache, ".json") + "-machine.json"
}

// Choose implements runner.Family.
func (Family) Choose(ctx context.Context, t runner.Trial) (runner.Runner, error) {
	f, err := look()
	if err != nil {
		return nil, err
	}
	if f.Version, err = version(ctx, f.Path); err != nil {
		return nil, err
	}
	if b, err := jsonfile.Marshal(f); err == nil {
		_ = file.WriteForBoot(cache(t), b, 0o600) // else it is asked for again
	}
	return f.Emulator, nil
}

// look finds the emulator without starting it.
func look() (f found, err error) {
	path, err := exec.LookPath(Program)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return f, refuse.Cannotf("apt-get install --no-install-recommends qemu-system-x86", "machines are run by %s, and it is not installed", Program)
	}
	if !strings.HasPrefix(path, "/usr/") {
		return f, refuse.Cannotf("install it from the distribution's package", "machines are run by %s, which must lie below /usr with its libraries; it is %s", Program, path)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return f, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	f.Path, f.Inode, f.Mtime = path, st.Ino, st.Mtim.Nano()
	f.Guest, err = sibling.Find(Guest, "machines make their root", "install "+Guest+" beside berth: make install does")
	return f, err
}

// version asks the emulator for its version.
func version(ctx context.Context, path string) (string, error) {
	out, err := fork.Output(exec.CommandContext(ctx, path, "--version"))
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", path, err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	_, after, ok := strings.Cut(line, "version ")
	v, _, _ := strings.Cut(after, " ")
	if !ok || v == "" {
		return "", refuse.Cannotf("install QEMU 7.2 or newer", "%s says %q for its version", path, line)
	}
	return v, nil
}

// Report implements runner.Family.
func (f Family) Report(ctx context.Context, t runner.Trial) []host.Runtime {
	r := host.Runtime{Name: Program}
	e, err := f.Choose(ctx, t)
	if err != nil {
		if refuse.KindOf(err) != refuse.Cannot {
			r.Err = err
		}
		return []host.Runtime{r}
	}
	q := e.(Emulator)
	r.Path, r.Version = q.Path, q.Version
	return []host.Runtime{r}
}

// Create implements runner.Family.
func (Family) Create(ctx context.Context, l *runner.Launch) error {
	var launch Launch
	if err := json.Unmarshal(l.Input, &launch); err != nil {
		return fmt.Errorf("read the launch of a machine: %s", jsonfile.Wrong(l.Input, err))
	}
	launch.Files = l.Files
	return launch.Create(ctx)
}

// Steps implements runner.Runner.
func (e Emulator) Steps(s runner.Spec) (runner.Steps, error) {
	if err := s.Check(); err != nil {
		return runner.Steps{}, err
	}
	if err := check(&s); err != nil {
		return runner.Steps{}, err
	}
	l := e.launch(&s)
	if len(l.Machine.Shares) > 0 {
		var err error
		if l.ShareDaemon, err = FindShareDaemon(); err != nil {
			return runner.Steps{}, err
		}
	}
	if err := l.checkSetup(); err != nil {
		return runner.Steps{}, err
	}
	c := &Create{
		Emulator: e.String(), Node: s.Node, Dir: s.Dir, PIDFile: s.PIDFile, Group: "/" + s.Groups.Path, Stop: s.Stop,
		Image: s.Content.Root.Layers(), Machine: l.describe(), Booted: s.Machine.Memory, launch: l,
	}
	return runner.Steps{Create: []step.Step{c}, Start: []step.Step{&Start{Dir: s.Dir, Args: s.Args}}}, nil
}

// describe says for a person what the machine is made of.
func (l *Launch) describe() string {
	parts := []string{fmt.Sprintf("%d CPUs, %d MiB, %s", l.Machine.CPUs, l.Machine.Memory>>20, l.Image.Path)}
	for _, s := range l.Machine.Shares {
		how := ""
		if s.ReadOnly {
			how = ", read-only"
		}
		parts = append(parts, fmt.Sprintf("%s at %s by virtiofs%s", s.Source, s.Target, how))
	}
	return strings.Join(parts, "; ")
}

// check refuses what no machine can have. The planner has refused all that a spec could ask for.
func check(s *runner.Spec) error {
	r := &s.Content.Root
	switch {
	case s.Machine == nil:
		return refuse.Invalidf("node %s: it is no machine", s.Node)
	case r.Packed == nil || r.Memory != (s.Machine.Delta == ""):
		return refuse.Invalidf("node %s: a machine's root is a packed image, with writes to memory or to a disk", s.Node)
	case s.Content.IDs.Size < leastIDs:
		return refuse.Invalidf("node %s: a machine needs ids of its own", s.Node)
	case len(s.Mounts) > 0 || len(s.Devices) > 0:
		return refuse.Invalidf("node %s: a machine has no mounts and device nodes of the host", s.Node)
	case s.Terminal && s.Init != runner.NoInit:
		return refuse.Cannotf("leave -t out: berth exec -it "+s.Node+" -- sh has one", "node %s: its command is an init system, which gets no terminal in a machine", s.Node)
	}
	_, err := KernelRelease(s.Machine.Kernel)
	return err
}

// checkSetup refuses more words, variables and files than go into one message to the guest. Those of env_from are known when the node
// starts.
func (l *Launch) checkSetup() error {
	text, err := json.Marshal(&l.Setup)
	if err != nil {
		return err
	}
	if len(text) > wire.MostPayload {
		return refuse.Cannotf("shorten them", "node %s: its command, variables and own files are %d bytes; a machine takes at most %d", l.Node, len(text), wire.MostPayload)
	}
	return nil
}

// launch returns the launch of a machine.
func (e Emulator) launch(s *runner.Spec) *Launch {
	r := &s.Content.Root
	l := &Launch{
		Emulator: e, Node: s.Node, Dir: s.Dir, Root: r.At, PIDFile: s.PIDFile, Entry: s.Groups.Entry(), EnvFrom: s.EnvFrom,
		Machine: *s.Machine, Image: *r.Packed, IDs: s.Content.IDs.Base, IDCount: s.Content.IDs.Size, OOMScore: cmp.Or(s.OOMScoreAdj, 1), IOIdle: s.IOIdle,
	}
	l.Setup.Hostname, l.Setup.ImageType, l.Setup.DeltaSize = s.Hostname, string(r.Packed.Kind), int64(r.Size)
	for _, d := range l.drives() {
		if d.serial == wire.DeltaSerial {
			l.Setup.DeltaFS = d.FS
			continue
		}
		l.Setup.Disks = append(l.Setup.Disks, wire.Disk{Serial: d.serial, FS: d.FS, Target: d.Target})
	}
	for i := range l.Machine.Shares {
		l.Setup.Disks = append(l.Setup.Disks, shareDisk(i, &l.Machine.Shares[i]))
	}
	// Each comes after those that it lies in.
	slices.SortStableFunc(l.Setup.Disks, func(a, b wire.Disk) int {
		return cmp.Compare(strings.Count(a.Target, "/"), strings.Count(b.Target, "/"))
	})
	l.Setup.Files = map[string]string{}
	for _, f := range s.Content.Files {
		l.Setup.Files[f.Path] = f.Text
	}
	for _, a := range s.Machine.Adapters {
		l.Setup.Interfaces = append(l.Setup.Interfaces, wire.Interface{Name: a.Name, MAC: a.MAC, MTU: a.MTU, Address: a.Address, Gateway: a.Gateway, Routes: a.Routes})
	}
	l.Setup.Init = s.Init != runner.NoInit
	l.Setup.Command.Args, l.Setup.Command.Env, l.Setup.Command.Cwd = s.Args, s.Env, s.Cwd
	l.Setup.Command.UID, l.Setup.Command.GID, l.Setup.Command.Groups = s.User.UID, s.User.GID, s.User.Additional
	if s.Terminal {
		l.Setup.Command.Terminal = &wire.Size{}
		l.Setup.Command.Env = runner.MergeEnv(terminalEnv, s.Env)
	}
	l.Setup.Command.NoNewPrivs = s.KeepPrivs || s.Init == runner.NoInit && !s.NewPrivs
	return l
}

// leastIDs is how many ids of the node's range Berth uses.
const leastIDs = 3

// The users, within the node's range, that QEMU and the monitor are on the host. None is the node's root.
const (
	emulatorUser = 1
	monitorUser  = 2
)
