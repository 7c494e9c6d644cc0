package weight

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"berth/internal/host"
	"berth/internal/host/group"
	"berth/internal/spec/vnode"
	"berth/internal/sys/fault"
	"berth/internal/sys/proof"
	"berth/internal/sys/refuse"
)

// Foreign is a step that changes the standing of a group that is not Berth's own. Its Undo restores the kernel's old
// values, but only in that very group: a group made later at the same path is another's.
type Foreign struct {
	Path   string         `json:"path"`
	Values []ForeignValue `json:"values"`
}

// ForeignValue is one value of a group that is not Berth's.
type ForeignValue struct {
	ClassValue
	Back   string `json:"back"`             // the kernel's value before
	Inode  uint64 `json:"inode"`            // of the group
	Idle   bool   `json:"idle,omitempty"`   // the group was idle (cpu.idle), and so had no weight
	Lacked bool   `json:"lacked,omitempty"` // the kernel had no such file before; an I/O engine may bring it, see Fill
}

// ForeignStep returns the step that gives a group a standing. It looks which control files exist: files that may appear
// later are included, but the step is nil if none exists now.
func ForeignStep(s vnode.Standing, h host.Cgroups, path string, low vnode.Bytes) *Foreign {
	f, has := &Foreign{Path: path}, false
	for _, v := range standingWith(s, h, path, low) {
		_, err := os.Stat(v.Write.File)
		has = has || err == nil
		if _, _, there, _ := group.Inode(filepath.Dir(v.Write.File)); there { // the group is in this hierarchy
			f.Values = append(f.Values, ForeignValue{ClassValue: v, Lacked: err != nil})
		}
	}
	if !has {
		return nil
	}
	return f
}

// standingWith returns the values of a standing and, on cgroup v2, one that protects low bytes of the group's memory.
func standingWith(s vnode.Standing, h host.Cgroups, path string, low vnode.Bytes) []ClassValue {
	all := values(s, h, path)
	if low == 0 || h.Has("memory") != "v2" {
		return all
	}
	return append(all, ClassValue{
		Limit: proof.Limit{Key: "class.memory", Asked: low.String(), By: "memory.low"},
		Write: group.Write{
			File: filepath.Join(h.V2, path, "memory.low"), Value: strconv.FormatInt(int64(low), 10),
			None: "0", Unit: int64(os.Getpagesize()),
		},
	})
}

// Kind is "cgroup.foreign".
func (f *Foreign) Kind() string { return "cgroup.foreign" }

// String is "cpu.weight=1000 io.weight=default 1000 in system.slice/x".
func (f *Foreign) String() string {
	var text strings.Builder
	for _, v := range f.Values {
		text.WriteString(v.Write.String() + " ")
	}
	return text.String() + "in " + f.Path
}

// Prepare records the kernel's values.
func (f *Foreign) Prepare(context.Context) error {
	for i := range f.Values {
		v := &f.Values[i]
		var err error
		if v.Back, err = v.Write.Read(v.Write.File); v.Lacked && group.Gone(err) {
			v.Back, err = v.Write.None, nil
		}
		if err != nil {
			return err
		}
		if v.Inode, _, _, err = group.Inode(filepath.Dir(v.Write.File)); err != nil {
			return err
		}
		v.Idle = v.Write.Idle()
	}
	return nil
}

// Do writes the values.
func (f *Foreign) Do(context.Context) error {
	for _, v := range f.Values {
		if err := v.Write.Do(); err != nil && !(v.Lacked && group.Gone(err)) {
			return fmt.Errorf("set %s of %s: %w", v.Key, f.Path, err)
		}
		fault.Point("foreign value written")
	}
	return nil
}

// Again looks which values no longer hold, and returns what the group has instead; if there are any, the caller does the step
// again. A group that was made anew at the path shall have them too: then Undo gives back what it has now.
func (f *Foreign) Again() (had []string, err error) {
	for i := range f.Values {
		v := &f.Values[i]
		ino, _, there, err := group.Inode(filepath.Dir(v.Write.File))
		if err != nil {
			return had, err
		}
		got, err := v.Write.Effect()
		if !there || v.Lacked && group.Gone(err) || err == nil && ino == v.Inode && v.Write.Holds(got) {
			continue
		}
		if group.Gone(err) {
			return had, v.switchedOff(f.Path)
		}
		if err != nil {
			return had, err
		}
		if ino != v.Inode {
			v.Back, v.Inode, v.Idle = got, ino, v.Write.Idle()
		}
		had = append(had, v.By+" was "+got)
	}
	return had, nil
}

