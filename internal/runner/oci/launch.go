package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host/group"
	"berth/internal/runner"
	"berth/internal/runner/first"
	"berth/internal/storage/mounts"
	"berth/internal/sys/fault"
	"berth/internal/sys/fork"
	"berth/internal/sys/inherit"
	"berth/internal/sys/refuse"
	"berth/internal/sys/thread"
)

// createGrace is how long the runtime's create may continue after its context ended. A killed create leaves more to clean
// up than one that finishes, which takes some 10 ms.
const createGrace = 10 * time.Second

// Launch is the input of the runtime's create. Its JSON holds the part that another process needs to undo the create; the
// caller of Create sets the files.
//
// All paths are absolute: crun resolves relative ones in the bundle.
type Launch struct {
	Runtime       Runtime     `json:"runtime"`
	State         string      `json:"state"` // the runtime's --root, which holds a folder of state for each node
	ID            string      `json:"id"`    // the node's name
	Bundle        string      `json:"bundle"`
	PIDFile       string      `json:"pid_file"`
	Log           string      `json:"log"`                      // the runtime's own messages
	ConsoleSocket string      `json:"console_socket,omitempty"` // receives the node's terminal from the runtime; "": no terminal
	EnvFrom       string      `json:"env_from,omitempty"`       // a file with variables that no file on disk may hold
	Plan          mounts.Plan `json:"plan"`
	// Entry leads into the node's groups, in which the runtime starts. It does not change the v1 groups then. crun only.
	Entry group.Entry `json:"entry,omitzero"`

	runner.Files `json:"-"`
}

// Create mounts the plan in a private mount namespace and has the runtime create the node there. Afterwards the node's init
// waits for start, and its PID is in PIDFile.
//
// Errors: *runner.CommandError if the node's command cannot run; refuse.Cannot if the runtime is gone; the refusals of
// mounts.Plan.Enter; else the runtime's own words. After an error the runtime may have left state and processes: undo
// "oci.create".
func (l *Launch) Create(ctx context.Context) error {
	if err := inherit.Free(); err != nil {
		return err
	}
	if err := leaveHalf(); err != nil {
		return err
	}
	if err := os.MkdirAll(l.State, 0o700); err != nil {
		return fmt.Errorf("make the runtime's folder: %w", err)
	}
	if err := os.WriteFile(l.Log, nil, 0o600); err != nil {
		return fmt.Errorf("empty the runtime's log: %w", err)
	}
	gate, err := l.Entry.Open() // before Plan.Enter, which may hide the cgroup tree
	if err != nil {
		return err
	}
	defer gate.Close()
	return thread.Own(func() error {
		if err := l.Plan.Enter(ctx); err != nil {
			return err
		}
		fault.Point("mounts made")
		if err := checkRoot(l.Plan.Root.At); err != nil {
			return err
		}
		if err := l.precheck(); err != nil {
			return err
		}
		forget, err := l.addSecrets()
		if err != nil {
			return err
		}
		if err := errors.Join(l.create(ctx, gate), forget()); err != nil {
			return err
		}
		return l.seal()
	})
}

// checkRoot refuses an image whose mount points are links. Such images led runtimes out of the root more than once
// (CVE-2019-18837 in crun, CVE-2026-41579 in runc), and no honest image has them.
func checkRoot(root string) error {
	for _, name := range []string{"dev", "proc", "sys"} {
		fi, err := os.Lstat(filepath.Join(root, name))
		if err == nil && fi.Mode()&fs.ModeSymlink != 0 {
			return refuse.Invalidf("the image's /%s is a symbolic link", name)
		}
	}
	return nil
}

