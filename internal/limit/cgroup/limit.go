// Package cgroup limits the processes of a node: it plans for each limit of a spec the control files of cgroup v1 or v2 that
// enforce it, writes them, and reads them back.
package cgroup

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/host/block"
	"berth/internal/host/group"
	"berth/internal/spec/vnode"
	"berth/internal/sys/fault"
	"berth/internal/sys/proof"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// Limit is a step that sets one asked limit of a group. The limit vanishes with the group: Undo does nothing.
type Limit struct {
	proof.Limit
	Of     proof.Kind    `json:"kind"`
	Writes []group.Write `json:"writes"`
	// Inside are the same values in the root group of the container, where that is a group of its own: programs in the node
	// look there for their limits, and memory is protected there only if every group above it is, too.
	Inside []group.Write `json:"inside,omitempty"`
}

// Limits returns the limits that a node asks for, each with the mechanism of this host that enforces it. It is pure. disks
// maps the name of each io entry to its disk. A limit that the host cannot enforce is refused (exit 3); so are two entries
// for one disk (exit 2).
func Limits(n *vnode.Node, h host.Cgroups, path string, disks map[string]block.Disk) ([]*Limit, error) {
	return limits(n, h, path, disks, func(_ ask, err error) (*Limit, error) { return nil, err })
}

// Held is Limits for a node that has its limits already. It refuses no weight: a weight may no longer be honoured, because
// another I/O scheduler was chosen. Such a limit has nothing to write, and its note says why.
func Held(n *vnode.Node, h host.Cgroups, path string, disks map[string]block.Disk) ([]*Limit, error) {
	return limits(n, h, path, disks, func(a ask, err error) (*Limit, error) {
		return &Limit{Limit: proof.Limit{Key: a.key, Asked: a.asked, By: "nothing", Note: err.Error()}, Of: a.kind}, nil
	})
}

