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

	"berth/internal/mounts"
	"berth/internal/refuse"
	"berth/internal/step"
	"berth/internal/thread"
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
	Plan          mounts.Plan `json:"plan"`
	Group         string      `json:"group,omitempty"` // folder of the node's v2 group, in which the runtime starts; "": no group
	V1            []V1Group   `json:"v1,omitempty"`    // the node's v1 groups, in which the runtime starts and which it does not change; crun only

	// The streams of the node's process 1; nil is a new null device.
	Stdin, Stdout, Stderr *os.File `json:"-"`
	// Lock is the node's lock file. The runtime holds the lock too, so that a repair waits for a runtime whose parent was
	// killed. The node's init does not inherit it.
	Lock *os.File `json:"-"`
	// Line is another locked file that the runtime holds while it works; nil for none.
	Line *os.File `json:"-"`
}

// Create mounts the plan in a private mount namespace and has the runtime create the node there. Afterwards the node's init
// waits for start, and its PID is in PIDFile.
//
// Errors: *CommandError if the node's command cannot run; refuse.Cannot if the runtime is gone; the refusals of
// mounts.Plan.Enter; else the runtime's own words. After an error the runtime may have left state and processes: undo
// "oci.create".
func (l *Launch) Create(ctx context.Context) error {
	if err := leaveHalf(); err != nil {
		return err
	}
	if err := os.MkdirAll(l.State, 0o700); err != nil {
		return fmt.Errorf("make the runtime's folder: %w", err)
	}
	if err := os.WriteFile(l.Log, nil, 0o600); err != nil {
		return fmt.Errorf("empty the runtime's log: %w", err)
	}
	// Opened before Plan.Enter, which may hide the cgroup tree.
	var group *os.File
	if l.Group != "" {
		var err error
		if group, err = os.Open(l.Group); err != nil {
			return fmt.Errorf("open the node's v2 group: %w", err)
		}
		defer group.Close()
	}
	return thread.Own(func() error {
		if err := l.Plan.Enter(ctx); err != nil {
			return err
		}
		step.Fault("mounts made")
		if err := checkRoot(l.Plan.Root.At); err != nil {
			return err
		}
		if err := l.precheck(); err != nil {
			return err
		}
		if err := l.create(ctx, group); err != nil {
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
func (l *Launch) create(ctx context.Context, group *os.File) error {
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
	if group != nil {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(group.Fd())
	}
	l.hold(cmd)
	if err := resetSignals(); err != nil {
		return err
	}
	leave, err := enterV1(l.V1)
	if err != nil {
		return err
	}
	err = cmd.Start()
	left := leave()
	if err == nil {
		err = cmd.Wait()
	}
	err = errors.Join(err, left)
	step.Fault("runtime's create ended")
	if err == nil {
		return nil
	}
	return l.explain("create", err)
}

// hold passes the locked files to the runtime. runc does not pass them on to the node's init; crun's init would hold them
// until start, for ever if nobody starts it. So crun runs under a shell that holds them while crun runs and does not pass
// them on. A runtime that starts in the node's v1 groups needs no lock: undo kills all processes of the groups first.
func (l *Launch) hold(cmd *exec.Cmd) {
	if len(l.V1) > 0 {
		return
	}
	for _, f := range []*os.File{l.Lock, l.Line} { // descriptors 3 and 4
		if f != nil {
			cmd.ExtraFiles = append(cmd.ExtraFiles, f)
		}
	}
	if l.Runtime.Name != "crun" || len(cmd.ExtraFiles) == 0 {
		return
	}
	// The final "exit" keeps the shell from replacing itself by crun. Closing a descriptor that is not open is no error.
	cmd.Args = append([]string{"sh", "-c", `"$0" "$@" 3>&- 4>&-; exit $?`, l.Runtime.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
}

// command prepares one call of the runtime, without input and output.
func (l *Launch) command(ctx context.Context, args ...string) *exec.Cmd {
	args = append([]string{"--root", l.State, "--log", l.Log, "--log-format", "json"}, args...)
	if len(l.V1) > 0 {
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
