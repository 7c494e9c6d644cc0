package scratch

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"berth/internal/host/block"
	"berth/internal/spec/vnode"
	"berth/internal/sys/quota"
)

// Listed is a pool with its volumes.
type Listed struct {
	Pool
	Size    int64   `json:"size,omitempty"` // bytes of the volume group, thin pool or file system
	Free    int64   `json:"free,omitempty"`
	Volumes []Found `json:"volumes"`
	Trouble string  `json:"trouble,omitempty"` // why no volume can be made in it now
}

// List returns all pools as the host has them now.
func (s Pools) List(ctx context.Context) ([]Listed, error) {
	names, err := s.Names()
	if err != nil {
		return nil, err
	}
	var all []Listed
	for _, name := range names {
		p, err := s.Get(name)
		if err != nil {
			all = append(all, Listed{Pool: Pool{Name: name}, Volumes: []Found{}, Trouble: err.Error()})
			continue
		}
		l := Listed{Pool: p, Volumes: []Found{}}
		found, err := p.volumes(ctx)
		if err == nil {
			l.Volumes = append(l.Volumes, found...)
			err = l.measure(ctx)
		}
		if err != nil {
			l.Trouble = err.Error()
		}
		all = append(all, l)
	}
	return all, nil
}

// present refuses a pool whose place, or a part of it, is not on the host now.
func (p Pool) present(ctx context.Context) error {
	switch {
	case p.Dir != "":
		return p.there()
	case p.VG == "":
		return nil
	}
	groups, err := report(ctx, "vgs", "vg_name,vg_missing_pv_count")
	if err != nil {
		return err
	}
	for _, r := range groups {
		if r["vg_name"] != p.VG {
			continue
		}
		if n := r.int("vg_missing_pv_count"); n > 0 {
			return fmt.Errorf("volume group %s lacks %d of its disks", p.VG, n)
		}
		return nil
	}
	return fmt.Errorf("volume group %s is not there", p.VG)
}

// measure fills in Size and Free.
func (l *Listed) measure(ctx context.Context) error {
	switch p := l.Pool; {
	case p.Dir != "":
		if err := p.there(); err != nil {
			return err
		}
		var st unix.Statfs_t
		if err := unix.Statfs(p.own(), &st); err != nil {
			return err
		}
		l.Size, l.Free = int64(st.Blocks)*st.Bsize, int64(st.Bavail)*st.Bsize
	case p.VG != "":
		var err error
		l.Size, l.Free, err = p.groupSize(ctx)
		return err
	}
	return nil
}

// Place is where a node's scratch volume lies.
type Place struct {
	Target string      `json:"target"`
	Pool   string      `json:"pool"`
	Size   vnode.Bytes `json:"size"`
	FS     string      `json:"fs"`              // "quota": a folder with a project quota; "tmpfs": memory
	Files  int64       `json:"files,omitempty"` // with a quota: how many files and folders it may have
	Path   string      `json:"path,omitempty"`  // on the host: a device, file or folder
	Disks  []string    `json:"disks"`           // the kernel's names of the disks that hold it, on which limits act
	Limits []string    `json:"limits"`          // the names of the node's io entries that act on it
	Note   string      `json:"note,omitempty"`  // why its disks are not known
}

// Places tells where the volumes of a node lie: of one that has claimed them, with their names.
func (s Pools) Places(sys string, n *vnode.Node, claimed []*Volume) []Place {
	var all []Place
	for _, v := range n.Scratch {
		p := Place{Target: v.Target, Pool: poolOf(v), Size: v.Size, Disks: []string{}, Limits: []string{}}
		for _, c := range claimed {
			if c.Target == v.Target {
				p.look(sys, n, c)
			}
		}
		if p.FS == "" { // not made: in memory, or the node has never started
			pool, err := s.Get(p.Pool)
			if err != nil {
				p.Note = err.Error()
			} else if pool.Memory {
				p.FS = "tmpfs"
			}
		}
		all = append(all, p)
	}
	return all
}

func (p *Place) look(sys string, n *vnode.Node, v *Volume) {
	p.FS, p.Path = v.FS, v.Path()
	if v.FS == "" {
		p.FS, p.Files = "quota", quota.Files(int64(v.Size))
	}
	under := block.LayersUnder
	if v.Pool.VG != "" {
		under = block.Layers
	}
	layers, err := under(sys, p.Path)
	if err != nil {
		p.Note = err.Error()
		return
	}
	numbers := map[string]bool{}
	p.walk(layers, numbers)
	for _, io := range n.IO {
		if io.Filesystem != "" {
			continue
		}
		if d, err := block.Find(sys, io); err == nil && numbers[d.Number()] {
			p.Limits = append(p.Limits, io.Name)
		}
	}
}

// walk collects the numbers of all layers, and the names of the lowest.
func (p *Place) walk(l *block.Layer, numbers map[string]bool) {
	numbers[l.Number] = true
	if len(l.Below) == 0 {
		if !slices.Contains(p.Disks, l.Name) {
			p.Disks = append(p.Disks, l.Name)
		}
	}
	for _, b := range l.Below {
		p.walk(b, numbers)
	}
}
