package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host/group"
	"berth/internal/runner"
	"berth/internal/runner/machine/wire"
	"berth/internal/runner/streams"
	"berth/internal/storage/mounts"
	"berth/internal/storage/packed"
	"berth/internal/sys/fault"
	"berth/internal/sys/fork"
	"berth/internal/sys/inherit"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
	"berth/internal/sys/thread"
)

// Command is the hidden command of berth by which the monitor starts.
const Command = "machine"

// The arguments of Command. The launcher starts the monitor and ends, so that the monitor becomes the child of the subreaper above
// them, as the first process of every node.
const (
	launcherStage = "launch"
	monitorStage  = "monitor"
)

// Launch is all that the monitor is made of. Its JSON never lies on a disk: it has the node's environment.
type Launch struct {
	Emulator Emulator       `json:"emulator"`
	Node     string         `json:"node"`
	Dir      string         `json:"dir"`  // the node's live folder
	Root     string         `json:"root"` // an empty folder on which the monitor mounts its root, in a namespace of its own
	PIDFile  string         `json:"pid_file"`
	Entry    group.Entry    `json:"entry"`
	EnvFrom  string         `json:"env_from,omitempty"`
	Machine  runner.Machine `json:"machine"`
	Image    packed.File    `json:"image"`
	IDs      uint32         `json:"ids"` // the first of the node's ids
	IDCount  uint32         `json:"id_count"`
	OOMScore int            `json:"oom_score_adj"`
	IOIdle   bool           `json:"io_idle,omitempty"` // its I/O requests wait until no other process has any
	Setup    wire.Setup     `json:"setup"`
	Console  string         `json:"console,omitempty"` // the socket that takes the node's terminal; "": it has none

	ShareDaemon *ShareDaemon `json:"share_daemon,omitempty"` // serves the machine's shares; nil: it has none

	runner.Files `json:"-"`
}

// The descriptors of the launcher and the monitor, beside the node's three streams.
const (
	launchFD = 3 + iota // the Launch as JSON
	reportFD            // written to when the machine is ready, or why it is not
	lockFD              // the node's lock
	lineFD              // the session's line
	sizesFD             // the sizes of the user's terminal
	sharesFD            // of the monitor: the mounts of the machine's shares
)

// report is what the monitor says once: that the machine is ready, or why not.
type report struct {
	Ready  bool        `json:"ready,omitempty"`
	Kind   refuse.Kind `json:"kind,omitempty"`
	What   string      `json:"what,omitempty"`
	Remedy string      `json:"remedy,omitempty"`
}

// reportTime is how long a machine may take until QEMU has all and waits.
const reportTime = 60 * time.Second

