package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/block"
	"berth/internal/cgroup"
	"berth/internal/device"
	"berth/internal/host"
	"berth/internal/plan"
	"berth/internal/step"
	"berth/internal/vnode"
)

// replugged brings a running node's devices and its limits on disks in line with what is plugged in now: what is gone
// it has no more, what came back it gets again with its limits, whatever number that has now, and a limit of its own
// that lies on a disk that took over a number is taken away. The caller holds its lock.
//
// It is no change of what the node is, and is not journalled: killed, the table on disk says what it was before, and
// the next one does all of it again.
func (b *Berth) replugged(ctx context.Context, name string) (did string, err error) {
	path := b.Layout.Node(name).Devices()
	old, err := device.ReadTable(path)
	if err != nil || old.Empty() {
		return "", err
	}
	if _, err := b.liveInit(name); err != nil {
		return "", nil //nolint:nilerr // it does not run
	}
	now := old.Now("/sys")
	if now.Equal(old) {
		return "", nil
	}
	s, err := b.stored(name)
	if err != nil {
		return "", err
	}
	cg, err := b.cgroups()
	if err != nil {
		return "", err
	}
	step.Fault("replugged begins")
	in, err := b.running(name)
	if err != nil {
		return "", err
	}
	// First what must not act on another device.
	errs := []error{b.letThrough(ctx, s.Now, cg, now), b.clearStale(ctx, s.Now, cg, old, now)}
	for _, n := range old.Nodes(now, in, "") {
		errs = append(errs, doStep(ctx, n))
	}
	errs = append(errs, b.limitAgain(ctx, s.Now, cg, old, now))
	if err := errors.Join(errs...); err != nil {
		return "", err
	}
	return strings.Join(changesOf(old, now), ", "), device.WriteTable(path, now)
}

func doStep(ctx context.Context, s step.Step) error {
	err := s.Do(ctx)
	if err == nil {
		err = s.Verify(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s, err)
	}
	return nil
}

// letThrough makes the node's group let through what the table has, and no more.
func (b *Berth) letThrough(ctx context.Context, n *vnode.Node, cg host.Cgroups, t device.Table) error {
	group := cgroup.DevicesStep(cg, plan.GroupPath(b.Layout, n))
	if group == nil || len(t.Devices) == 0 {
		return nil
	}
	group.Allow = t.Rules()
	return doStep(ctx, group)
}

