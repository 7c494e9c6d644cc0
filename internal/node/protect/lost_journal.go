package protect

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/host"
	"berth/internal/host/group"
	"berth/internal/host/systemd"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// journalOf reads the journal of a target. It is refused if records of it are lost, as in a power cut, and something exists that they
// may have named: its former values are not known, so that it can be neither undone nor forgotten.
func (v *Services) journalOf(t target) (*step.Journal, error) {
	path := t.journal(v)
	j, err := v.open(path)
	if err != nil {
		return nil, err
	}
	wrong, err := cut(j)
	if err != nil || wrong == "" {
		return j, err
	}
	left, remedy, err := v.left(t, j)
	if err != nil || left == "" {
		return j, err
	}
	return nil, lost(path, t.name, wrong, left, remedy)
}

// lost returns the refusal of the journal at path, of the service with this name.
func lost(path, name, wrong, left, remedy string) error {
	return &refuse.Error{
		Kind: refuse.Failed, Remedy: remedy,
		What: fmt.Sprintf("%s (the journal of what was changed for %s, and of what it had before) %s, as after a power failure, and %s", path, name, wrong, left),
	}
}

// cut says in words whether records may be missing; "" if none are. A journal that was begun in this boot has all, because no kill loses
// a record.
func cut(j *step.Journal) (wrong string, err error) {
	boot, err := step.BootID()
	switch {
	case err != nil:
		return "", err
	case j.Empty():
		return "is empty", nil
	case j.Phase == step.Creating && j.Boot != boot:
		return "is cut off", nil
	}
	return "", nil
}

// left says which changes that berth protect may have made to a target exist although its cut journal does not name them, and how to
// remove them.
func (v *Services) left(t target, j *step.Journal) (what, remedy string, err error) {
	forget := "rm " + t.journal(v)
	if t.kind == kindUnit {
		what, remedy = v.leftOfUnits(j, forget, []string{t.name}, "CPUWeight", "IOWeight", memoryLow)
		return what, remedy, nil
	}
	if !j.Empty() {
		return "", "", nil // a boot ends all changes to cgroups
	}
	cg, err := host.ReadCgroups("/proc")
	if err != nil {
		return "", "", err
	}
	path := strings.Trim(t.name, "/")
	if t.kind == kindProcess {
		path = v.layout.StandingCgroup("pid") + "." + t.name
	}
	var dirs []string
	for _, h := range group.Hierarchies(cg) {
		if dir := filepath.Join(h.Mount, path); group.There(cg, path) {
			if _, err := os.Stat(dir); err == nil {
				dirs = append(dirs, dir)
			}
		}
	}
	switch {
	case len(dirs) == 0:
		return "", "", nil
	case t.kind == kindProcess:
		return "the cgroup that was made for it is there", "end the service, or start it anew, then: rmdir " + strings.Join(dirs, " ") + "; " + forget, nil
	}
	return "the weights that its cgroup had are not known",
		"write those that it should have to its cpu.* and io.* files in " + strings.Join(dirs, ", ") + ", then: " + forget, nil
}

// leftOfUnits is left for properties of units of systemd: their drop-ins. forget is the command that removes the journal.
func (v *Services) leftOfUnits(j *step.Journal, forget string, units []string, properties ...string) (what, remedy string) {
	var files, undo []string
	for _, unit := range units {
		var reset []string
		for _, property := range properties {
			file := systemd.DropIn(v.control, unit, property)
			if _, err := os.Lstat(file); err == nil && !names(j, unit, property) {
				files = append(files, file)
				reset = append(reset, property+"=")
			}
		}
		if len(reset) > 0 {
			undo = append(undo, "systemctl set-property "+unit+" "+strings.Join(reset, " ")+"; ")
		}
	}
	if len(files) == 0 {
		return "", ""
	}
	all := strings.Join(files, " ")
	return "systemd has " + all,
		"if these files are your own: " + forget + "; if they are not: " + strings.Join(undo, "") + "rm -f " + all + "; systemctl daemon-reload; " + forget
}

// names reports whether a journal has the former value of a property of a unit.
func names(j *step.Journal, unit, property string) bool {
	return slices.ContainsFunc(j.Steps(), func(s step.Step) bool {
		set, ok := s.(*systemd.Set)
		return ok && set.Unit == unit && slices.ContainsFunc(set.Properties, func(p systemd.Property) bool { return p.Name == property })
	})
}
