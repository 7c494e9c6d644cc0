package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/block"
	"berth/internal/refuse"
	"berth/internal/vnode"
)

// makeDiskBed lays out a file in each folder, fills the devices, and makes a node that has them at the same paths.
func makeDiskBed(ctx context.Context, d *definition, o *StudyOptions, lab Lab) (_ *bed, err error) {
	b := &bed{}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	disks, err := d.chosen(o)
	if err != nil {
		return nil, err
	}
	if err := b.layOut(ctx, disks, o); err != nil {
		return nil, err
	}
	spec := diskNode(b.targets)
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("put the node's spec into the report: %w", err)
	}
	arm, remove, err := lab.Node(ctx, spec)
	if err != nil {
		return nil, err
	}
	b.undo = append(b.undo, func() error { remove(); return nil })
	b.arms = []bedArm{
		{ArmInfo: ArmInfo{Name: hostArm, Title: "host"}, run: Host},
		{ArmInfo: ArmInfo{Name: nodeArm, Title: "container node", Node: text}, run: arm},
	}
	b.withNull()
	b.gone = func() error { return b.trouble(d) }
	return b, b.diskRows(d)
}

// layOut makes the targets ready.
func (b *bed) layOut(ctx context.Context, disks []Options, o *StudyOptions) error {
	for _, one := range disks {
		t, undo, err := prepare(ctx, one, func(done, total int64) {
			o.tell(Progress{What: layOut, Done: done, Total: total})
		})
		if err != nil {
			return err
		}
		b.undo = append(b.undo, undo)
		disk, err := diskOf(t)
		if err != nil {
			return err
		}
		b.targets = append(b.targets, DiskUsed{Target: t, Disk: disk})
	}
	return nil
}

// diskNode is the node that disk experiments run their commands in: image host, so that both arms run the same binaries.
func diskNode(targets []DiskUsed) *vnode.Node {
	n := &vnode.Node{
		Name: fmt.Sprintf("bench-%d", os.Getpid()), Image: vnode.Image{Kind: vnode.HostImage},
		Command: []string{"/bin/sleep", "infinity"},
	}
	for _, t := range targets {
		if t.Kind == "file" {
			dir := filepath.Dir(t.Path)
			n.Mounts = append(n.Mounts, vnode.Mount{Source: dir, Target: dir})
		} else {
			n.Devices = append(n.Devices, vnode.Device{Path: t.Path, Access: "rw"})
		}
	}
	vnode.Defaults(n)
	return n
}

// diskRows makes the rows that the targets allow.
func (b *bed) diskRows(d *definition) error {
	for _, j := range d.disk {
		var together []Target
		for i, t := range b.targets {
			name := j.Name
			switch {
			case t.DirectIO > 0 && j.Block%t.DirectIO != 0:
				b.notes = append(b.notes, fmt.Sprintf("%s is left out: direct requests come in multiples of %d bytes here", name, t.DirectIO))
				continue
			case d.disks == eachDisk && len(b.targets) > 1:
				name = fmt.Sprintf("%s, disk %d", name, i+1)
			}
			if d.disks == allDisks {
				together = append(together, t.Target)
				continue
			}
			if err := b.addRow(d, j, name, []Target{t.Target}); err != nil {
				return err
			}
		}
		if together != nil {
			if err := b.addRow(d, j, j.Name, together); err != nil {
				return err
			}
		}
	}
	if len(b.rows) == 0 {
		return refuse.Cannotf("measure another disk", "no row of %s can be measured here: %s", d.Name, strings.Join(b.notes, "; "))
	}
	return nil
}

func (b *bed) addRow(d *definition, j diskJob, name string, targets []Target) error {
	r := bedRow{StudyRow: StudyRow{Name: name}, job: diskRun{j, targets}, cold: j.Cold}
	if j.Value > 0 {
		r.Value = &j.Value
	}
	if j.Threads*len(targets) > boundThreads*runtime.NumCPU() {
		r.Flags = append(r.Flags, SchedulerBound)
	}
	shape := map[string]Shape{"fio-b": SequentialWrite, "fio-d": RandomRead}[d.Name]
	if shape != "" {
		p, err := published(Row{Shape: shape, Block: j.Block})
		if err != nil {
			return err
		}
		if p != nil {
			r.Published = []Figure{{
				Measure: "iops", Host: p.HostIOPS, Node: p.NodeIOPS, PenaltyPct: p.PenaltyPct, What: "LXC, Intel DC P3700, 2015",
			}}
		}
	}
	b.rows = append(b.rows, r)
	return nil
}

// trouble says in one sentence why trials may fail: a disk that vanished, or one that is full.
func (b *bed) trouble(d *definition) error {
	for _, t := range b.targets {
		if t.Kind == "device" {
			if _, err := block.Resolve("/sys", t.Path); err != nil {
				return refuse.NotFoundf("the device %s is gone since the measurement began: %w", t.Path, err)
			}
		}
		if err := readable(t.Path); err != nil {
			return refuse.NotFoundf("%s can no longer be read, its disk is gone or broken: %w", t.Path, err)
		}
		var st unix.Statfs_t
		if !slices.ContainsFunc(d.disk, func(j diskJob) bool { return j.Fresh }) || t.Kind != "file" {
			continue
		}
		if err := unix.Statfs(t.Path, &st); err == nil && int64(st.Bavail)*st.Bsize < t.Size {
			return refuse.Cannotf("free some space", "the disk of %s has become full: a new file of %s does not fit", t.Path, vnode.Bytes(t.Size))
		}
	}
	return nil
}

// readable reads the first block without the page cache.
func readable(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	const size = 4096 // as aligned as any disk wants it
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	n, err := unix.Pread(fd, mem, 0)
	if err == nil && n < size {
		err = io.ErrUnexpectedEOF // a device that went away has no bytes
	}
	return errors.Join(err, unix.Munmap(mem))
}
