package node

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"berth/internal/gateway"
	"berth/internal/image"
	"berth/internal/link"
	"berth/internal/vnode"
)

// BenchNode is the node that a disk benchmark runs its commands in: image host, so that both arms run the same
// binaries, with the measured folder or device at the same path.
func BenchNode(dir, device string, writes bool) *vnode.Node {
	n := &vnode.Node{
		Name: fmt.Sprintf("bench-%d", os.Getpid()), Image: vnode.Image{Kind: vnode.HostImage},
		Command: []string{"/bin/sleep", "infinity"},
	}
	if dir != "" {
		n.Mounts = []vnode.Mount{{Source: dir, Target: dir}}
	}
	if device != "" {
		access := "r"
		if writes {
			access = "rw"
		}
		n.Devices = []vnode.Device{{Path: device, Access: access}}
	}
	vnode.Defaults(n)
	return n
}

// CheckFolder refuses a folder that a node may not have in it.
func (b *Berth) CheckFolder(dir string) error {
	_, err := gateway.Bind{}.Look(vnode.Mount{Source: dir, Target: dir}, gateway.Node{Layout: b.Layout})
	return err
}

// BenchArm makes the node and returns how to run a command in it: its standard output, and an error that holds what it
// wrote to standard error. done removes the node. If this process is killed, the keeper removes it.
func (b *Berth) BenchArm(ctx context.Context, n *vnode.Node) (arm func(context.Context, []string) ([]byte, error), done func(), err error) {
	return b.benchArm(ctx, n, false)
}

// BenchArmUnfiltered is BenchArm for a node without a filter of system calls. No spec can ask for one: it is there only to
// measure what the filter costs, and nothing but the benchmark's own commands run in it.
func (b *Berth) BenchArmUnfiltered(ctx context.Context, n *vnode.Node) (arm func(context.Context, []string) ([]byte, error), done func(), err error) {
	return b.benchArm(ctx, n, true)
}

func (b *Berth) benchArm(ctx context.Context, n *vnode.Node, unfiltered bool) (arm func(context.Context, []string) ([]byte, error), done func(), err error) {
	guard, err := b.guard(ctx, n.Name)
	if err != nil {
		return nil, nil, err
	}
	l, err := b.lock(ctx, n.Name)
	if err != nil {
		guard.Close()
		return nil, nil, err
	}
	start, _ := startTime(os.Getpid())
	_, err = b.create(ctx, l, n, starter{start: b.launcher(n.Name), foreground: &holder{os.Getpid(), start}, unfiltered: unfiltered})
	if err != nil {
		l.remove()
		guard.Close()
		return nil, nil, err
	}
	l.release()
	done = func() {
		_ = b.Remove(context.WithoutCancel(ctx), n.Name, true)
		guard.Close()
	}
	args := append(b.rootArgs(), "exec", n.Name, "--")
	return func(ctx context.Context, argv []string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, "/proc/self/exe", append(slices.Clip(args), argv...)...)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		// berth exec passes SIGTERM on to the command; killed, it would leave it running.
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.WaitDelay = 10 * time.Second
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Run(); err != nil {
			if ctx.Err() != nil {
				return stdout.Bytes(), ctx.Err()
			}
			return stdout.Bytes(), fmt.Errorf("run %s in node %s: %w: %s", argv[0], n.Name, err, strings.TrimSpace(stderr.String()))
		}
		return stdout.Bytes(), nil
	}, done, nil
}

// BenchUpper is the folder in which a node's overlay keeps what the node writes.
func (b *Berth) BenchUpper(node string) string {
	return (&image.Delta{Path: b.Layout.Node(node).Delta()}).Upper()
}

// BenchNetNode is a node that a network benchmark runs its commands in: image host, with the program self (this one,
// which is a part of the measurement) at the same path.
func BenchNetNode(role, self string, command []string, networks ...vnode.Network) *vnode.Node {
	n := &vnode.Node{
		Name: fmt.Sprintf("bench-%d-%s", os.Getpid(), role), Image: vnode.Image{Kind: vnode.HostImage},
		Command: command, Network: networks,
	}
	if !strings.HasPrefix(self, "/usr/") { // which image host shows anyway
		n.Mounts = []vnode.Mount{{Source: self, Target: self, ReadOnly: true, Map: vnode.Identity}}
	}
	vnode.Defaults(n)
	return n
}

// BenchCable joins the host and a running node by a link that is in no spec, named hostIf here and ifname there. It
// goes with the node.
func (b *Berth) BenchCable(node, hostIf, ifname string, outside, inside netip.Prefix) error {
	return link.Cable(link.NS{PIDFile: b.Layout.Node(node).PIDFile()}, hostIf, ifname, outside, inside)
}
