package side

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// InGroups is the host arm with its command in cgroups: procs are their files cgroup.procs, one a hierarchy.
func InGroups(procs ...string) Arm {
	const join = `while [ "$1" != -- ]; do echo $$ > "$1" || exit 1; shift; done; shift; exec "$@"`
	enter := slices.Concat([]string{"sh", "-c", join, "sh"}, procs, []string{"--"})
	return func(ctx context.Context, argv []string) ([]byte, error) {
		return Host(ctx, slices.Concat(enter, argv))
	}
}

// Groups is a set of cgroups that are made and removed together.
type Groups struct {
	Base string   // how the names of all begin
	tops []string // the uppermost ones
	all  []plannedGroup
}

type plannedGroup struct {
	path    string
	handsOn string // v2: controllers that it enables for its children
}

// Add plans depth nested groups and returns the cgroup.procs of the innermost one. On v2 a group has the controllers that its parent
// enables, so one more group is needed.
func (g *Groups) Add(mount, name, handsOn string, depth int) (procs string) {
	path := filepath.Join(mount, g.Base+"-"+strings.ReplaceAll(name, "/", "_"))
	g.tops = append(g.tops, path)
	g.all = append(g.all, plannedGroup{path, handsOn})
	if handsOn != "" {
		depth++
	}
	for i := 1; i < depth; i++ {
		path = filepath.Join(path, "g")
		last := plannedGroup{path: path}
		if i < depth-1 {
			last.handsOn = handsOn
		}
		g.all = append(g.all, last)
	}
	return filepath.Join(path, "cgroup.procs")
}

// Make makes the groups.
func (g *Groups) Make() error {
	for _, p := range g.all {
		if err := os.Mkdir(p.path, 0o755); err != nil {
			return fmt.Errorf("make a cgroup: %w", err)
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} { // v1: an empty set takes no process
			set := Word(filepath.Join(filepath.Dir(p.path), file))
			at := filepath.Join(p.path, file)
			if _, err := os.Stat(at); err == nil && set != "" {
				if err := os.WriteFile(at, []byte(set), 0); err != nil {
					return fmt.Errorf("give a cgroup its CPUs: %w", err)
				}
			}
		}
		for c := range strings.FieldsSeq(p.handsOn) {
			if err := os.WriteFile(filepath.Join(p.path, "cgroup.subtree_control"), []byte("+"+c), 0); err != nil {
				return fmt.Errorf("hand on the controller %s: %w", c, err)
			}
		}
	}
	return nil
}

// Removal is a script that removes the groups, innermost first. A command that was killed takes a moment to leave.
func (g *Groups) Removal() string {
	var b strings.Builder
	for _, top := range g.tops {
		q := Quoted(top)
		fmt.Fprintf(&b, "for i in 1 2 3 4 5 6 7 8 9 10; do [ -d %s ] || break; find %s -depth -type d -exec rmdir {} + 2>/dev/null; "+
			"[ -d %s ] || break; sleep 0.2; done; [ ! -d %s ] || exit 1; ", q, q, q, q)
	}
	return b.String()
}
