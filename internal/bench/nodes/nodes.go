// Package nodes makes the nodes that benchmarks run in, and runs commands in them.
package nodes

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

	"berth/internal/host/netif"
	"berth/internal/image"
	"berth/internal/network/link"
	"berth/internal/node"
	"berth/internal/spec/vnode"
	"berth/internal/storage/gateway"
	"berth/internal/sys/fork"
	"berth/internal/sys/layout"
)

// Disk is the node that a disk benchmark runs its commands in: image host, so that both arms run the same
// binaries, with the measured folder or device at the same path.
func Disk(dir, device string, writes bool) *vnode.Node {
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
func CheckFolder(l layout.Layout, dir string) error {
	_, err := gateway.Bind{}.Look(context.Background(), vnode.Mount{Source: dir, Target: dir}, gateway.Node{Layout: l})
	return err
}

// CheckMount refuses a mount that this host cannot give to a node.
func CheckMount(ctx context.Context, l layout.Layout, m vnode.Mount) error {
	g, err := gateway.All().For(m.Gateway)
	if err == nil {
		_, err = g.Look(ctx, m, gateway.Node{UserNS: true, Layout: l})
	}
	return err
}

// Arm makes the node and returns how to run a command in it: its standard output, and an error that holds what it
// wrote to standard error. done removes the node. If this process is killed, the keeper removes it. For unfiltered see
// node.Berth.Throwaway.
func Arm(ctx context.Context, b *node.Berth, n *vnode.Node, unfiltered bool) (arm func(context.Context, []string) ([]byte, error), done func(), err error) {
	if done, err = b.Throwaway(ctx, n, unfiltered); err != nil {
		return nil, nil, err
	}
	args := append(b.Layout.Args(), "exec", n.Name, "--")
	return func(ctx context.Context, argv []string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, "/proc/self/exe", append(slices.Clip(args), argv...)...)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		// berth exec passes SIGTERM on to the command; killed, it would leave it running.
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.WaitDelay = 10 * time.Second
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := fork.Run(cmd); err != nil {
			if ctx.Err() != nil {
				return stdout.Bytes(), ctx.Err()
			}
			return stdout.Bytes(), fmt.Errorf("run %s in node %s: %w: %s", argv[0], n.Name, err, strings.TrimSpace(stderr.String()))
		}
		return stdout.Bytes(), nil
	}, done, nil
}

// Upper is the folder in which a node's overlay keeps what the node writes.
func Upper(l layout.Layout, node string) string {
	return (&image.Delta{Path: l.Node(node).Delta()}).Upper()
}

// Net is a node that a network benchmark runs its commands in: image host, with the program self (this one,
// which is a part of the measurement) at the same path.
func Net(role, self string, command []string, networks ...vnode.Network) *vnode.Node {
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

// Cable joins the host and a running node by a link that is in no spec, named hostIf here and ifname there. It
// goes with the node.
func Cable(l layout.Layout, node, hostIf, ifname string, outside, inside netip.Prefix) error {
	return link.Cable(netif.NS{PIDFile: l.Node(node).PIDFile()}, hostIf, ifname, outside, inside)
}