// clearStale takes the node's limits off the numbers where its disks were, if another disk has them now.
func (b *Berth) clearStale(ctx context.Context, n *vnode.Node, cg host.Cgroups, old, now device.Table) error {
	var errs []error
	for i, was := range old.Disks {
		is := now.Disks[i]
		if was.Gone || !is.Gone && is.Number() == was.Number() {
			continue
		}
		io := entry(n, was.Entry)
		d, err := block.OfNumber("/sys", was.Major, was.Minor, io.Device+io.Path)
		if err != nil {
			continue // nothing has that number, and the kernel's limits went with the disk
		}
		one := &vnode.Node{Name: n.Name, Class: n.Class, IO: []vnode.IO{io}}
		held, err := cgroup.Held(one, cg, plan.GroupPath(b.Layout, n), map[string]block.Disk{io.Name: d})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, c := range cgroup.Changes(held, nil) {
			if err := doStep(ctx, c); err != nil && !errors.Is(err, unix.ENODEV) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// limitAgain sets the limits on the disks that are not where, or not the same, as they were.
func (b *Berth) limitAgain(ctx context.Context, n *vnode.Node, cg host.Cgroups, old, now device.Table) error {
	back := &vnode.Node{Name: n.Name, Class: n.Class}
	for i, is := range now.Disks {
		if !is.Gone && is != old.Disks[i] {
			back.IO = append(back.IO, entry(n, is.Entry))
		}
	}
	if len(back.IO) == 0 {
		return nil
	}
	_, disks, err := b.present(back, cg, now)
	if err != nil {
		return err
	}
	if err := b.switchReplugged(ctx, back, cg, disks); err != nil {
		return err
	}
	if _, disks, err = b.present(back, cg, now); err != nil { // with the engines on
		return err
	}
	limits, err := cgroup.Limits(back, cg, plan.GroupPath(b.Layout, n), disks)
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range limits {
		errs = append(errs, doStep(ctx, l))
	}
	return errors.Join(errs...)
}

// switchReplugged switches disks that came back to the engines that the spec asks for; that is undone when the node stops.
func (b *Berth) switchReplugged(ctx context.Context, n *vnode.Node, cg host.Cgroups, disks map[string]block.Disk) error {
	engines, err := cgroup.Engines(n, cg, disks, block.Loans(b.Layout.DiskLoans()), b.Layout.Node(n.Name).Run)
	if err != nil || len(engines) == 0 {
		return err
	}
	j, err := b.liveJournal(n.Name)
	if err != nil {
		return err
	}
	for _, e := range engines {
		if err := j.Do(ctx, e); err != nil {
			return fmt.Errorf("%s: %w", e, err)
		}
	}
	return b.weighBeside(ctx)
}

func entry(n *vnode.Node, name string) vnode.IO {
	i := slices.IndexFunc(n.IO, func(io vnode.IO) bool { return io.Name == name })
	if i < 0 {
		return vnode.IO{Name: name}
	}
	return n.IO[i]
}

// changesOf says for a person what came and went.
func changesOf(old, now device.Table) []string {
	var all []string
	say := func(what string, wasGone, isGone, moved bool, number string) {
		switch {
		case isGone && !wasGone:
			all = append(all, what+" is gone")
		case wasGone && !isGone:
			all = append(all, what+" is back as "+number)
		case moved:
			all = append(all, what+" is now "+number)
		}
	}
	for i, was := range old.Devices {
		is := now.Devices[i]
		say("device "+was.Path, was.Gone, is.Gone, is.Number() != was.Number() || is.ID.Seq != was.ID.Seq, is.Type+" "+is.Number())
	}
	for i, was := range old.Disks {
		is := now.Disks[i]
		say("the disk of io."+was.Entry, was.Gone, is.Gone, is.Number() != was.Number() || is.ID.Seq != was.ID.Seq, is.Number())
	}
	return all
}

// followDevices pokes look whenever the kernel tells of a device that comes, goes or changes (netlink(7),
// NETLINK_KOBJECT_UEVENT). Events are only a reason to look.
func (k *keeper) followDevices(ctx context.Context, look chan<- struct{}) {
	for ctx.Err() == nil {
		if err := readDeviceEvents(ctx, look); err != nil && ctx.Err() == nil {
			k.log.Error("follow the host's devices", "err", err)
		}
		poke(look)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

func readDeviceEvents(ctx context.Context, look chan<- struct{}) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return fmt.Errorf("open the kernel's device events: %w", err)
	}
	f := os.NewFile(uintptr(fd), "device events")
	defer f.Close()
	defer context.AfterFunc(ctx, func() { f.Close() })()
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}); err != nil { // 1: the kernel's own
		return fmt.Errorf("open the kernel's device events: %w", err)
	}
	poke(look) // what came before
	buf := make([]byte, 8192)
	for {
		n, err := f.Read(buf)
		if errors.Is(err, unix.ENOBUFS) { // some were lost
			poke(look)
			continue
		}
		if err != nil {
			return fmt.Errorf("read the kernel's device events: %w", err)
		}
		if bytes.Contains(buf[:n], []byte("\x00MAJOR=")) { // it is of a device with a number
			poke(look)
		}
	}
}

// lookAfterDevices mends, after each event, what has come or gone under a node. It does not wait for a burst to end:
// another disk may have the number of one that went.
func (k *keeper) lookAfterDevices(ctx context.Context, look chan struct{}) {
	var again <-chan time.Time
	var atWork sync.Map // nodes: a command may keep the lock of one for long, and others must not wait for that
	for {
		select {
		case <-ctx.Done():
			return
		case <-look:
			again = time.After(settleTime) // a driver may tell more of a device than its first event said
		case <-again:
		}
		k.mendDevices(ctx, &atWork, look)
	}
}

func (k *keeper) mendDevices(ctx context.Context, atWork *sync.Map, look chan<- struct{}) {
	entries, err := os.ReadDir(k.b.Layout.RunNodes())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		k.log.Error("list nodes", "err", err)
	}
	for _, e := range entries {
		name := e.Name()
		if !k.b.isReplugged(name) {
			continue
		}
		if _, busy := atWork.LoadOrStore(name, true); busy {
			continue
		}
		if !k.enter() {
			return
		}
		go func() {
			defer k.leave()
			did, err := k.b.lockAndReplug(ctx, name)
			atWork.Delete(name)
			if err != nil {
				k.log.Error("devices of a node came or went", "node", name, "err", err)
			}
			if did != "" {
				k.log.Info(did, "node", name)
				poke(look) // what changed meanwhile
			}
		}()
	}
}

// isReplugged reports, without a lock, whether a node's devices are not where they were.
func (b *Berth) isReplugged(name string) bool {
	t, err := device.ReadTable(b.Layout.Node(name).Devices())
	return err == nil && !t.Empty() && !t.Now("/sys").Equal(t)
}

func (b *Berth) lockAndReplug(ctx context.Context, name string) (string, error) {
	l, err := b.lockThere(ctx, name)
	if l == nil {
		return "", err
	}
	defer l.release()
	defer b.unlockGone(name, l)
	j, err := b.liveJournal(name)
	if err != nil || j.Phase != step.Up {
		return "", nil // it does not run, or repair is needed first
	}
	if j.Set != nil {
		if _, err := b.settleSet(ctx, name, j); err != nil {
			return "", err
		}
	}
	return b.replugged(ctx, name)
}
