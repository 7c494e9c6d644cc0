package bed

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"berth/internal/bench/fio"
	"berth/internal/bench/side"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// The places that are measured beside pools of scratch volumes and nfs.
const (
	deltaArm    = "delta"
	xfsArm      = "xfs"
	xfsTunedArm = "xfs-published"
)

// xfsOptions are the mount options of the first publication.
const xfsOptions = "logbufs=8,logbsize=256k,noatime,swalloc,inode64"

// fileSystemSpare is what XFS needs beside the data, bytes: it is at least 300 MB large.
const fileSystemSpare = 400 << 20

// leastMemory is the smallest memory that fio and the node's first process have room in.
const leastMemory = 64 << 20

// storage makes one node with little memory that has each place, and lays out the data in each.
func (t *treeBed) storage(ctx context.Context, rows []treeRow) error {
	if t.o.Size < 2*leastMemory {
		return refuse.Invalidf("the size is %s; the set storage takes at least %s: the node has half of it as memory", vnode.Bytes(t.o.Size), vnode.Bytes(2*leastMemory))
	}
	if err := t.begin(ctx, 1); err != nil {
		return err
	}
	dirs := map[string]string{deltaArm: "/var/tmp"}
	arms := []string{deltaArm}
	mounts, err := t.xfs(ctx)
	if err != nil {
		return err
	}
	for _, m := range mounts {
		arm := filepath.Base(m.Target)
		arms, dirs[arm] = append(arms, arm), m.Target
	}
	if slices.Contains(t.o.gateways(), nfsArm) {
		served, more, err := t.reach(ctx, []string{nfsArm})
		if err != nil {
			return err
		}
		for i, arm := range served {
			arms, dirs[arm] = append(arms, arm), filepath.Join(more[i].Target, "1")
		}
		mounts = append(mounts, more...)
	}
	spec := t.spec(0, mounts)
	spec.Memory.Max = vnode.Bytes(t.o.Size / 2)
	for _, pool := range t.o.Pools {
		arm := "scratch " + pool
		s := vnode.Scratch{Target: "/mnt/scratch-" + pool, Size: vnode.Bytes(2*t.o.Size + fileSystemSpare), Pool: pool}
		spec.Scratch = append(spec.Scratch, s)
		arms, dirs[arm] = append(arms, arm), s.Target
	}
	run, err := t.Node(ctx, t.lab, spec)
	if err != nil {
		return err
	}
	for _, arm := range arms {
		t.places[arm] = []place{{run, dirs[arm]}}
		if err := t.AddArm(Side{Name: arm, Title: arm, Run: run, Node: spec}); err != nil {
			return err
		}
		if arm == nfsArm {
			continue // the file of the host
		}
		t.o.Tell(Progress{What: "lay out " + arm})
		lay := fio.Job{Files: []string{filepath.Join(dirs[arm], dataName)}, Size: t.o.Size, Pattern: "write", Block: 1 << 20, Make: true, Fsync: true}
		if _, err := run(ctx, lay.Args()); err != nil {
			return fmt.Errorf("lay out the data of %s: %w", arm, err)
		}
	}
	if len(t.o.Pools) == 0 {
		t.Notes = append(t.Notes, "no scratch volume is measured: --pool names pools of berth pool ls")
	}
	t.Notes = append(t.Notes, fmt.Sprintf("the node has %s of memory, half of the file; the host's arms have no limit", spec.Memory.Max),
		"the delta lies where Berth keeps its state, which may be another disk than that of the folder", "xfs-published: mount options "+xfsOptions)
	t.addRows(rows)
	return nil
}

// xfs makes two file systems in files on the tree's disk, mounted with the default and with the published options, and returns mounts
// of them.
func (t *treeBed) xfs(ctx context.Context) ([]vnode.Mount, error) {
	if err := CheckFolder(t.dir, 2*(2*t.o.Size+fileSystemSpare)); err != nil {
		return nil, err
	}
	var mounts []vnode.Mount
	for arm, options := range map[string]string{xfsArm: "defaults", xfsTunedArm: xfsOptions} {
		if err := t.xfsIn(ctx, arm, options); err != nil {
			t.Notes = append(t.Notes, arm+" is left out: "+err.Error())
			continue
		}
		mounts = append(mounts, vnode.Mount{Source: filepath.Join(t.dir, "mnt-"+arm), Target: "/mnt/" + arm, Gateway: vnode.BindGateway})
	}
	slices.SortFunc(mounts, func(a, b vnode.Mount) int { return strings.Compare(a.Target, b.Target) })
	return mounts, nil
}

func (t *treeBed) xfsIn(ctx context.Context, arm, options string) error {
	image, at := filepath.Join(t.dir, arm+".img"), filepath.Join(t.dir, "mnt-"+arm)
	if err := os.Mkdir(at, 0o755); err != nil {
		return err
	}
	size := strconv.FormatInt(2*t.o.Size+fileSystemSpare, 10)
	for _, argv := range [][]string{{"fallocate", "-l", size, image}, {"mkfs.xfs", "-q", image}} {
		if _, err := side.Host(ctx, argv); err != nil {
			return err
		}
	}
	out, err := side.Host(ctx, []string{"losetup", "--find", "--show", "--direct-io=on", image})
	if err != nil {
		return err
	}
	device := strings.TrimSpace(string(out))
	_, err = side.Host(ctx, []string{"mount", "-t", "xfs", "-o", options, device, at})
	if _, e := side.Host(ctx, []string{"losetup", "--detach", device}); err == nil { // the mount holds it until it ends
		err = e
	}
	return err
}
