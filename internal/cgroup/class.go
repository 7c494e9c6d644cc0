package cgroup

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"berth/internal/host"
	"berth/internal/step"
	"berth/internal/vnode"
)

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
	Key       string `json:"key"`       // "class.cpu"
	Asked     string `json:"asked"`     // "idle"
	Mechanism string `json:"mechanism"` // "cpu.idle"
	On        string `json:"on,omitempty"`
	Write     Write  `json:"write"`
	Instead   *Write `json:"instead,omitempty"` // the nearest substitute, where the file is missing
}

// maxBFQWeight is BFQ's greatest weight (block/bfq-iosched.h). The scale is 1..1000; 100 is normal.
const maxBFQWeight = 1000

// ClassStep returns the step for a node's class; nil if the class has no group of its own or nothing to set.
func ClassStep(n *vnode.Node, h host.Cgroups, groupPath string) *Class {
	if n.Place() == "" {
		return nil
	}
	c := &Class{Name: path.Dir(groupPath), Values: StandingValues(n.Standing(), h, path.Dir(groupPath))}
	if len(c.Values) == 0 {
		return nil
	}
	return c
}

// StandingValues returns the values by which this host gives a group a standing among its siblings.
func StandingValues(s vnode.Standing, h host.Cgroups, groupPath string) []ClassValue {
	var all []ClassValue
	cpuV1 := h.Has("cpu") == "v1"
	cpu := func(name string) string { return filepath.Join(h.V2, groupPath, name) }
	if cpuV1 {
		cpu = func(name string) string { return filepath.Join(h.V1["cpu"], groupPath, name) }
	}
	weight := func(w int) Write {
		if cpuV1 {
			return Write{File: cpu("cpu.shares"), Value: strconv.FormatInt(shares(int64(w)), 10), None: "1024"}
		}
		return Write{File: cpu("cpu.weight"), Value: strconv.Itoa(w), None: "100"}
	}
	switch {
	case h.Has("cpu") == "":
	case s.Idle: // since kernel 5.15, on both versions; on older kernels the least weight is the nearest
		least := weight(1)
		all = append(all, ClassValue{
			Key: "class.cpu", Asked: "idle", Mechanism: "cpu.idle",
			Write: Write{File: cpu("cpu.idle"), Value: "1", None: "0"}, Instead: &least,
		})
	case s.CPUWeight != 0:
		w := weight(s.CPUWeight)
		all = append(all, ClassValue{
			Key: "class.cpu", Asked: "weight " + strconv.Itoa(s.CPUWeight), Mechanism: filepath.Base(w.File), Write: w,
		})
	}
	return append(all, ioStanding(s, h, groupPath)...)
}

// ioStanding returns the values for block devices. It covers every mechanism of the cgroup version, because disks
// differ in which one acts on them.
func ioStanding(s vnode.Standing, h host.Cgroups, groupPath string) []ClassValue {
	var all []ClassValue
	asked := "weight " + strconv.Itoa(s.IOWeight)
	add := func(key, asked, on string, w Write) {
		all = append(all, ClassValue{Key: key, Asked: asked, Mechanism: filepath.Base(w.File), On: on, Write: w})
	}
	bfq := strconv.Itoa(min(s.IOWeight, maxBFQWeight))
	switch {
	case h.Has("blkio") == "v1":
		file := func(name string) string { return filepath.Join(h.V1["blkio"], groupPath, name) }
		if s.IOWeight != 0 {
			add("class.io", asked, "disks with the scheduler bfq", Write{File: file("blkio.bfq.weight"), Value: bfq, None: "100"})
		}
		if s.IOPolicy != "" {
			add("class.io.policy", s.IOPolicy, "disks with the scheduler mq-deadline",
				Write{File: file("blkio.prio.class"), Value: s.IOPolicy, None: "no-change"})
		}
	case h.Has("io") == "v2":
		file := func(name string) string { return filepath.Join(h.V2, groupPath, name) }
		if s.IOWeight != 0 {
			add("class.io", asked, "disks with iocost",
				Write{File: file("io.weight"), Device: "default", Value: strconv.Itoa(s.IOWeight), None: "100"})
			add("class.io", asked, "disks with the scheduler bfq",
				Write{File: file("io.bfq.weight"), Device: "default", Value: bfq, None: "100"})
		}
		if s.IOPolicy != "" {
			add("class.io.policy", s.IOPolicy, "disks with the scheduler mq-deadline",
				Write{File: file("io.prio.class"), Value: s.IOPolicy, None: "no-change"})
		}
	}
	return all
}

