package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/spec/vnode"
	"berth/internal/storage/gateway"
	"berth/internal/storage/gateway/gatewaytest"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// held is a gateway with a helper process. While a node runs, its helper holds the source: it has moved the folder to a place
// below the node's live folder, where the node gets it from, and moves it back when it is told to end.
type held struct{ gateway.Bind }

func (h held) Plan(m vnode.Mount, s gateway.Source, to gateway.Node, at string) (gateway.Way, error) {
	dirs := to.Layout.Node(to.Name)
	hold := &hold{Source: s.Path, At: filepath.Join(dirs.Run, "held"), PIDFile: filepath.Join(dirs.Run, "held.pid")}
	s.Path = hold.At
	w, err := h.Bind.Plan(m, s, to, at)
	w.Before = []step.Step{hold}
	w.After = []step.Step{&note{Path: filepath.Join(dirs.Run, "note"), PIDFile: dirs.PIDFile()}}
	return w, err
}

func (held) Kinds() step.Kinds {
	return step.Kinds{
		"held.hold": func() step.Step { return &hold{} },
		"held.note": func() step.Step { return &note{} },
	}
}

// hold starts the helper.
type hold struct {
	Source  string  `json:"source"`
	At      string  `json:"at"`
	PIDFile string  `json:"pid_file"` // identity of the helper: written before it is let go, read by an Undo that knows no better
	Helper  proc.ID `json:"helper,omitzero"`
}

func (h *hold) Kind() string     { return "held.hold" }
func (h *hold) String() string   { return fmt.Sprintf("hold %s at %s", h.Source, h.At) }
func (h *hold) Process() proc.ID { return h.Helper }

func (h *hold) Do(ctx context.Context) error {
	if h.Helper != (proc.ID{}) { // of a helper that has ended
		if err := h.Undo(ctx); err != nil {
			return err
		}
	}
	if _, err := os.Stat(h.Source); errors.Is(err, fs.ErrNotExist) {
		return refuse.NotFoundf("%s is gone: %w", h.Source, err)
	}
	cmd := exec.Command("/proc/self/exe", h.Source, h.At)
	cmd.Env = []string{heldHelper + "=1"}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }()
	if h.Helper, err = proc.Of(cmd.Process.Pid); err != nil {
		return err
	}
	id, err := json.Marshal(h.Helper)
	if err == nil {
		err = os.WriteFile(h.PIDFile, id, 0o600)
	}
	if err == nil {
		_, err = io.WriteString(in, "go\n") // without it, the helper ends
	}
	if err == nil {
		_, err = bufio.NewReader(out).ReadString('\n') // "held"
	}
	if err != nil {
		return errors.Join(fmt.Errorf("start the helper: %w", err), h.Undo(ctx))
	}
	return nil
}

func (h *hold) Verify(context.Context) error {
	if !h.Helper.Alive() {
		return fmt.Errorf("helper %d does not run", h.Helper.PID)
	}
	_, err := os.Stat(h.At)
	return err
}

func (h *hold) Undo(ctx context.Context) error {
	id := h.Helper
	if text, err := os.ReadFile(h.PIDFile); id == (proc.ID{}) && err == nil {
		if err := json.Unmarshal(text, &id); err != nil {
			return err
		}
	}
	if id != (proc.ID{}) {
		if err := endHelper(ctx, id); err != nil {
			return err
		}
	}
	if err := os.Rename(h.At, h.Source); err != nil && !errors.Is(err, fs.ErrNotExist) { // the helper was killed
		return err
	}
	if err := os.Remove(h.PIDFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func endHelper(ctx context.Context, id proc.ID) error {
	pidfd, err := id.Open()
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer pidfd.Close()
	if err := proc.Signal(pidfd, unix.SIGTERM); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return proc.Wait(ctx, pidfd)
}

// note is a step after the node's process 1 was made: it notes who that is.
type note struct {
	Path    string  `json:"path"`
	PIDFile string  `json:"pid_file"`
	Init    proc.ID `json:"init,omitzero"`
}

func (n *note) Kind() string   { return "held.note" }
func (n *note) String() string { return "note the node's process 1 in " + n.Path }

func (n *note) Do(context.Context) error {
	text, err := os.ReadFile(n.PIDFile)
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	if n.Init, err = proc.Of(pid); err != nil {
		return err
	}
	return os.WriteFile(n.Path, text, 0o600)
}

func (n *note) Verify(context.Context) error {
	if !n.Init.Alive() {
		return fmt.Errorf("process 1 (%d) does not run", n.Init.PID)
	}
	return nil
}

func (n *note) Undo(context.Context) error {
	if err := os.Remove(n.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

const heldHelper = "BERTH_TEST_HELD"

func TestMain(m *testing.M) {
	if os.Getenv(heldHelper) != "" {
		if err := holdSource(os.Args[1], os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "held:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// holdSource is the helper.
func holdSource(source, at string) error {
	term := make(chan os.Signal, 1)
	signal.Notify(term, unix.SIGTERM)
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return nil //nolint:nilerr // the starter was killed before it noted this process
	}
	if err := os.Rename(source, at); err != nil {
		return err
	}
	fmt.Println("held")
	<-term
	return os.Rename(at, source)
}

func TestHeld(t *testing.T) {
	gatewaytest.Suite{Gateway: held{}, Source: gatewaytest.Folder, Files: 100, Single: true}.Run(t)
}
