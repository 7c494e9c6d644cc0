package device

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"berth/internal/spec/vnode"
	"berth/internal/storage/mounts"
	"berth/internal/sys/file"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/step"
)

// Table lists the host's devices that a running node has: those that the entries of its spec stood for when the node
// started or the entries were added. It lasts as long as the node runs.
type Table struct {
	Devices []Granted `json:"devices,omitempty"`
	Disks   []Disk    `json:"disks,omitempty"` // the disks that it has limits on
}

// Granted is a device that a node was given.
type Granted struct {
	Resolved
	Spec vnode.Device `json:"spec"`           // the entry that it comes from
	Gone bool         `json:"gone,omitempty"` // unplugged: the node no longer has it, and gets it again when it is back
	Held bool         `json:"held,omitempty"` // an emulator has had it open since the node started: one that is back is another for it
}

// Disk is a disk that a node has limits on.
type Disk struct {
	Entry string   `json:"entry"` // name of the io entry
	Major uint32   `json:"major"`
	Minor uint32   `json:"minor"`
	ID    Identity `json:"id,omitzero"`
	Gone  bool     `json:"gone,omitempty"`
}

// Number is the disk's number as the kernel writes it: "8:16".
func (d Disk) Number() string { return fmt.Sprintf("%d:%d", d.Major, d.Minor) }

// Grant resolves the entries of a spec. Entries that are in t already keep the devices that they stood for.
func (t Table) Grant(proc, sys string, entries []vnode.Device) ([]Granted, error) {
	var all []Granted
	for _, e := range entries {
		old := slices.DeleteFunc(slices.Clone(t.Devices), func(g Granted) bool { return g.Spec != e })
		if len(old) > 0 {
			all = append(all, old...)
			continue
		}
		found, err := Resolve(proc, sys, e)
		if err != nil {
			return nil, err
		}
		for _, r := range found {
			all = append(all, Granted{Resolved: r, Spec: e})
		}
	}
	return all, distinct(all)
}

// Rules returns the devices that a node's group must allow.
func (t Table) Rules() []string {
	var all []string
	for _, g := range t.Devices {
		if !g.Gone {
			all = append(all, g.Rule())
		}
	}
	return all
}

// Now returns the table with the devices' current numbers, found by their identities.
func (t Table) Now(sys string) Table {
	now := Table{Devices: slices.Clone(t.Devices), Disks: slices.Clone(t.Disks)}
	for i := range now.Devices {
		g := &now.Devices[i]
		if g.Held && g.Gone {
			continue
		}
		n, ok := g.ID.Where(sys, g.Type, g.Major, g.Minor)
		if g.Held && ok {
			ok = n == [2]uint32{g.Major, g.Minor} && again(sys, g.Type, n, g.ID).Seq == g.ID.Seq
		}
		if g.Gone = !ok; ok {
			if n != [2]uint32{g.Major, g.Minor} {
				g.Major, g.Minor = n[0], n[1]
				g.Source = g.nodeOnHost(sys)
			}
			g.ID = again(sys, g.Type, n, g.ID)
		}
	}
	for i := range now.Disks {
		d := &now.Disks[i]
		n, ok := d.ID.Where(sys, "b", d.Major, d.Minor)
		if d.Gone = !ok; ok {
			d.Major, d.Minor = n[0], n[1]
			d.ID = again(sys, "b", n, d.ID)
		}
	}
	return now
}

// nodeOnHost returns the path of the kernel's device node on the host, from the kernel's name of the device.
func (r Resolved) nodeOnHost(sys string) string {
	if name := devName(attribute(r.dir(sys), "uevent")); name != "" {
		return "/dev/" + name
	}
	return r.Source
}

// devName returns the kernel's name of a device, its path below /dev, from its uevent file; "" if that has none.
func devName(uevent string) string {
	for line := range strings.Lines(uevent) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "DEVNAME="); ok {
			return name
		}
	}
	return ""
}

// again returns the current identity of a device that is there: a disk that was unplugged has a new number since boot.
func again(sys, kind string, n [2]uint32, old Identity) Identity {
	if id, ok := Identify(sys, kind, n[0], n[1]); ok {
		return id
	}
	return old
}