// switchedOff is the error of a value whose file has gone from a group that is there, with its controller.
func (v *ForeignValue) switchedOff(path string) error {
	name := filepath.Base(v.Write.File)
	controller, _, _ := strings.Cut(name, ".")
	return refuse.Cannotf("echo +"+controller+" >"+filepath.Join(filepath.Dir(filepath.Dir(v.Write.File)), "cgroup.subtree_control")+"; berth repair",
		"the cgroup %s has no %s any more: somebody else switched %s off for it", path, name, controller)
}

// Fill writes the values whose files were missing before, exist now, and still have the default value. Any other value is left
// alone: another program may have chosen it.
func (f *Foreign) Fill() error {
	for _, v := range f.Values {
		got, err := v.Write.Effect()
		if !v.Lacked || err != nil || got != v.Write.None {
			continue
		}
		if err := v.Write.Do(); err != nil && !group.Gone(err) {
			return fmt.Errorf("set %s of %s: %w", v.Key, f.Path, err)
		}
	}
	return nil
}

// Verify reads the values back.
func (f *Foreign) Verify(context.Context) error {
	for _, v := range f.Values {
		got, err := v.Write.Effect()
		if v.Lacked && group.Gone(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read back %s of %s: %w", v.Key, f.Path, err)
		}
		if !v.Write.Holds(got) {
			return fmt.Errorf("set %s of %s: wrote %s, the kernel says %s", v.Key, f.Path, v.Write, got)
		}
	}
	return nil
}

// Undo writes the recorded values back.
func (f *Foreign) Undo(context.Context) error {
	var failed error
	for _, v := range slices.Backward(f.Values) {
		ino, _, there, err := group.Inode(filepath.Dir(v.Write.File))
		if err != nil || !there || ino != v.Inode {
			failed = errors.Join(failed, err)
			continue
		}
		if v.Idle {
			err = v.Write.SetIdle(true)
		} else {
			v.Write.Value = v.Back
			err = v.Write.Do()
		}
		if err != nil && !group.Gone(err) {
			failed = errors.Join(failed, fmt.Errorf("give %s back %s: %w", f.Path, v.Key, err))
		}
		fault.Point("foreign value given back")
	}
	return failed
}

// Show returns the values in force. A group that no longer exists has none.
func (f *Foreign) Show() []proof.Limit {
	all := make([]ClassValue, len(f.Values))
	for i, v := range f.Values {
		all[i] = v.ClassValue
	}
	shown := showValues(all)
	for _, v := range f.Values {
		ino, _, there, err := group.Inode(filepath.Dir(v.Write.File))
		if err != nil || !there {
			continue
		}
		if _, err := v.Write.Effect(); group.Gone(err) && !v.Lacked {
			s := v.Limit
			s.Key, s.Why = strings.TrimPrefix(v.Key, "class."), v.switchedOff(f.Path).Error()
			shown = append(shown, s)
			continue
		}
		if ino == v.Inode {
			continue
		}
		for i := range shown {
			if shown[i].By == v.By {
				shown[i].Holds, shown[i].Why = false, "the cgroup "+f.Path+" is not the one that was protected: somebody else made it anew"
			}
		}
	}
	return shown
}

// Show returns the values in force in the group, and says which controllers it has lost. A group that no longer exists has none.
func (c *Class) Show() []proof.Limit {
	all := showValues(c.Values)
	said := ""
	for _, v := range c.Values { // those of a controller follow each other
		off, err := v.off()
		if err != nil || off == "" || off == said {
			continue
		}
		s := v.Limit
		s.Key = strings.TrimPrefix(v.Key, "class.")
		s.Why = fmt.Sprintf("the cgroup %s hands %s on no more: somebody else switched it off", filepath.Dir(filepath.Dir(v.Write.File)), off)
		all, said = append(all, s), off
	}
	return all
}

func showValues(values []ClassValue) []proof.Limit {
	var all []proof.Limit
	for _, v := range values {
		w, got, err := v.read()
		if err == nil && w == nil {
			continue
		}
		s := v.Limit
		s.Key = strings.TrimPrefix(v.Key, "class.")
		if v.On != "" {
			s.Note = "on " + v.On
		}
		if err == nil {
			s.ReadBack, s.Holds = got, w.Holds(got)
		}
		all = append(all, s)
	}
	return all
}
