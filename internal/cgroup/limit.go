package cgroup

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/block"
	"berth/internal/host"
	"berth/internal/refuse"
	"berth/internal/step"
	"berth/internal/vnode"
)

// Limit is a step that sets one asked limit of a group. The limit vanishes with the group: Undo does nothing.
type Limit struct {
	Key       string  `json:"key"`       // as berth set takes it: "memory.max", "io.data.read.rate"
	Asked     string  `json:"asked"`     // as the spec writes it; "max" if the limit is removed
	Mechanism string  `json:"mechanism"` // what enforces it: "cfs quota", "io.max"
	Writes    []Write `json:"writes"`
	Note      string  `json:"note,omitempty"`      // for the user: the disk it acts on, what it does not cover
	ReadBack  string  `json:"read_back,omitempty"` // the value in force, as Verify read it back
}

// Limits returns the limits that a node asks for, each with the mechanism of this host that enforces it. It is pure. disks
// maps the name of each io entry to its disk. A limit that the host cannot enforce is refused (exit 3); so are two entries
// for one disk (exit 2).
func Limits(n *vnode.Node, h host.Cgroups, path string, disks map[string]block.Disk) ([]*Limit, error) {
	all, err := asks(n, h, disks)
	if err != nil {
		return nil, err
	}
	limits := make([]*Limit, len(all))
	for i, a := range all {
		if limits[i], err = a.limit(h, path); err != nil {
			return nil, err
		}
	}
	return limits, nil
}

// Held is Limits for a node that has its limits already. It refuses no weight: a weight may no longer be honoured, because
// somebody chose another scheduler. Such a limit has nothing to write, and its note says why.
func Held(n *vnode.Node, h host.Cgroups, path string, disks map[string]block.Disk) ([]*Limit, error) {
	all, err := asks(n, h, disks)
	if err != nil {
		return nil, err
	}
	limits := make([]*Limit, len(all))
	for i, a := range all {
		if limits[i], err = a.limit(h, path); err != nil {
			limits[i] = &Limit{Key: a.key, Asked: a.asked, Mechanism: "nothing", Note: err.Error()}
		}
	}
	return limits, nil
}

// limit returns the Limit for an ask, in the hierarchy that has its controller.
func (a ask) limit(h host.Cgroups, path string) (*Limit, error) {
	var how hold
	v1 := v1Name(a.controller)
	file := func(name string) string { return filepath.Join(h.V2, path, name) }
	if h.Has(v1) == "v1" {
		file = func(name string) string { return filepath.Join(h.V1[v1], path, name) }
	}
	if a.what == "io.weight" {
		how, err := weigh(a, h, file)
		if err != nil {
			return nil, err
		}
		return &Limit{Key: a.key, Asked: a.asked, Mechanism: how.mechanism, Writes: how.writes, Note: how.note}, nil
	}
	if h.Has(v1) == "v1" {
		how = onV1(a, file)
	} else {
		how = onV2(a, file)
		if a.controller == "io" {
			how.note = writebackNote(a, h)
		}
	}
	l := &Limit{Key: a.key, Asked: a.asked, Mechanism: how.mechanism, Writes: how.writes, Note: how.note}
	if a.controller == "io" {
		l.Note = joinNotes(diskNote(a.disk), how.note)
	}
	return l, nil
}

// writebackNote says whether a limit of writes on cgroup v2 covers writes through the page cache too. For that the file
// system must tell whose they are (SB_I_CGROUPWB), as ext4, XFS, btrfs and f2fs do.
func writebackNote(a ask, h host.Cgroups) string {
	switch {
	case h.Has("memory") != "v2":
		return "without memory on cgroup v2, writes through the page cache are not limited"
	case !strings.HasPrefix(a.what, "io.write."), a.disk.FS == "":
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

// Steps returns the steps that make a node's group and set its limits, in order. It is pure, and refuses what the host
// cannot do. path is the group's path in every hierarchy, PARENT/NAME.
func Steps(n *vnode.Node, h host.Cgroups, path string, disks map[string]block.Disk) ([]step.Step, error) {
	if err := CheckHugePages(n.HugePages, nil, h); err != nil {
		return nil, err
	}
	limits, err := Limits(n, h, path, disks)
	if err != nil {
		return nil, err
	}
	steps, err := groupSteps(h, path)
	if err != nil {
		return nil, err
	}
	for _, l := range limits {
		steps = append(steps, l)
	}
	if c := ClassStep(n, h, path); c != nil { // last: an earlier step may make its files appear, as choosing a scheduler does
		steps = append(steps, c)
	}
	return steps, nil
}

// Kind is "cgroup.limit".
func (l *Limit) Kind() string { return "cgroup.limit" }

// String is "cpu.max 1.5 → cpu.cfs_period_us=100000 cpu.cfs_quota_us=150000".
func (l *Limit) String() string {
	text, _ := l.Line()
	return text + l.remark()
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

func (l *Limit) remark() string {
	if l.Note == "" {
		return ""
	}
	return " (" + l.Note + ")"
}

// Do writes the limit.
func (l *Limit) Do(context.Context) error {
	for _, w := range l.Writes {
		err := w.do()
		if errors.Is(err, unix.EOPNOTSUPP) { // a weight: the disk has another scheduler by now, or io.cost is off
			if w.Value == w.None {
				continue // nothing is left to remove
			}
			return refuse.Cannotf("start the node anew, or choose "+l.Mechanism+" for the disk again",
				"set %s to %s: somebody took %s from the disk: %w", l.Key, l.Asked, l.Mechanism, err)
		}
		if errors.Is(err, unix.EBUSY) && l.Key == "memory.max" {
			return inUse(l.Asked, w.File, err)
		}
		if err != nil {
			return fmt.Errorf("set %s to %s: %w", l.Key, l.Asked, err)
		}
		step.Fault("limit written")
	}
	return nil
}

// Verify reads the limit back and fills in ReadBack. A value that differs by more than the kernel's rounding is an error.
func (l *Limit) Verify(context.Context) error {
	for _, w := range l.Writes {
		got, err := w.effect()
		if err != nil {
			return fmt.Errorf("read back %s: %w", l.Key, err)
		}
		if !w.holds(got) {
			return fmt.Errorf("set %s to %s: wrote %s, the kernel says %s", l.Key, l.Asked, w, got)
		}
		l.ReadBack = l.person(w, got)
	}
	return nil
}

// Undo does nothing: the limit vanishes with its group.
func (l *Limit) Undo(context.Context) error { return nil }

// person formats a value that was read back, in the units of the spec.
func (l *Limit) person(w Write, got string) string {
	name := filepath.Base(w.File)
	if w.round(got) == "max" || got == w.None && w.None != "" && (w.Device != "" || name == "cpu.cfs_quota_us") {
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
	case path.Ext(l.Key) == ".rate":
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
