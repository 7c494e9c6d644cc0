package cgroup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"berth/internal/step"
)

// Change is a step that sets a limit of a running node to another value. Its Undo restores the kernel's old values.
type Change struct {
	Limit
	From string  `json:"from"` // the old value in the spec; "max" if the spec had no limit
	Back []Write `json:"back"` // the kernel's values before the first write
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
		c.ReadBack = ""
		steps[i] = c
	}
	return steps
}

// swapFirst orders the v1 limits of memory and of memory with swap. The second must never be below the first
// (mm/memcontrol-v1.c: EINVAL), so it is raised before the first and lowered after it.
func swapFirst(all []*Change, old, new []*Limit) {
	memory := slices.IndexFunc(all, func(c *Change) bool { return c.Key == "memory.max" })
	swap := slices.IndexFunc(all, func(c *Change) bool { return c.Key == "memory.swap" })
	if memory < 0 || swap < 0 || all[swap].Mechanism != "memory.memsw" {
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
	return slices.EqualFunc(a.Writes, b.Writes, func(x, y Write) bool {
		return x.File == y.File && x.Device == y.Device && x.Param == y.Param
	})
}

// cleared returns the limit that removes l.
func (l *Limit) cleared() Limit {
	c := *l
	c.Asked, c.Writes = "max", slices.Clone(l.Writes)
	for i, w := range c.Writes {
		c.Writes[i] = w.cleared()
	}
	return c
}

// Kind is "cgroup.change".
func (c *Change) Kind() string { return "cgroup.change" }

// String is "memory.max 1GiB ⇒ 2GiB: memory.limit_in_bytes=2147483648".
func (c *Change) String() string {
	text, _ := c.Line()
	return text + c.remark()
}

// Line returns String's text without the note, and the note.
func (c *Change) Line() (text, note string) {
	return fmt.Sprintf("%s %s ⇒ %s: %s", c.Key, c.From, c.Asked, c.writes()), c.Note
}

// Prepare records the kernel's current values.
func (c *Change) Prepare(context.Context) error {
	c.Back = nil
	for _, w := range c.Writes {
		now, err := w.read(w.File)
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
		if err := w.do(); err != nil && !gone(err) && !errors.Is(err, unix.EOPNOTSUPP) { // as in Limit.Do
			return fmt.Errorf("give %s back its old value: %w", c.Key, err)
		}
		step.Fault("limit given back")
	}
	return nil
}
