package scratch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"berth/internal/spec/vnode"
	"berth/internal/storage/mounts"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// Source has what the plan of a volume needs besides the spec.
type Source struct {
	Pool Pool
	FS   string // its file system; "": a folder with a quota, or memory
}

// byQuota reports whether the volume is a folder with a project quota.
func (s Source) byQuota() bool { return s.Pool.Quota && s.FS == "" }

// Look reads the pools of a node's scratch volumes, in their order. Errors: refuse.NotFound for an unknown pool, refuse.Cannot
// if a program or the kernel lacks what it needs, refuse.Invalid for a file system where there is none to choose.
func (s Pools) Look(n *vnode.Node) ([]Source, error) {
	var all []Source
	for _, v := range n.Scratch {
		src, err := s.look(v, n.IsMachine())
		if err == nil && n.IsMachine() {
			err = src.forMachine()
		}
		if err == nil && src.byQuota() && !n.UserNS() {
			err = refuse.Cannotf("leave user_namespace out, or say fs: ext4: then it is a file with a file system of its own",
				"its project quota does not hold a node with user_namespace: false, whose root can take files out of their project")
		}
		if err != nil {
			return nil, fmt.Errorf("node %s: scratch %s: %w", n.Name, v.Target, err)
		}
		all = append(all, src)
	}
	return all, nil
}

// forMachine refuses what a machine cannot have as a disk. The host's udev reads each logical volume when it is closed, and would take
// what a guest wrote there for a file system or an array of the host's own.
func (s Source) forMachine() error {
	switch {
	case s.Pool.VG != "" || s.Pool.Memory:
		return refuse.Cannotf("name a pool in a folder (berth pool ls, berth pool add NAME --dir DIR)", "a machine takes volumes that are files, and pool %s is %s", s.Pool.Name, s.Pool)
	case s.byQuota():
		return refuse.Cannotf("say fs: ext4", "a machine takes volumes that are files, and pool %s makes folders, unless a file system is named", s.Pool.Name)
	}
	return nil
}

func (s Pools) look(v vnode.Scratch, machine bool) (src Source, err error) {
	if src.Pool, err = s.Get(poolOf(v)); err != nil {
		return src, err
	}
	src.FS = v.FS
	switch {
	case src.Pool.Memory && v.FS != "":
		return src, refuse.Invalidf("pool %s is in memory: it has no file system to choose, leave fs out", src.Pool.Name)
	case src.Pool.Memory:
		return src, memoryRoom(src.Pool, int64(v.Size))
	case src.byQuota():
		return src, nil
	}
	src.FS = cmp.Or(v.FS, vnode.Ext4)
	name, pkg := mkfs(src.FS)
	_, err = program(name, pkg)
	if err == nil && src.Pool.VG != "" {
		_, err = program(lvmProgram, lvmPackage)
	}
	if err == nil && src.Pool.Dir != "" && !machine {
		if _, loop := os.Stat("/dev/loop-control"); loop != nil {
			err = refuse.Cannotf("load the kernel's module loop, or use a pool of a volume group", "a volume in a file needs a loop device: %w", loop)
		}
	}
	return src, err
}

// memoryRoom refuses a file system in memory that is larger than the host's memory.
func memoryRoom(p Pool, size int64) error {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return fmt.Errorf("read the size of the memory: %w", err)
	}
	if whole := int64(info.Totalram) * int64(info.Unit); size > whole {
		return refuse.Cannotf("choose a smaller size", "a volume of %d MiB is larger than scratch pool %s: this host has %d MiB of memory", size>>20, p.Name, whole>>20)
	}
	return nil
}

// Claims returns the steps that make the volumes of a node. sources are those of Look. It is pure.
func (s Pools) Claims(n *vnode.Node, sources []Source) []step.Step {
	var all []step.Step
	for i, v := range n.Scratch {
		if src := sources[i]; !src.Pool.Memory {
			all = append(all, &Volume{
				Pools: s.Dir, Pool: src.Pool, Node: n.Name, Target: v.Target, Size: v.Size, FS: src.FS, Mode: octal(v.Mode),
				Mapped: n.UserNS() && !n.IsMachine(), Machine: n.IsMachine(),
			})
		}
	}
	return all
}

// Volumes returns the volumes among a node's claims.
func Volumes(claims []step.Step) []*Volume {
	var all []*Volume
	for _, c := range claims {
		if v, ok := c.(*Volume); ok {
			all = append(all, v)
		}
	}
	return all
}

// Opened returns the live step for the volumes of a node; none without volumes.
func Opened(volumes []*Volume) []step.Step {
	if len(volumes) == 0 {
		return nil
	}
	return []step.Step{&Open{Volumes: volumes}}
}

// Stage returns how the volume is staged at a path, from where it gets into a node.
func (v *Volume) Stage(at string) mounts.Stage {
	s := mounts.Stage{At: at, Target: v.Target}
	if v.FS == "" {
		s.Source = v.Path()
	} else {
		s.Volume = &mounts.Volume{Source: v.Path(), FSType: v.FS}
	}
	return s
}

// InMemory returns the volumes of a node that are in memory, as file systems of the spec's own kind for that.
func InMemory(n *vnode.Node, sources []Source) []vnode.Tmpfs {
	var all []vnode.Tmpfs
	for i, v := range n.Scratch {
		if sources[i].Pool.Memory {
			all = append(all, vnode.Tmpfs{Target: v.Target, Size: v.Size, Mode: v.Mode})
		}
	}
	return all
}

// Found is a volume of a pool as the host has it.
type Found struct {
	Name string `json:"name"`
	Node string `json:"node"`
	Size int64  `json:"size,omitempty"` // of a logical volume
}

// volumes lists the volumes of the pool: those that have the pool's id.
func (p Pool) volumes(ctx context.Context) ([]Found, error) {
	switch {
	case p.Memory:
		return nil, nil
	case p.Dir != "":
		return p.inFolders()
	}
	rows, err := p.logical(ctx)
	var all []Found
	for _, r := range rows {
		all = append(all, Found{Name: r["lv_name"], Node: r.node(), Size: r.int("lv_size")})
	}
	return all, err
}

// Holder runs f while no other command makes or removes the node of that name. has reports whether the node has a volume of
// that name, or has begun to make it.
type Holder func(ctx context.Context, node string, f func(has func(pool, name string) bool) error) error

// Sweep removes volumes that no node has: those of nodes whose records were lost. It returns a sentence for each.
func (s Pools) Sweep(ctx context.Context, hold Holder) (did []string, err error) {
	names, err := s.Names()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, name := range names {
		p, err := s.Get(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all, err := p.volumes(ctx)
		errs = append(errs, err)
		for _, found := range all {
			err := hold(ctx, found.Node, func(has func(pool, name string) bool) error {
				if has(p.ID, found.Name) {
					return nil
				}
				_, held, err := s.hold(ctx, p.Name)
				if err != nil {
					return err
				}
				defer held.Close()
				if p.VG != "" {
					err = p.removeLogical(ctx, held, found.Name)
				} else {
					err = p.removeInFolder(ctx, found.Name)
				}
				if err == nil {
					did = append(did, fmt.Sprintf("removed scratch volume %s of pool %s: there is no such volume of node %s", found.Name, p.Name, found.Node))
				}
				return err
			})
			errs = append(errs, err)
		}
	}
	return did, errors.Join(errs...)
}