// Equal reports whether two tables say the same.
func (t Table) Equal(o Table) bool {
	return slices.Equal(t.Devices, o.Devices) && slices.Equal(t.Disks, o.Disks)
}

// IsGone reports whether the disk of an io entry is unplugged.
func (t Table) IsGone(entry string) bool {
	return slices.ContainsFunc(t.Disks, func(d Disk) bool { return d.Gone && d.Entry == entry })
}

// Empty reports whether a node has none of the host's devices and no limits on disks.
func (t Table) Empty() bool { return len(t.Devices) == 0 && len(t.Disks) == 0 }

// Nodes returns the steps that change the node's /dev from t to another table, removals first. group is the folder of the
// node's cgroup.
func (t Table) Nodes(to Table, in mounts.Running, group string) []step.Step {
	var gone, come []step.Step
	for _, g := range t.Devices {
		if !g.Gone && !to.has(g) {
			gone = append(gone, &Node{In: in, Path: g.Path, From: g.node(), Group: group})
		}
	}
	for _, g := range to.Devices {
		if !g.Gone && !t.has(g) {
			come = append(come, &Node{In: in, Path: g.Path, To: g.node(), Group: group})
		}
	}
	return slices.Concat(gone, come)
}

// has reports whether the node has this device at this path.
func (t Table) has(g Granted) bool {
	return slices.ContainsFunc(t.Devices, func(o Granted) bool { return !o.Gone && o.Path == g.Path && *o.node() == *g.node() })
}

func (g Granted) node() *mounts.DeviceNode {
	return &mounts.DeviceNode{Type: g.Type, Major: g.Major, Minor: g.Minor}
}

// ReadTable reads a node's table. Without a file the table is empty.
func ReadTable(path string) (t Table, err error) {
	err = jsonfile.File{Path: path, Is: "which devices a node has", Remedy: "stop the node and start it: it is written anew"}.Read(&t)
	if errors.Is(err, fs.ErrNotExist) {
		return Table{}, nil
	}
	return t, err
}

// Record is a step that writes a node's table.
type Record struct {
	Path string `json:"path"`
	New  Table  `json:"new"`
	Old  *Table `json:"old,omitempty"` // the table that was there; nil: none
}

// Kind is "device.record".
func (r *Record) Kind() string { return "device.record" }

// String is "what came of them: /dev/fuse is c 10:229, io.data acts on 254:0".
func (r *Record) String() string {
	var b bytes.Buffer
	for _, g := range r.New.Devices {
		if g.Gone {
			fmt.Fprintf(&b, ", %s is gone", g.Path)
			continue
		}
		fmt.Fprintf(&b, ", %s is %s %s", g.Path, g.Type, g.Number())
		if g.Source != g.Path {
			b.WriteString(" " + g.Source)
		}
	}
	for _, d := range r.New.Disks {
		if d.Gone {
			fmt.Fprintf(&b, ", the disk of io.%s is gone", d.Entry)
			continue
		}
		fmt.Fprintf(&b, ", io.%s acts on %s", d.Entry, d.Number())
	}
	if b.Len() == 0 {
		return "none"
	}
	return b.String()[2:]
}

// Prepare records the existing table.
func (r *Record) Prepare(context.Context) error {
	r.Old = nil
	if _, err := os.Stat(r.Path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	old, err := ReadTable(r.Path)
	r.Old = &old
	return err
}

// Do writes the table.
func (r *Record) Do(context.Context) error { return WriteTable(r.Path, r.New) }

// WriteTable writes a node's table, whole or not at all.
func WriteTable(path string, t Table) error {
	if err := file.WriteJSONForBoot(path, t); err != nil {
		return fmt.Errorf("write the node's devices: %w", err)
	}
	return nil
}

// Verify reads the table back.
func (r *Record) Verify(context.Context) error {
	t, err := ReadTable(r.Path)
	if err == nil && !t.Equal(r.New) {
		err = errors.New("read the node's devices: another process wrote them")
	}
	return err
}

// Undo restores the old table. It is no error if the node's live folder is gone.
func (r *Record) Undo(context.Context) error {
	_ = os.Remove(r.Path + ".tmp")
	var err error
	if r.Old == nil {
		err = os.Remove(r.Path)
	} else {
		err = WriteTable(r.Path, *r.Old)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