// Kind is "cgroup.class".
func (c *Class) Kind() string { return "cgroup.class" }

// String is "cpu.idle=1 io.weight=default 1 for all in berth.batch".
func (c *Class) String() string {
	text := make([]string, len(c.Values))
	for i, v := range c.Values {
		text[i] = v.Write.String()
	}
	return strings.Join(text, " ") + " for all in " + c.Name
}

// Do writes the values whose files the kernel has.
func (c *Class) Do(context.Context) error {
	for _, v := range c.Values {
		if err := v.do(); err != nil {
			return fmt.Errorf("set %s to %s in %s: %w", v.Key, v.Asked, c.Name, err)
		}
		step.Fault("class value written")
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
		if w != nil && !w.holds(got) {
			return fmt.Errorf("set %s to %s in %s: wrote %s, the kernel says %s", v.Key, v.Asked, c.Name, w, got)
		}
	}
	return nil
}

// Undo does nothing: the values vanish with the group.
func (c *Class) Undo(context.Context) error { return nil }

func (v *ClassValue) do() error {
	err := v.Write.do()
	if !gone(err) {
		return err
	}
	if v.Instead != nil {
		return v.Instead.do()
	}
	return nil
}

// read returns the value in force and the write that it belongs to; nil where the kernel has neither file.
func (v *ClassValue) read() (*Write, string, error) {
	for _, w := range []*Write{&v.Write, v.Instead} {
		if w == nil {
			continue
		}
		got, err := w.effect()
		if err == nil || !gone(err) {
			return w, got, err
		}
	}
	return nil, "", nil
}

// NormalToBFQ reports whether BFQ gives a group the normal weight. BFQ does so for every group that existed before its
// module was loaded, whatever weight was written to the group.
func NormalToBFQ(h host.Cgroups, path string) bool {
	w := Write{File: filepath.Join(h.V2, path, "io.bfq.weight"), Device: "default"}
	if h.Has("blkio") == "v1" {
		w = Write{File: filepath.Join(h.V1["blkio"], path, "blkio.bfq.weight")}
	}
	got, err := w.effect()
	return path != "" && err == nil && got == "100"
}

// ShowClass returns what a node has from its class: the values of the class's group, read from the kernel if live.
func ShowClass(n *vnode.Node, h host.Cgroups, groupPath string, live bool) ([]Shown, error) {
	var all []Shown
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
		all = append(all, Shown{
			Key: "memory.low", Asked: low.String(), HonouredBy: "nothing here",
			Note: fmt.Sprintf("class %s would protect it; cgroup v1, which has the memory controller here, cannot", n.Class),
		})
	}
	return all, nil
}

func (v *ClassValue) show(n *vnode.Node, group string, live bool) (Shown, error) {
	from := "class " + string(n.Class)
	if n.Class == "" {
		from = "cpu.idle"
	}
	s := Shown{Key: v.Key, Asked: v.Asked, HonouredBy: v.Mechanism, Note: "from " + from + ", for all in " + group}
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
		s.HonouredBy = "nothing here"
		s.Note = joinNotes(s.Note, "this kernel has no "+v.Mechanism)
	case w == v.Instead:
		s.HonouredBy = filepath.Base(w.File)
		s.Note = joinNotes(s.Note, "this kernel has no "+v.Mechanism+": the least weight comes next to it")
		fallthrough
	default:
		s.ReadBack, s.Holds = got, w.holds(got)
	}
	return s, nil
}
