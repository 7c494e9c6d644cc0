// Package suspects makes variants of a node that differ from it in one ingredient (the user namespace, the overlay, a cgroup), so
// that a benchmark shows what each ingredient costs.
package suspects

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"berth/internal/bench/bed"
	"berth/internal/bench/nodes"
	"berth/internal/bench/result"
	"berth/internal/bench/side"
	"berth/internal/host"
	"berth/internal/node"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// Suspects are the arms of one run of berth bench explain. Prepare makes them, Close removes what they need.
type Suspects struct {
	Berth      *node.Berth
	Options    bed.Options // with one folder or one device
	Jobs       []int       // other numbers of threads to try
	Schedulers bool        // other I/O schedulers of the device
	Only       []string    // names of what is tried; empty: all

	// Made by Prepare: the row as it is, and the arms in which one ingredient differs.
	Sides  []bed.Side
	Lineup bed.Lineup

	undo []func() error
}

// dir is the folder that is measured, "" for a device.
func (x *Suspects) dir() string { return append(slices.Clone(x.Options.Dirs), "")[0] }

// device is the device that is measured, "" for a folder.
func (x *Suspects) device() string { return append(slices.Clone(x.Options.Devices), "")[0] }

// Close removes the nodes and cgroups, and gives the disk its scheduler back.
func (x *Suspects) Close() error {
	var err error
	for _, u := range slices.Backward(x.undo) {
		err = errors.Join(err, u())
	}
	return err
}

// Prepare makes the arms for one row. What this host cannot try is named in the lineup.
func (x *Suspects) Prepare(ctx context.Context, row bed.Job) error {
	base := nodes.Disk(x.dir(), x.device(), x.Options.DestroyData)
	inNode, err := x.node(ctx, base, "", false)
	if err != nil {
		return err
	}
	t := bed.Trying{
		Row: row, Device: x.device(), Writes: x.device() == "" || x.Options.DestroyData, Cores: runtime.NumCPU(),
		Jobs: x.Jobs, Schedulers: x.Schedulers, Only: x.Only, Node: inNode,
	}
	if err := x.nodes(ctx, t); err != nil {
		return err
	}
	groups, err := host.ReadCgroups("/proc")
	if err != nil {
		return err
	}
	if err := x.keep(x.Lineup.Groups(t, groups, os.Getpid())); err != nil {
		return err
	}
	if err := x.keep(x.Lineup.Settings(t)); err != nil { // last: it fixes the scheduler for all arms
		return err
	}
	x.Sides = x.Lineup.AsItIs([]bed.Side{
		{Name: result.Host, Title: "host", Run: side.Host},
		{Name: result.Null, Title: "host again", Run: side.Host},
		{Name: result.Node, Title: "container node", Run: inNode, Node: base},
	})
	return x.Lineup.Check(t)
}

func (x *Suspects) keep(undo func() error, err error) error {
	if undo != nil {
		x.undo = append(x.undo, undo)
	}
	return err
}

// node makes a node, appends variant to its name, and returns its arm.
func (x *Suspects) node(ctx context.Context, n *vnode.Node, variant string, unfiltered bool) (side.Arm, error) {
	n.Name += variant
	n.Hostname = ""
	vnode.Defaults(n)
	if wrong := vnode.Validate(n); len(wrong) > 0 {
		return nil, refuse.Invalidf("%s: %s", wrong[0].Field, wrong[0].Msg)
	}
	arm, done, err := nodes.Arm(ctx, x.Berth, n, unfiltered)
	if err != nil {
		return nil, err
	}
	x.undo = append(x.undo, func() error { done(); return nil })
	return arm, nil
}

// nodes adds the nodes that differ in one ingredient. The report names those that this host cannot make.
func (x *Suspects) nodes(ctx context.Context, t bed.Trying) error {
	fresh := func() *vnode.Node { return nodes.Disk(x.dir(), x.device(), x.Options.DestroyData) }
	if t.Wants("seccomp") {
		if arm, err := x.node(ctx, fresh(), "-unfiltered", true); err != nil {
			x.Lineup.LeftOut("seccomp", err.Error())
		} else {
			x.Lineup.Lacks("seccomp", "the node without its filter of system calls, against the node", arm, "")
		}
	}
	if !t.Wants("user-namespace") && !t.Wants("root") && !t.Wants("overlay") {
		return nil
	}
	root, err := x.plainRoot()
	if err != nil {
		return err
	}
	// plain gives a node a root folder on an overlay; image host has links and mounts instead.
	plain := func(n *vnode.Node) *vnode.Node {
		n.Image = vnode.Image{Kind: vnode.DirImage, Ref: root}
		n.Mounts = append(n.Mounts, vnode.Mount{Source: "/usr", Target: "/usr", ReadOnly: true, Map: vnode.Identity})
		return n
	}
	if t.Wants("overlay") {
		if err := x.overlay(ctx, plain(nodes.Disk("", "", false))); err != nil {
			x.Lineup.LeftOut("overlay", err.Error())
		}
	}
	if t.Wants("user-namespace") || t.Wants("root") {
		if err := x.noUserNS(ctx, plain(fresh()), plain(fresh())); err != nil {
			x.Lineup.LeftOut("user-namespace", err.Error())
		}
	}
	return ctx.Err()
}

// noUserNS adds two nodes on the plain root: one with and one without a user namespace. Image host refuses the latter.
func (x *Suspects) noUserNS(ctx context.Context, with, without *vnode.Node) error {
	rooted, err := x.node(ctx, with, "-plain", false)
	if err != nil {
		return err
	}
	x.Lineup.Lacks("root", "a node whose root is an overlay, against the node, whose root (image host) is none", rooted, "")
	no := false
	without.UserNamespace = &no
	arm, err := x.node(ctx, without, "-no-userns", false)
	if err != nil {
		return err
	}
	x.Lineup.Lacks("user-namespace", "a node without user namespace and without mapping of ids, against the same with them", arm, "node without root")
	return nil
}

// plainRoot makes a root folder for nodes, with links into /usr.
func (x *Suspects) plainRoot() (string, error) {
	dir, err := os.MkdirTemp("", "berth-root-")
	if err != nil {
		return "", fmt.Errorf("make a root for nodes: %w", err)
	}
	x.undo = append(x.undo, func() error { return os.RemoveAll(dir) })
	if err := linkUsr(dir); err != nil {
		return "", fmt.Errorf("make a root for nodes: %w", err)
	}
	return dir, nil
}

// linkUsr makes the host's links into /usr (/bin, /lib and so on) in dir, and the folders that a root needs.
func linkUsr(dir string) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		if to, err := os.Readlink("/" + name); err == nil {
			if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
				return err
			}
		}
	}
	for _, name := range []string{"usr", "tmp", "dev", "proc", "sys", "etc"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// overlay adds a node that measures a file on its own overlay. It fails if the overlay is not on the measured disk.
func (x *Suspects) overlay(ctx context.Context, n *vnode.Node) error {
	if x.dir() == "" {
		return errors.New("a device is measured, no file")
	}
	arm, err := x.node(ctx, n, "-overlay", false)
	if err != nil {
		return err
	}
	path, err := bed.LayOutBeside(ctx, bed.Storage{Dir: x.dir(), Size: x.Options.Size}, nodes.Upper(x.Berth.Layout, n.Name))
	if err != nil {
		return err
	}
	x.Lineup.Overlay(side.OnFile(arm, "/"+filepath.Base(path)), side.OnFile(side.Host, path))
	return nil
}
