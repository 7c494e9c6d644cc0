// Package weight sets how a group competes with its siblings, as the class of a node or the protection of a service asks:
// its share of CPU time and disks, and the memory that is not reclaimed.
package weight

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"berth/internal/host"
	"berth/internal/host/group"
	"berth/internal/spec/vnode"
	"berth/internal/sys/fault"
	"berth/internal/sys/proof"
	"berth/internal/sys/step"
)

// Kinds returns the step kinds of this package, for reading journals.
func Kinds() step.Kinds {
	return step.Kinds{
		"cgroup.class":   func() step.Step { return &Class{} },
		"cgroup.foreign": func() step.Step { return &Foreign{} },
		"cgroup.adopt":   func() step.Step { return &Adopt{} },
	}
}

// Class is a step that sets the values that all nodes of a class have together, in the group that is their parent. The
// kernel shares between siblings only, so this group is what competes with the host's services. The values are the same
// for every node of the class, so any of them may write them. They vanish with the group: Undo does nothing.
type Class struct {
	Name   string       `json:"name"` // the group's, relative to each hierarchy's mount
	Values []ClassValue `json:"values"`
}

// ClassValue is one value of a class. The kernel may lack its file: a class takes what the kernel offers, unlike a
// limit, which the user asked for by name. ShowClass shows what is missing.
type ClassValue struct {
	proof.Limit
	On      string       `json:"on,omitempty"` // the disks on which it acts
	Write   group.Write  `json:"write"`
	Instead *group.Write `json:"instead,omitempty"` // the nearest substitute, where the file is missing
}

// ClassStep returns the step for a node's class; nil if the class has no group of its own or nothing to set.
func ClassStep(n *vnode.Node, h host.Cgroups, groupPath string) *Class {
	if n.StandingGroup() == "" {
		return nil
	}
	parent := path.Dir(groupPath)
	c := &Class{Name: parent, Values: values(n.Standing(), h, parent)}
	if len(c.Values) == 0 {
		return nil
	}
	return c
}

// values returns the values by which this host gives a group a standing among its siblings.
func values(s vnode.Standing, h host.Cgroups, path string) []ClassValue {
	var all []ClassValue
	cpu, cpuV1 := group.File(h, path, "cpu")
	weight := func(w int) group.Write {
		if cpuV1 {
			return group.Write{File: cpu("cpu.shares"), Value: strconv.FormatInt(group.Shares(int64(w)), 10), None: "1024"}
		}
		return group.Write{File: cpu("cpu.weight"), Value: strconv.Itoa(w), None: "100"}
	}
	switch {
	case h.Has("cpu") == "":
	case s.Idle: // since kernel 5.15, on both versions; on older kernels the least weight is the nearest
		least := weight(1)
		all = append(all, ClassValue{
			Limit: proof.Limit{Key: "class.cpu", Asked: "idle", By: "cpu.idle"},
			Write: group.Write{File: cpu("cpu.idle"), Value: "1", None: "0"}, Instead: &least,
		})
	case s.CPUWeight != 0:
		w := weight(s.CPUWeight)
		all = append(all, ClassValue{
			Limit: proof.Limit{Key: "class.cpu", Asked: "weight " + strconv.Itoa(s.CPUWeight), By: filepath.Base(w.File)}, Write: w,
		})
	}
	return append(all, ioStanding(s, h, path)...)
}

// ioStanding returns the values for block devices. It covers every mechanism of the cgroup version, because disks
// differ in which one acts on them.
func ioStanding(s vnode.Standing, h host.Cgroups, path string) []ClassValue {
	var all []ClassValue
	asked := "weight " + strconv.Itoa(s.IOWeight)
	add := func(key, asked, on string, w group.Write) {
		all = append(all, ClassValue{Limit: proof.Limit{Key: key, Asked: asked, By: filepath.Base(w.File)}, On: on, Write: w})
	}
	file, v1 := group.File(h, path, "io")
	bfq := group.Write{File: file("io.bfq.weight"), Device: "default", Value: strconv.Itoa(min(s.IOWeight, group.MaxBFQWeight)), None: "100"}
	policy := group.Write{File: file("io.prio.class"), Value: s.IOPolicy, None: "no-change"}
	switch {
	case v1:
		bfq.File, bfq.Device, policy.File = file("blkio.bfq.weight"), "", file("blkio.prio.class")
	case h.Has("io") != "v2":
		return nil
	case s.IOWeight != 0:
		add("class.io", asked, "disks with iocost",
			group.Write{File: file("io.weight"), Device: "default", Value: strconv.Itoa(s.IOWeight), None: "100"})
	}
	if s.IOWeight != 0 {
		add("class.io", asked, "disks with the scheduler bfq", bfq)
	}
	if s.IOPolicy != "" {
		add("class.io.policy", s.IOPolicy, "disks with the scheduler mq-deadline", policy)
	}
	return all
}

// Kind is "cgroup.class".
func (c *Class) Kind() string { return "cgroup.class" }

// String is "cpu.idle=1 io.weight=default 1 for all in berth.batch".
func (c *Class) String() string {
	var text strings.Builder
	for _, v := range c.Values {
		text.WriteString(v.Write.String() + " ")
	}
	return text.String() + "for all in " + c.Name
}

