package gatewaytest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/storage/gateway"
	"berth/internal/storage/mounts"
	"berth/internal/sys/thread"
)

// Root is the host's id of the root of the suite's nodes.
const Root = 0x41240000

// namespaces starts a process in a mount and a user namespace of its own, as an OCI runtime starts a node's process 1: what
// the way stages is bound at its target, and the node's PIDFile has the pid. With Connect it has a network of its own too.
func (s Suite) namespaces(t *testing.T, to gateway.Node, w gateway.Way, beneath func(dir string) error) (Node, error) {
	t.Helper()
	n := &namespaces{own: s.Connect != nil}
	err := thread.Own(func() error { return n.start(to, w, beneath) })
	if err != nil {
		n.Kill()
		return nil, err
	}
	if s.Connect != nil {
		s.Connect(t, n.cmd.Process.Pid)
	}
	pid := strconv.Itoa(n.cmd.Process.Pid)
	return n, os.WriteFile(to.Layout.Node(to.Name).PIDFile(), []byte(pid), 0o600)
}

type namespaces struct {
	cmd    *exec.Cmd
	target string
	own    bool // it has a network of its own
	once   sync.Once
}

func (n *namespaces) start(to gateway.Node, w gateway.Way, beneath func(dir string) error) error {
	dirs := to.Layout.Node(to.Name)
	plain := filepath.Join(dirs.Run, "plain")
	defer os.Remove(plain)
	p := &mounts.Plan{
		Dir: dirs.Stage(), Root: mounts.Root{At: filepath.Join(dirs.Stage(), "root"), Plain: plain},
		IDs: mounts.IDs{Base: Root, Size: 65536},
	}
	if err := errors.Join(os.Mkdir(plain, 0o755), unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
		return err
	}
	n.target = to.Layout.Run
	bind := "true"
	if w.Stage != nil {
		if beneath != nil {
			if err := beneath(w.Stage.Source); err != nil {
				return err
			}
		}
		p.Stage = []mounts.Stage{*w.Stage}
		n.target = w.Mount.Target
		bind = fmt.Sprintf("mount --%s %s %s", w.Mount.Options[0], w.Mount.Source, w.Mount.Target)
	}
	if w.Stage == nil && w.Mount != nil { // an empty place
		n.target = w.Mount.Target
		bind = fmt.Sprintf("mount -t %s -o %s %s %s", w.Mount.Type, strings.Join(w.Mount.Options, ","), w.Mount.Source, w.Mount.Target)
	}
	if err := p.Enter(context.Background()); err != nil {
		return err
	}
	n.cmd = exec.Command("/bin/sh", "-ec", bind+"; echo ready; exec sleep infinity")
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	if n.own {
		n.cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWNET
	}
	p.IDs.Attr(n.cmd.SysProcAttr)
	n.cmd.Stderr = os.Stderr
	out, err := n.cmd.StdoutPipe()
	if err == nil {
		err = n.cmd.Start()
	}
	if err != nil {
		return err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return fmt.Errorf("the node's process 1 said %q: %w", line, err)
	}
	return nil
}

// Run enters the node's namespaces.
func (n *namespaces) Run(script string) (string, error) {
	pid := strconv.Itoa(n.cmd.Process.Pid)
	out, err := exec.Command("nsenter", "--target", pid, "--user", "--mount", "--setuid", "0", "--setgid", "0",
		"/bin/sh", "-ec", "cd "+n.target+"\n"+script).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%w: %s", err, out)
	}
	return string(out), nil
}

// Kill kills the process, and with it its namespaces.
func (n *namespaces) Kill() {
	if n.cmd == nil || n.cmd.Process == nil {
		return
	}
	n.once.Do(func() {
		_ = n.cmd.Process.Kill()
		_ = n.cmd.Wait()
	})
}
