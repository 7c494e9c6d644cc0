// Package node composes a node's life: locks, journals, phases, state, repair, and the keeper. It is the only place
// that runs steps; what they are is the mechanisms' affair, and in which order the planner's.
package node

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/block"
	"berth/internal/cgroup"
	"berth/internal/device"
	"berth/internal/gateway"
	"berth/internal/host"
	"berth/internal/ids"
	"berth/internal/image"
	"berth/internal/layout"
	"berth/internal/link"
	"berth/internal/names"
	"berth/internal/nodelog"
	"berth/internal/oci"
	"berth/internal/plan"
	"berth/internal/refuse"
	"berth/internal/sriov"
	"berth/internal/step"
	"berth/internal/systemd"
	"berth/internal/vnode"
)

// Berth is the nodes of one host, kept under one root.
type Berth struct {
	Layout layout.Layout
	root   string // as given; "" is the default
	kinds  step.Kinds
	logs   *nodelog.Set // in the keeper, which starts runtimes itself: what nodes write; else nil
}

// Open opens the nodes kept under root, an absolute path; "" is the default place. It makes nothing.
func Open(root string) (*Berth, error) {
	if root != "" && !filepath.IsAbs(root) {
		return nil, refuse.Invalidf("root %q is not an absolute path", root)
	}
	return &Berth{
		Layout: layout.New(root), root: root,
		kinds: step.Join(block.Kinds(), cgroup.Kinds(), link.Kinds(), ids.Kinds(), image.Kinds(), oci.Kinds(), device.Kinds(), systemd.Kinds()),
	}, nil
}

func (b *Berth) inKeeper(logs *nodelog.Set) *Berth {
	k := *b
	k.logs = logs
	return &k
}

func (b *Berth) rootArgs() []string {
	if b.root == "" {
		return nil
	}
	return []string{"--root", b.root}
}

// launcher is how this process starts runtimes: by the keeper, unless it is the keeper.
func (b *Berth) launcher(name string) func(context.Context, *oci.Launch) error {
	if b.logs != nil {
		return func(ctx context.Context, l *oci.Launch) error { return b.launch(ctx, name, l) }
	}
	return b.createByKeeper(name)
}

// launch starts the runtime from the keeper, which holds the pipe to the node's log from here on: the first words of a
// node that ends at once are not lost.
func (b *Berth) launch(ctx context.Context, name string, l *oci.Launch) error {
	if err := b.logs.Open(name, b.log(name)); err != nil {
		return err
	}
	return l.Create(ctx)
}

// makeDirs makes the folders that all nodes share. They stay. A node's root must be able to pass through the live ones;
// the lasting ones are closed to all but the host's root, for the set-user-id programs in images and deltas.
func (b *Berth) makeDirs() error {
	for _, d := range []struct {
		path string
		mode fs.FileMode
	}{
		{b.Layout.Run, 0o711},
		{b.Layout.RunNodes(), 0o711},
		{filepath.Dir(b.Layout.Lock("x")), 0o700},
		{b.Layout.Lib, 0o700},
		{b.Layout.LibNodes(), 0o700},
	} {
		if err := os.MkdirAll(d.path, d.mode); err != nil {
			if errors.Is(err, fs.ErrPermission) {
				return refuse.Cannotf("run berth as root", "make folder %s: %w", d.path, err)
			}
			return fmt.Errorf("make folder: %w", err)
		}
	}
	if b.root == "" {
		return nil
	}
	return passable(b.Layout.Run)
}

// passable refuses a folder that a node's root could not reach: with ids of its own it is nobody on the host.
func passable(dir string) error {
	for ; dir != "/"; dir = filepath.Dir(dir) {
		fi, err := os.Stat(dir)
		if err != nil {
			return fmt.Errorf("look at folder: %w", err)
		}
		if fi.Mode().Perm()&0o001 == 0 {
			return refuse.Cannotf("chmod o+x "+dir+", or keep the nodes elsewhere",
				"the nodes kept here could not reach their own files: %s is closed to them (mode %04o)", dir, fi.Mode().Perm())
		}
	}
	return nil
}