func limits(n *vnode.Node, h host.Cgroups, path string, disks map[string]block.Disk, refused func(ask, error) (*Limit, error)) ([]*Limit, error) {
	asked, err := asks(n, h, disks)
	if err != nil {
		return nil, err
	}
	all := make([]*Limit, len(asked))
	for i, a := range asked {
		if all[i], err = a.limit(h, path); err != nil {
			if all[i], err = refused(a, err); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// limit returns the Limit for an ask, in the hierarchy that has its controller.
func (a ask) limit(h host.Cgroups, path string) (*Limit, error) {
	var how hold
	var err error
	file, v1 := group.File(h, path, a.controller)
	switch {
	case a.kind == proof.IOWeight:
		how, err = weigh(a, h, file)
	case v1:
		how, err = onV1(a, file)
	default:
		how, err = onV2(a, file)
	}
	if err != nil {
		return nil, err
	}
	if a.controller == "io" && a.kind != proof.IOWeight {
		if !v1 {
			how.note = writebackNote(a, h)
		}
		how.note = joinNotes(diskNote(a.disk), how.note)
	}
	inside, err := a.inside(h, path)
	return &Limit{Limit: proof.Limit{Key: a.key, Asked: a.asked, By: how.mechanism, Note: how.note}, Of: a.kind, Writes: how.writes, Inside: inside}, err
}

// inside returns the writes to the root group of the container. Others than these limits are not read by programs, or are
// in force there by themselves. memory.high would be counted twice (mm/memcontrol.c: reclaim_high).
func (a ask) inside(h host.Cgroups, path string) ([]group.Write, error) {
	at := group.Container(h, path)
	if at == path || !slices.Contains([]proof.Kind{proof.CPUMax, proof.MemoryMax, proof.MemoryLow, proof.MemoryMin, proof.MemorySwap, proof.PIDs}, a.kind) {
		return nil, nil
	}
	file, _ := group.File(h, at, a.controller)
	how, err := onV2(a, file)
	for i := range how.writes {
		how.writes[i].Sum = false // the group above has the value itself
	}
	return how.writes, err
}

// all returns the writes in their order. The limit itself comes last: it is what is shown.
func (l *Limit) all() []group.Write { return slices.Concat(l.Inside, l.Writes) }

// writebackNote says whether a limit of writes on cgroup v2 covers writes through the page cache too. For that the file
// system must tell whose they are (SB_I_CGROUPWB), as ext4, XFS, btrfs and f2fs do.
func writebackNote(a ask, h host.Cgroups) string {
	switch {
	case h.Has("memory") != "v2":
		return "without memory on cgroup v2, writes through the page cache are not limited"
	case a.kind != proof.IOWriteRate && a.kind != proof.IOWriteIOPS, a.disk.FS == "":
		return ""
	case a.disk.FS == block.Other:
		return "its file system does not tell whose writes through the page cache are: they are not limited"
	}
	return "writes through the page cache of " + a.disk.FS + " too"
}

// diskNote says on which disk a limit acts, if that is not the device asked for.
func diskNote(d block.Disk) string {
	if d.Via == "" {
		return ""
	}
	return fmt.Sprintf("acts on the whole disk %s (%s)", d.Name, d.Via)
}

func joinNotes(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

// Steps returns the steps that set a node's limits, in order. It is pure, and refuses what the host cannot do. path is the
// group's path in every hierarchy, PARENT/NAME.
func Steps(n *vnode.Node, h host.Cgroups, path string, disks map[string]block.Disk) ([]step.Step, error) {
	if err := CheckHugePages(n.HugePages, nil, h); err != nil {
		return nil, err
	}
	limits, err := Limits(n, h, path, disks)
	if err != nil {
		return nil, err
	}
	steps := make([]step.Step, len(limits))
	for i, l := range limits {
		steps[i] = l
	}
	return steps, nil
}

// Kinds returns the step kinds of this package, for reading journals.
func Kinds() step.Kinds {
	return step.Kinds{
		"cgroup.limit":  func() step.Step { return &Limit{} },
		"cgroup.change": func() step.Step { return &Change{} },
	}
}

// Kind is "cgroup.limit".
func (l *Limit) Kind() string { return "cgroup.limit" }

// String is "cpu.max 1.5 → cpu.cfs_period_us=100000 cpu.cfs_quota_us=150000".
func (l *Limit) String() string {
	return remark(l.Line())
}

// Line returns String's text without the note, and the note.
func (l *Limit) Line() (text, note string) {
	return l.Key + " " + l.Asked + " → " + l.writes(), l.Note
}

func (l *Limit) writes() string {
	text := make([]string, len(l.Writes))
	for i, w := range l.Writes {
		text[i] = w.String()
	}
	return strings.Join(text, " ")
}

func remark(text, note string) string {
	if note == "" {
		return text
	}
	return text + " (" + note + ")"
}

// Do writes the limit.
func (l *Limit) Do(context.Context) error {
	for _, w := range l.all() {
		err := w.Do()
		if errors.Is(err, unix.EOPNOTSUPP) { // a weight: the disk has another scheduler by now, or io.cost is off
			if w.Value == w.None {
				continue // nothing is left to remove
			}
			return refuse.Cannotf("start the node anew, or choose "+l.By+" for the disk again",
				"set %s to %s: somebody took %s from the disk: %w", l.Key, l.Asked, l.By, err)
		}
		if errors.Is(err, unix.EBUSY) && l.Of == proof.MemoryMax {
			return inUse(l.Asked, w.File, err)
		}
		if err != nil {
			return fmt.Errorf("set %s to %s: %w", l.Key, l.Asked, err)
		}
		fault.Point("limit written")
	}
	return nil
}

// Verify reads the limit back and fills in ReadBack. A value that differs by more than the kernel's rounding is an error.
func (l *Limit) Verify(context.Context) error {
	for _, w := range l.all() {
		got, err := w.Effect()
		if err != nil {
			return fmt.Errorf("read back %s: %w", l.Key, err)
		}
		if !w.Holds(got) {
			return fmt.Errorf("set %s to %s: wrote %s, the kernel says %s", l.Key, l.Asked, w, got)
		}
		l.ReadBack, l.Holds = l.person(w, got), true
	}
	return nil
}

// Undo does nothing: the limit vanishes with its group.
func (l *Limit) Undo(context.Context) error { return nil }

// person formats a value that was read back, in the units of the spec.
func (l *Limit) person(w group.Write, got string) string {
	name := filepath.Base(w.File)
	if w.Round(got) == "max" || got == w.None && w.None != "" && (w.Device != "" || name == "cpu.cfs_quota_us") {
		return "max"
	}
	n, err := strconv.ParseInt(got, 10, 64)
	switch {
	case name == "cpu.max":
		quota, p, _ := strings.Cut(got, " ")
		return cpus(quota, p)
	case err != nil:
		return got
	case name == "cpu.cfs_quota_us":
		return cpus(got, strconv.Itoa(period))
	case name == "cpu.shares":
		return got + " shares"
	case name == "memory.memsw.limit_in_bytes":
		return vnode.Bytes(n).String() + " with memory"
	case w.Unit > 0:
		return vnode.Bytes(n).String()
	case l.Of == proof.IOReadRate || l.Of == proof.IOWriteRate:
		return vnode.Rate(n).String()
	}
	return got
}

// cpus formats a quota of CPU time per period as a number of CPUs.
func cpus(quota, period string) string {
	q, err1 := strconv.ParseInt(quota, 10, 64)
	p, err2 := strconv.ParseInt(period, 10, 64)
	if err1 != nil || err2 != nil || p == 0 {
		return "max"
	}
	return vnode.Cores(q * 1000 / p).String()
}

// Change is a step that sets a limit of a running node to another value. Its Undo restores the kernel's old values.
type Change struct {
	Limit
	From string        `json:"from"` // the old value in the spec; "max" if the spec had no limit
	Back []group.Write `json:"back"` // the kernel's values before the first write
}

// Changes returns the steps that turn a running node's old limits into the new ones: only the differences, in an order
// that the kernel accepts. It is pure. A limit that is only in old is removed.
func Changes(old, new []*Limit) []step.Step {
	var all []*Change
	for _, o := range old {
		n := find(new, o.Key)
		if n == nil || !sameFiles(o, n) { // removed, or on another disk
			all = append(all, &Change{Limit: o.cleared(), From: o.Asked})
		}
	}
	for _, n := range new {
		o := find(old, n.Key)
		switch {
		case o == nil || !sameFiles(o, n):
			all = append(all, &Change{Limit: *n, From: "max"})
		case !slices.Equal(o.Writes, n.Writes):
			all = append(all, &Change{Limit: *n, From: o.Asked})
		}
	}
	swapFirst(all, old, new)
	steps := make([]step.Step, len(all))
	for i, c := range all {
		c.ReadBack, c.Holds = "", false
		steps[i] = c
	}
	return steps
}

// swapFirst orders the v1 limits of memory and of memory with swap. The second must never be below the first
// (mm/memcontrol-v1.c: EINVAL), so it is raised before the first and lowered after it.
func swapFirst(all []*Change, old, new []*Limit) {
	memory := slices.IndexFunc(all, func(c *Change) bool { return c.Of == proof.MemoryMax })
	swap := slices.IndexFunc(all, func(c *Change) bool { return c.Of == proof.MemorySwap })
	if memory < 0 || swap < 0 || all[swap].By != "memory.memsw" {
		return
	}
	raised := memsw(find(new, "memory.swap")) > memsw(find(old, "memory.swap"))
	if raised == (memory < swap) {
		all[memory], all[swap] = all[swap], all[memory]
	}
}

// memsw returns the value of a limit of memory with swap. No limit counts as greater than any value.
func memsw(l *Limit) uint64 {
	if l == nil {
		return 1 << 63
	}
	n, _ := strconv.ParseUint(l.Writes[0].Value, 10, 64) // onV1 wrote a number
	return n
}

func find(limits []*Limit, key string) *Limit {
	if i := slices.IndexFunc(limits, func(l *Limit) bool { return l.Key == key }); i >= 0 {
		return limits[i]
	}
	return nil
}

// sameFiles reports whether two limits write the same files, devices and parameters.
func sameFiles(a, b *Limit) bool {
	return slices.EqualFunc(a.Writes, b.Writes, func(x, y group.Write) bool {
		return x.File == y.File && x.Device == y.Device && x.Param == y.Param
	})
}

// cleared returns the limit that removes l.
func (l *Limit) cleared() Limit {
	c := *l
	c.Asked, c.Writes, c.Inside = "max", slices.Clone(l.Writes), slices.Clone(l.Inside)
	for _, writes := range [][]group.Write{c.Writes, c.Inside} {
		for i, w := range writes {
			writes[i] = w.Cleared()
		}
	}
	return c
}

// Kind is "cgroup.change".
func (c *Change) Kind() string { return "cgroup.change" }

// String is "memory.max 1GiB ⇒ 2GiB: memory.limit_in_bytes=2147483648".
func (c *Change) String() string {
	return remark(c.Line())
}

// Line returns String's text without the note, and the note.
func (c *Change) Line() (text, note string) {
	return fmt.Sprintf("%s %s ⇒ %s: %s", c.Key, c.From, c.Asked, c.writes()), c.Note
}

// Proved implements proof.Prover.
func (c *Change) Proved() []proof.Limit { return []proof.Limit{c.Limit.Limit} }

// Prepare records the kernel's current values.
func (c *Change) Prepare(context.Context) error {
	c.Back = nil
	for _, w := range c.all() {
		now, err := w.Read(w.File)
		if err != nil {
			return fmt.Errorf("change %s: %w", c.Key, err)
		}
		w.Value = now
		c.Back = append(c.Back, w)
	}
	return nil
}

// Undo writes the recorded values back. A group that no longer exists is no error.
func (c *Change) Undo(context.Context) error {
	for _, w := range slices.Backward(c.Back) {
		if err := w.Do(); err != nil && !group.Gone(err) && !errors.Is(err, unix.EOPNOTSUPP) { // as in Limit.Do
			return fmt.Errorf("give %s back its old value: %w", c.Key, err)
		}
		fault.Point("limit given back")
	}
	return nil
}