// create runs the runtime from the current thread, whose mount namespace it inherits.
func (l *Launch) create(ctx context.Context, gate *group.Gate) error {
	args := []string{"create", "--bundle", l.Bundle, "--pid-file", l.PIDFile}
	if l.ConsoleSocket != "" {
		args = append(args, "--console-socket", l.ConsoleSocket)
	}
	cmd := l.command(ctx, append(args, l.ID)...)
	restore, err := l.stdio(cmd)
	if err != nil {
		return err
	}
	defer restore()
	l.hold(cmd)
	if err := resetSignals(); err != nil {
		return err
	}
	if err = gate.Start(cmd); err == nil {
		err = fork.Wait(cmd)
	}
	fault.Point("runtime's create ended")
	if err == nil {
		return nil
	}
	return l.explain("create", err)
}

// hold passes the locked files to the runtime. runc does not pass them on to the node's init; crun's init would hold them
// until start, for ever if it is never started. So crun runs under a shell that holds them while crun runs and does not
// pass them on. A runtime that starts in the node's v1 groups needs no lock: undo kills all processes of the groups
// first.
func (l *Launch) hold(cmd *exec.Cmd) {
	if len(l.Entry.V1) > 0 {
		return
	}
	for _, f := range []*os.File{l.Lock, l.Line} { // descriptors 3 and 4
		if f != nil {
			cmd.ExtraFiles = append(cmd.ExtraFiles, f)
		}
	}
	if l.Runtime.Name != crun || len(cmd.ExtraFiles) == 0 {
		return
	}
	// The final "exit" keeps the shell from replacing itself by crun. Closing a descriptor that is not open is no error.
	cmd.Args = append([]string{"sh", "-c", `"$0" "$@" 3>&- 4>&-; exit $?`, l.Runtime.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
}

// command prepares one call of the runtime, without input and output.
func (l *Launch) command(ctx context.Context, args ...string) *exec.Cmd {
	args = append([]string{"--root", l.State, "--log", l.Log, "--log-format", "json"}, args...)
	if len(l.Entry.V1) > 0 {
		args = append([]string{"--cgroup-manager=disabled"}, args...)
	}
	cmd := exec.CommandContext(ctx, l.Runtime.Path, args...)
	// Not Berth's environment: the runtimes would act on NOTIFY_SOCKET, LISTEN_FDS and XDG_RUNTIME_DIR.
	cmd.Env = []string{"PATH=" + defaultPath}
	cmd.Dir = "/"
	// Its own process group: Berth handles Ctrl-C on the terminal.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return nil }
	cmd.WaitDelay = createGrace
	return cmd
}

// full reports whether the file system of a folder has less than 64 KiB free.
func full(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Blocks > 0 && st.Bavail*uint64(st.Bsize) < 64<<10
}

// explain turns a failed call of the runtime into an error in the runtime's own words.
func (l *Launch) explain(verb string, err error) error {
	if _, statErr := os.Stat(l.Runtime.Path); errors.Is(statErr, fs.ErrNotExist) {
		return refuse.Cannotf("install it: apt-get install "+filepath.Base(l.Runtime.Path),
			"%s the node with %s: the runtime is not there any more", verb, l.Runtime.Path)
	}
	if full(l.State) { // the runtimes do not always say so
		err = fmt.Errorf("%w: %w", err, unix.ENOSPC)
	}
	words := lastError(l.Log)
	if ce := commandFailure(words); ce != nil {
		return ce
	}
	if words == "" {
		return fmt.Errorf("%s the node with %s: %w", verb, l.Runtime.Name, err)
	}
	return fmt.Errorf("%s the node with %s: %w: %s", verb, l.Runtime.Name, err, words)
}

// stdio gives the runtime the streams of the node's process 1: pipes and null devices that were made for it. Call restore
// after create.
//
// As root on the host, the runtimes make the node's root the owner of every stream that they pass on. Pipes without a name
// stay the node's, so that it can reopen /dev/stdout. restore gives files with a name on the host, such as the pipe to the
// node's log, back to their owners before the node's command runs.
func (l *Launch) stdio(cmd *exec.Cmd) (restore func(), err error) {
	var null *os.File
	files := []*os.File{l.Stdin, l.Stdout, l.Stderr}
	for i, f := range files {
		if f != nil && !isNull(f) {
			continue
		}
		if null == nil {
			if null, err = l.null(); err != nil {
				return nil, err
			}
		}
		files[i] = null
	}
	// Files, never pipes: Wait would wait for the node's init, which keeps them open.
	cmd.Stdin, cmd.Stdout, cmd.Stderr = files[0], files[1], files[2]
	back := keepOwners(files...)
	return func() {
		back()
		if null != nil {
			null.Close()
		}
	}, nil
}

// null makes a null device in the plan's tmpfs, which only this node sees.
func (l *Launch) null() (*os.File, error) {
	return makeNull(filepath.Join(l.Plan.Dir, ".null"), int(l.Plan.IDs.Base))
}

func isNull(f *os.File) bool {
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(1, 3)
}

// keepOwners records the owners of the files that have a name on the host. restore gives the files back to them.
func keepOwners(files ...*os.File) (restore func()) {
	type owner struct {
		f        *os.File
		uid, gid int
	}
	var owners []owner
	for _, f := range files {
		var st unix.Stat_t
		var fs unix.Statfs_t
		fd := int(f.Fd())
		if unix.Fstat(fd, &st) != nil || unix.Fstatfs(fd, &fs) != nil || fs.Type == unix.PIPEFS_MAGIC || fs.Type == unix.SOCKFS_MAGIC {
			continue
		}
		owners = append(owners, owner{f, int(st.Uid), int(st.Gid)})
	}
	return func() {
		for _, o := range owners {
			var st unix.Stat_t
			if unix.Fstat(int(o.f.Fd()), &st) == nil && (int(st.Uid) != o.uid || int(st.Gid) != o.gid) {
				_ = o.f.Chown(o.uid, o.gid)
			}
		}
	}
}

// seal sets mount flags in the created node that the runtimes do not keep. The calling thread enters the node's mount
// namespace and stays there. It must be locked and have its own mount namespace and working directory.
//
//   - The root becomes nodev, and nosuid if the plan says so. Without a user namespace crun mounts it anew, without flags.
//   - On cgroup v1 the runtimes mount a tmpfs at /sys/fs/cgroup, with the node's groups in it, and leave it writable in
//     any case. seal makes it read-only. As a read-only path of the configuration, the groups would be mounted a second
//     time, writable.
func (l *Launch) seal() error {
	pid, err := first.ReadPID(l.PIDFile)
	if err != nil {
		return err
	}
	ns, err := os.Open(procPath(pid, "ns/mnt"))
	if err != nil {
		return fmt.Errorf("find the node's mount namespace: %w", err)
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the node's mount namespace: %w", err)
	}
	flags := uint64(unix.MOUNT_ATTR_NODEV)
	if l.Plan.Root.NoSUID {
		flags |= unix.MOUNT_ATTR_NOSUID
	}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", 0, &unix.MountAttr{Attr_set: flags}); err != nil {
		return fmt.Errorf("set the flags of the node's root: %w", err)
	}
	return sealGroups()
}

func sealGroups() error {
	const groups = "/sys/fs/cgroup"
	fd, err := unix.Openat2(unix.AT_FDCWD, groups, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if errors.Is(err, unix.ENOENT) { // a kernel without cgroups in /sys
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the node's %s: %w", groups, err)
	}
	defer unix.Close(fd)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return fmt.Errorf("stat the node's %s: %w", groups, err)
	}
	if fs.Type != unix.TMPFS_MAGIC { // v2, or none
		return nil
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("make the node's %s read-only: %w", groups, err)
	}
	return nil
}

// rights reads what the node may do.
func (l *Launch) rights() (rights, error) {
	r := rights{root: l.Plan.IDs.Base}
	spec, err := readSpec(l.Bundle)
	if err == nil && spec.Process != nil && spec.Process.Capabilities != nil {
		r.bounding = spec.Process.Capabilities.Bounding
	}
	return r, err
}