// names lists the nodes that there is anything of.
func (b *Berth) names() ([]string, error) {
	var all []string
	for _, dir := range []string{b.Layout.LibNodes(), b.Layout.RunNodes()} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("list nodes: %w", err)
		}
		for _, e := range entries {
			all = append(all, e.Name())
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// lockNode locks a node that is there, and brings it out of what a killed command left.
func (b *Berth) lockNode(ctx context.Context, name string) (*lock, error) {
	if name != filepath.Base(name) || strings.HasPrefix(name, ".") {
		return nil, refuse.NotFoundf("%q is not a node's name; berth ls lists the nodes", name)
	}
	if _, err := os.Stat(b.Layout.Node(name).Lib); errors.Is(err, fs.ErrNotExist) {
		return nil, refuse.NotFoundf("no node %s; berth ls lists the nodes", name)
	}
	l, err := b.lock(ctx, name)
	if err != nil {
		return nil, err
	}
	err = b.settle(ctx, name)
	if err == nil {
		if _, err = b.stored(name); refuse.KindOf(err) != refuse.NotFound {
			err = nil // a node whose spec is damaged can be stopped and removed
		}
	}
	if err == nil {
		return l, nil
	}
	if refuse.KindOf(err) == refuse.NotFound {
		l.remove()
	} else {
		l.release()
	}
	return nil, err
}

func (b *Berth) cgroups() (host.Cgroups, error) { return host.ReadCgroups("/proc") }

// mounted is cgroups without what the hierarchies offer.
func (b *Berth) mounted() (host.Cgroups, error) { return host.ReadMounted() }

// groupPath is the cgroup of a stored node in every hierarchy, relative to its mount.
func (b *Berth) groupPath(name string) string {
	s, err := b.stored(name)
	if err != nil {
		return plan.GroupPath(b.Layout, &vnode.Node{Name: name})
	}
	return plan.GroupPath(b.Layout, s.Now)
}

var errRebooted = errors.New("the journal is from before the last boot")

func (b *Berth) liveJournal(name string) (*step.Journal, error) {
	j, err := step.Open(b.Layout.Node(name).Journal(), b.kinds)
	if err != nil {
		return nil, err
	}
	if boot, err := step.BootID(); err != nil || j.Boot != "" && j.Boot != boot {
		return nil, errors.Join(err, errRebooted)
	}
	return j, nil
}

func (b *Berth) claims(name string) (*step.Journal, error) {
	return step.Open(b.Layout.Node(name).Claims(), b.kinds)
}

// createdInit returns the step that made the node's init, if the node has one.
func (b *Berth) createdInit(name string) (*oci.Create, error) {
	j, err := b.liveJournal(name)
	if err != nil {
		return nil, err
	}
	if j.Phase != step.Up {
		return nil, fmt.Errorf("node %s is %s", name, j.Phase)
	}
	c := createStep(j)
	if c == nil {
		return nil, fmt.Errorf("node %s has no process 1", name)
	}
	return c, nil
}

// liveInit is createdInit of a node whose init runs.
func (b *Berth) liveInit(name string) (*oci.Create, error) {
	c, err := b.createdInit(name)
	if err != nil {
		return nil, err
	}
	if !alive(c.PID, c.StartTime) {
		return nil, fmt.Errorf("process 1 of node %s has ended", name)
	}
	return c, nil
}

// facts reads what the planner must know of this host to plan the start of the node.
func (b *Berth) facts(ctx context.Context, n *vnode.Node) (plan.Facts, error) {
	return b.factsKnowing(ctx, n, device.Table{})
}

// factsKnowing is facts for a node that has devices already, unless known is empty.
func (b *Berth) factsKnowing(ctx context.Context, n *vnode.Node, known device.Table) (plan.Facts, error) {
	f := plan.Facts{Layout: b.Layout}
	if err := plan.Supported(n); err != nil {
		return f, err
	}
	if os.Geteuid() != 0 {
		return f, refuse.Cannotf("run berth as root", "only root can make nodes")
	}
	if err := b.makeDirs(); err != nil {
		return f, err
	}
	var err error
	if f.Host, err = hostFacts(n); err != nil {
		return f, err
	}
	if f.SiteID, err = b.siteID(); err != nil {
		return f, err
	}
	if f.Runtime, err = b.runtime(ctx); err != nil {
		return f, err
	}
	if f.Image, err = image.Open(b.Layout).Resolve(n.Image); err != nil {
		return f, err
	}
	if f.Image.Plain {
		if f.Root, err = image.ReadHostRoot("/"); err != nil {
			return f, err
		}
	}
	if f.Command, err = b.commandOf(n, f.Image); err != nil {
		return f, err
	}
	f.Resolver = names.Resolver("/")
	if f.Mask, err = oci.ThermalPaths("/sys"); err != nil {
		return f, err
	}
	if f.Links, err = link.ReadFacts(n.Network, n.Standing().NetPriority, sriov.Leases(b.Layout.VFLeases())); err != nil {
		return f, err
	}
	if f.Links.Pooled, err = plan.PooledMACs(n, f); err != nil {
		return f, err
	}
	if err = b.deviceFacts(&f, n, known); err != nil {
		return f, err
	}
	for _, m := range n.Mounts {
		gw, err := gateway.For(m.Gateway)
		if err != nil {
			return f, err
		}
		r, err := gw.Look(m, gateway.Node{UserNS: n.UserNS(), Layout: b.Layout})
		if err != nil {
			return f, err
		}
		f.Mounts = append(f.Mounts, r)
	}
	return f, nil
}

// hostFacts reads the facts of the host, and those that only some nodes ask for.
func hostFacts(n *vnode.Node) (host.Facts, error) {
	f, err := host.ReadFacts()
	if err == nil && len(n.HugePages) > 0 {
		f.Cgroups.ReadHugeFree()
	}
	return f, err
}

// commandOf says what runs as the node's process 1: the spec's command, else the image's own. An init that was installed
// in the node later, into its delta, is one too.
func (b *Berth) commandOf(n *vnode.Node, img image.Image) (plan.Command, error) {
	c := plan.Command{Args: n.Command}
	if len(c.Args) == 0 {
		c.Args = img.Config.Command()
	}
	upper := ""
	if image.InitNamed(c.Args) && n.Delta.In != vnode.InMemory {
		if s, err := b.stored(n.Name); err == nil && sameRoot(s.Now, n) {
			upper = (&image.Delta{Path: b.Layout.Node(n.Name).Delta()}).Upper()
		}
	}
	c.Init = oci.Init(image.InitKind(img, upper, c.Args))
	uid, gid, err := image.User(img)
	c.User = oci.User{UID: uid, GID: gid}
	return c, err
}

// siteID is what derived MACs of this site depend on. A site that wants the same MACs on all its hosts copies the file.
func (b *Berth) siteID() (string, error) {
	path := b.Layout.SiteID()
	id, err := os.ReadFile(path)
	if err == nil && len(id) > 0 {
		return strings.TrimSpace(string(id)), nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read site id: %w", err)
	}
	dir, err := os.Open(b.Layout.Lib)
	if err != nil {
		return "", fmt.Errorf("write site id: %w", err)
	}
	defer dir.Close() // and with it the lock
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return "", fmt.Errorf("write site id: %w", err)
	}
	if id, err := os.ReadFile(path); err == nil && len(id) > 0 {
		return strings.TrimSpace(string(id)), nil
	}
	random := make([]byte, 16)
	_, _ = rand.Read(random) // never fails: crypto/rand
	text := hex.EncodeToString(random)
	if err := os.WriteFile(path+".tmp", []byte(text+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("write site id: %w", err)
	}
	step.Fault("site id written")
	if err := os.Rename(path+".tmp", path); err != nil {
		return "", fmt.Errorf("write site id: %w", err)
	}
	return text, nil
}
