package bed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/bench/published"
	"berth/internal/bench/result"
	"berth/internal/bench/side"
	"berth/internal/host/block"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// makeDiskBed lays out a file in each folder, fills the devices, and makes a node that has them at the same paths.
func makeDiskBed(ctx context.Context, b *Bed, d *Definition, o *Options, lab Lab) error {
	if err := b.LayOut(ctx, d, o); err != nil {
		return err
	}
	if err := b.hostAndNode(ctx, d, o, lab); err != nil {
		return err
	}
	return b.DiskRows(d)
}

// LayOut makes the targets of an experiment ready.
func (b *Bed) LayOut(ctx context.Context, d *Definition, o *Options) error {
	disks, err := d.Chosen(o)
	if err != nil {
		return err
	}
	b.Gone = func() error { return errors.Join(b.holderGone(ctx), b.trouble(d)) }
	for _, one := range disks {
		t, undo, err := prepare(ctx, one, func(done, total int64) {
			o.Tell(Progress{What: LayOut, Done: done, Total: total})
		})
		if err != nil {
			return err
		}
		b.undo = append(b.undo, b.hold(one, t, undo))
		disk, err := side.DiskOf(t)
		if err != nil {
			return err
		}
		if t.ReadsOnly {
			b.Notes = append(b.Notes, "the device was not written first: blocks that never were may be read without its medium")
		}
		b.Targets = append(b.Targets, result.DiskUsed{Target: t, Disk: disk})
	}
	return nil
}

// DiskRows makes the rows that the targets allow.
func (b *Bed) DiskRows(d *Definition) error {
	for _, j := range d.Disk {
		var together []result.Target
		for i, t := range b.Targets {
			name := j.Name
			switch {
			case t.ReadsOnly && j.writes():
				b.Notes = append(b.Notes, name+" is left out: a device is written only with --destroy-data")
				continue
			case t.DirectIO > 0 && j.Block%t.DirectIO != 0:
				b.Notes = append(b.Notes, fmt.Sprintf("%s is left out: direct requests come in multiples of %d bytes here", name, t.DirectIO))
				continue
			case d.Disks == EachDisk && len(b.Targets) > 1:
				name = fmt.Sprintf("%s, disk %d", name, i+1)
			}
			if d.Disks == allDisks {
				together = append(together, t.Target)
				continue
			}
			if err := b.addRow(d, j, name, []result.Target{t.Target}); err != nil {
				return err
			}
		}
		if together != nil {
			if err := b.addRow(d, j, j.Name, together); err != nil {
				return err
			}
		}
	}
	if len(b.Rows) == 0 {
		return refuse.Cannotf("measure another disk", "no row of %s can be measured here: %s", d.Name, strings.Join(b.Notes, "; "))
	}
	return nil
}

func (b *Bed) addRow(d *Definition, j Job, name string, targets []result.Target) error {
	r := Row{Row: result.Row{Name: name}, Job: DiskRun{j, targets}, Cold: j.Cold}
	if j.Value > 0 {
		r.Value = &j.Value
	}
	if j.Threads*len(targets) > boundThreads*runtime.NumCPU() {
		r.Flags = append(r.Flags, result.SchedulerBound)
	}
	if d.Name == "fio-b" || d.Name == "fio-d" || d.Name == "disk" {
		p, err := published.Disk(j.Pattern, j.Block)
		if err != nil {
			return err
		}
		if p != nil {
			r.Published = []result.Figure{*p}
		}
	}
	if b.hasMachine() {
		for i := range r.Published {
			r.Published[i].Arm = result.Node
		}
		if strings.HasPrefix(d.Name, "wnodes-") {
			r.Published = append(r.Published, published.OfMachine("bytes_per_second", published.MachineDiskLoss))
		}
	}
	b.Rows = append(b.Rows, r)
	return nil
}

// trouble says in one sentence why trials may fail: a disk that vanished, or one that is full.
func (b *Bed) trouble(d *Definition) error {
	for _, t := range b.Targets {
		if t.Kind == "device" {
			if _, err := block.Resolve("/sys", t.Path); err != nil {
				return refuse.NotFoundf("the device %s is gone since the measurement began: %w", t.Path, err)
			}
		}
		if err := readable(t.Path); err != nil {
			return refuse.NotFoundf("%s can no longer be read, its disk is gone or broken: %w", t.Path, err)
		}
		var st unix.Statfs_t
		if !slices.ContainsFunc(d.Disk, func(j Job) bool { return j.Fresh }) || t.Kind != "file" {
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