// Create makes the monitor and waits until the machine is ready to boot. Its pid is in PIDFile then. After an error processes may
// be left: undo "machine.create".
func (l *Launch) Create(ctx context.Context) error {
	if err := inherit.Free(); err != nil {
		return err
	}
	gate, err := l.Entry.Open()
	if err != nil {
		return err
	}
	defer gate.Close()
	text, err := jsonfile.Marshal(l)
	if err != nil {
		return fmt.Errorf("describe the machine: %w", err)
	}
	input, err := memory(text)
	if err != nil {
		return err
	}
	defer input.Close()
	says, theirs, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	defer says.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		theirs.Close()
		return err
	}
	defer null.Close()
	sizes := null
	if l.Console != "" {
		far, err := streams.SendRemote(l.Console)
		if err != nil {
			theirs.Close()
			return err
		}
		defer far.Close()
		l.Stdin, l.Stdout, l.Stderr, sizes = far.Data, far.Data, far.Data, far.Sizes
	}
	or := func(f *os.File) *os.File {
		if f == nil {
			return null
		}
		return f
	}
	cmd := &exec.Cmd{
		Path: fork.Berth(), Args: []string{"berth", Command, launcherStage}, Env: environment(), Dir: "/",
		Stdin: or(l.Stdin), Stdout: or(l.Stdout), Stderr: or(l.Stderr),
		ExtraFiles:  []*os.File{input, theirs, or(l.Lock), or(l.Line), sizes},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	err = thread.Own(func() error { return gate.Start(cmd) })
	theirs.Close()
	if err != nil {
		return fmt.Errorf("start the machine's monitor: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = says.SetReadDeadline(time.Now()) })
	defer stop()
	_ = says.SetReadDeadline(time.Now().Add(reportTime))
	said, readErr := io.ReadAll(io.LimitReader(says, 64<<10))
	ended := fork.Wait(cmd)
	fault.Point("machine made")
	var r report
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case readErr != nil:
		return fmt.Errorf("wait for the machine's monitor: %w", readErr)
	case json.Unmarshal(said, &r) != nil:
		return fmt.Errorf("the machine's monitor ended before the machine was ready (%s)", howEnded(ended))
	case !r.Ready:
		return &refuse.Error{Kind: r.Kind, What: r.What, Remedy: r.Remedy}
	}
	return nil
}

// environment is the launcher's and the monitor's. The programs that unpack modules are found by it.
func environment() []string { return []string{"GOMAXPROCS=2", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"} }

// howEnded says how a process ended.
func howEnded(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// memory returns a file in memory with a text.
func memory(text []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("berth-machine", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "berth-machine")
	if _, err = f.Write(text); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	return f, nil
}

// Main is the program of Command. The monitor's exit code is that of its machine.
func Main(stage string) (code int, err error) {
	// Also what the caller's caller left open: it goes no further than the launcher.
	if err := unix.CloseRange(launchFD, 1<<31-1, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return 0, fmt.Errorf("keep the caller's files from the machine: %w", err)
	}
	l, err := readLaunch()
	if err == nil {
		switch stage {
		case launcherStage:
			err = l.startMonitor()
		case monitorStage:
			code, err = l.monitor()
		default:
			return 0, refuse.Invalidf("berth %s is started by berth itself", Command)
		}
	}
	if err != nil {
		tell(err)
	}
	return code, err
}

func readLaunch() (*Launch, error) {
	// By its name: the offset is shared with the other stage, and an os.File would close the number once more, when it is another's.
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", launchFD))
	if err != nil {
		return nil, fmt.Errorf("read the launch: %w", err)
	}
	l := &Launch{}
	if err := json.Unmarshal(b, l); err != nil {
		return nil, fmt.Errorf("read the launch: %s", jsonfile.Wrong(b, err))
	}
	return l, nil
}

// tell tells Create why there is no machine.
func tell(err error) {
	r := report{Kind: refuse.KindOf(err), What: err.Error()}
	if e, ok := errors.AsType[*refuse.Error](err); ok {
		r.Remedy = e.Remedy
		r.What = strings.TrimSuffix(r.What, "; "+e.Remedy)
	}
	sendReport(r)
}

func sendReport(r report) {
	b, err := json.Marshal(r)
	if err == nil {
		_, _ = unix.Write(reportFD, b)
	}
}

// startMonitor starts the monitor in namespaces of its own and ends: this process is the launcher.
func (l *Launch) startMonitor() error {
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(l.OOMScore)), 0); err != nil && !errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("set the machine's standing when memory is short: %w", err)
	}
	var kept []*os.File
	for fd := launchFD; fd <= sizesFD; fd++ {
		kept = append(kept, os.NewFile(uintptr(fd), "kept"))
	}
	shares, err := mounts.Detached(l.Machine.Shares, l.ids())
	if err != nil {
		return err
	}
	kept = append(kept, shares...)
	var p *os.Process
	err = thread.Own(func() (err error) {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil { // root keeps its rights over an exec all the same
			return err
		}
		if err := leaveKeyring(); err != nil {
			return err
		}
		if l.IOIdle {
			if err := proc.SetIOIdle(0); err != nil {
				return err
			}
		}
		p, err = fork.StartProcess("/proc/self/exe", []string{"berth", Command, monitorStage}, &os.ProcAttr{
			Dir: "/", Env: environment(), Files: append([]*os.File{os.Stdin, os.Stdout, os.Stderr}, kept...),
			Sys: &syscall.SysProcAttr{
				Setsid:     true,
				Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
			},
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("start the machine's monitor: %w", err)
	}
	return os.WriteFile(l.PIDFile, []byte(strconv.Itoa(p.Pid)), 0o600)
}