// Do writes the values whose files the kernel has.
func (c *Class) Do(context.Context) error {
	for _, v := range c.Values {
		if err := v.do(); err != nil {
			return fmt.Errorf("set %s to %s in %s: %w", v.Key, v.Asked, c.Name, err)
		}
		fault.Point("class value written")
	}
	return nil
}

// Verify reads the values back.
func (c *Class) Verify(context.Context) error {
	for _, v := range c.Values {
		w, got, err := v.read()
		if err != nil {
			return fmt.Errorf("read back %s: %w", v.Key, err)
		}
		if w != nil && !w.Holds(got) {
			return fmt.Errorf("set %s to %s in %s: wrote %s, the kernel says %s", v.Key, v.Asked, c.Name, w, got)
		}
	}
	return nil
}

// Disabled returns the step that has the group above hand on again what another program has switched off there of the controllers that hold
// the values; nil if it hands on all. On cgroup v1 nobody can switch one off.
func (c *Class) Disabled() (*group.Enable, error) {
	var e *group.Enable
	for _, v := range c.Values {
		off, err := v.off()
		if err != nil {
			return nil, err
		}
		if off == "" {
			continue
		}
		if e == nil {
			e = &group.Enable{Mount: filepath.Dir(filepath.Dir(v.Write.File)), Groups: []string{""}}
		}
		if !slices.Contains(e.Controllers, off) {
			e.Controllers = append(e.Controllers, off)
		}
	}
	return e, nil
}

// off returns the controller of a value, if the group above does not hand it on; "" if it does, or there is no such group.
func (v *ClassValue) off() (string, error) {
	controller, _, _ := strings.Cut(filepath.Base(v.Write.File), ".")
	dir := filepath.Dir(v.Write.File)
	if _, _, there, err := group.Inode(dir); err != nil || !there {
		return "", err
	}
	now, err := group.HandedOn(filepath.Dir(dir))
	switch {
	case group.Gone(err): // v1
		return "", nil
	case err != nil || slices.Contains(now, controller):
		return "", err
	}
	return controller, nil
}

// Undo does nothing: the values vanish with the group.
func (c *Class) Undo(context.Context) error { return nil }

func (v *ClassValue) do() error {
	err := v.Write.Do()
	if !group.Gone(err) {
		return err
	}
	if v.Instead != nil {
		return v.Instead.Do()
	}
	return nil
}

// read returns the value in force and the write that it belongs to; nil where the kernel has neither file.
func (v *ClassValue) read() (*group.Write, string, error) {
	for _, w := range []*group.Write{&v.Write, v.Instead} {
		if w == nil {
			continue
		}
		got, err := w.Effect()
		if err == nil || !group.Gone(err) {
			return w, got, err
		}
	}
	return nil, "", nil
}

// NormalToBFQ reports whether BFQ gives a group the normal weight. BFQ does so for every group that existed before its
// module was loaded, whatever weight was written to the group.
func NormalToBFQ(h host.Cgroups, path string) bool {
	file, v1 := group.File(h, path, "io")
	w := group.Write{File: file("io.bfq.weight"), Device: "default"}
	if v1 {
		w = group.Write{File: file("blkio.bfq.weight")}
	}
	got, err := w.Effect()
	return path != "" && err == nil && got == "100"
}

// ShowClass returns what a node has from its class: the values of the class's group, read from the kernel if live.
func ShowClass(n *vnode.Node, h host.Cgroups, groupPath string, live bool) ([]proof.Limit, error) {
	var all []proof.Limit
	if c := ClassStep(n, h, groupPath); c != nil {
		for _, v := range c.Values {
			s, err := v.show(n, c.Name, live)
			if err != nil {
				return nil, err
			}
			all = append(all, s)
		}
	}
	if low := n.ProtectedMemory(); low != 0 && h.Has("memory") != "v2" {
		all = append(all, proof.Limit{
			Key: string(proof.MemoryLow), Asked: low.String(), By: proof.NothingHere,
			Note: fmt.Sprintf("class %s would protect it; cgroup v1, which has the memory controller here, cannot", n.Class),
		})
	}
	return all, nil
}

func (v *ClassValue) show(n *vnode.Node, group string, live bool) (proof.Limit, error) {
	from := "class " + string(n.Class)
	if n.Class == "" {
		from = "cpu.idle"
	}
	s := v.Limit
	s.Note = "from " + from + ", for all in " + group
	if v.On != "" {
		s.Note += "; on " + v.On
	}
	if !live {
		return s, nil
	}
	w, got, err := v.read()
	switch {
	case err != nil:
		return s, fmt.Errorf("read %s: %w", v.Key, err)
	case w == nil:
		s.By = proof.NothingHere
		s.Note += "; this kernel has no " + v.By
	case w == v.Instead:
		s.By = filepath.Base(w.File)
		s.Note += "; this kernel has no " + v.By + ": the least weight comes next to it"
		fallthrough
	default:
		s.ReadBack, s.Holds = got, w.Holds(got)
	}
	return s, nil
}
