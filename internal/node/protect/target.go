package protect

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"berth/internal/host"
	"berth/internal/host/group"
	"berth/internal/host/systemd"
	"berth/internal/limit/weight"
	"berth/internal/spec/vnode"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
)

// Options are the values that berth protect gives a service. Zero values are those of class storage.
type Options struct {
	CPUWeight int // 1..10000
	IOWeight  int // 1..10000, of every disk that shares by weight

	MemoryLow vnode.Bytes // protected from reclaim; 0: none

	Disks  []string     // devices, or folders on them, that must share by weight: refused where nothing makes them
	Engine vnode.Engine // what these disks are switched to as long as the service is protected; "": the one that they have
	Model  string       // of engine iocost
}

// target is the service to protect.
type target struct {
	kind, name string
	id         proc.ID // for the kind process
	group      string  // for the kind cgroup: relative to each hierarchy's mount
}

// namesOf lists the names that a word may stand for among the protected services.
func namesOf(asked string) []target {
	all := []target{{kind: kindProcess, name: asked}, {kind: kindCgroup, name: asked}, {kind: kindUnit, name: asked}}
	if !strings.Contains(asked, ".") {
		all = append(all, target{kind: kindUnit, name: asked + ".service"})
	}
	if cg, err := host.ReadCgroups("/proc"); err == nil {
		all = append(all, target{kind: kindCgroup, name: "/" + groupIn(cg, asked)})
	}
	return all
}

// findTarget finds the target that a word names: a process by its number, a cgroup by its path, else a unit of systemd. A
// process or cgroup that systemd manages is protected as its unit, because systemd would overwrite anything else.
func (v *Services) findTarget(ctx context.Context, asked string) (*target, error) {
	cg, err := host.ReadCgroups("/proc")
	if err != nil {
		return nil, err
	}
	if pid, err := strconv.Atoi(asked); err == nil {
		return v.findProcess(cg, pid)
	}
	if strings.HasPrefix(asked, "/") {
		return v.findGroup(ctx, cg, groupIn(cg, asked))
	}
	if !systemd.Running() {
		return nil, refuse.Cannotf("name the process by its number, or its cgroup by its path",
			"%s: systemd does not manage this host, so there are no units", asked)
	}
	if !strings.Contains(asked, ".") {
		asked += ".service"
	}
	u, err := systemd.Look(ctx, asked)
	if err != nil {
		return nil, err
	}
	if !strings.HasSuffix(u.Name, ".service") && !strings.HasSuffix(u.Name, ".scope") {
		return nil, refuse.Invalidf("%s is no service: a unit that ends in .service or .scope can be protected", u.Name)
	}
	return &target{kind: kindUnit, name: u.Name}, nil
}

func (v *Services) findProcess(cg host.Cgroups, pid int) (*target, error) {
	id, err := proc.Of(pid)
	switch {
	case proc.Gone(err) || err == nil && !id.Alive():
		return nil, refuse.NotFoundf("no process %d", pid)
	case err != nil:
		return nil, err
	case pid == 1:
		return nil, refuse.Invalidf("process 1 is the host: protect a service")
	}
	if _, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err != nil {
		return nil, refuse.Invalidf("process %d is a thread of the kernel", pid)
	}
	groups, err := weight.GroupsOf(cg, pid)
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		if err := v.refuseNodes(g); err != nil {
			return nil, err
		}
	}
	unit := ""
	if systemd.Running() {
		unit = unitOf(pid)
	}
	if strings.HasSuffix(unit, ".service") {
		return &target{kind: kindUnit, name: unit}, nil
	}
	group, own, err := weight.OwnGroup(cg, pid)
	if err != nil {
		return nil, err
	}
	switch {
	case own && strings.HasSuffix(unit, ".scope"):
		return &target{kind: kindUnit, name: unit}, nil
	case own && unit == "":
		return &target{kind: kindCgroup, name: "/" + group, group: group}, nil
	}
	return &target{kind: kindProcess, name: strconv.Itoa(pid), id: id}, nil
}

func (v *Services) findGroup(ctx context.Context, cg host.Cgroups, path string) (*target, error) {
	if path == "" {
		return nil, refuse.Invalidf("the top of a cgroup tree is the host itself: name a group in it")
	}
	if !group.There(cg, path) {
		return nil, refuse.NotFoundf("no cgroup %s in any hierarchy", path)
	}
	if err := v.refuseNodes(path); err != nil {
		return nil, err
	}
	if systemd.Running() {
		if unit := filepath.Base(path); strings.HasSuffix(unit, ".service") || strings.HasSuffix(unit, ".scope") {
			if u, err := systemd.Look(ctx, unit); err == nil && strings.TrimPrefix(u.ControlGroup, "/") == path {
				return &target{kind: kindUnit, name: u.Name}, nil
			}
		}
		if strings.HasSuffix(path, ".slice") {
			return nil, refuse.Invalidf("%s is a slice of systemd: protect a service in it", path)
		}
	}
	return &target{kind: kindCgroup, name: "/" + path, group: path}, nil
}

// refuseNodes refuses Berth's own groups.
func (v *Services) refuseNodes(group string) error {
	top, name, _ := strings.Cut(group, "/")
	if top != v.layout.CgroupParent() && !strings.HasPrefix(top, v.layout.CgroupParent()+".") {
		return nil
	}
	if strings.HasPrefix(top, v.layout.StandingCgroup("pid")+".") {
		return refuse.Busyf("the cgroup %s was made by berth protect: it is protected already", group)
	}
	name, _, _ = strings.Cut(name, "/")
	return refuse.Invalidf("the cgroup %s is of a node of Berth's: give class storage in the spec of %s", group, name)
}

// unitOf returns the service or scope of systemd's in which a process is, "" if it is in none.
func unitOf(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 || f[1] != "name=systemd" && f[0] != "0" {
			continue
		}
		for part := range strings.SplitSeq(f[2], "/") { // a service may have groups inside
			switch {
			case strings.HasPrefix(part, "user@"): // groups inside belong to another systemd
				return ""
			case strings.HasSuffix(part, ".service") || strings.HasSuffix(part, ".scope"):
				return part
			}
		}
	}
	return ""
}

// groupIn returns a group's path relative to the mount of its hierarchy; it may be given with it. A hybrid host has the
// v2 tree below the folder of the v1 ones: the longest mount is the one.
func groupIn(cg host.Cgroups, asked string) string {
	asked = filepath.Clean("/" + asked)
	longest := ""
	for _, m := range append(slices.Collect(maps.Values(cg.V1)), cg.V2) {
		if len(m) > len(longest) && strings.HasPrefix(asked+"/", m+"/") {
			longest = m
		}
	}
	return strings.Trim(asked[len(longest):], "/")
}
