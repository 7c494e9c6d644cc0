package env

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"

	"berth/internal/host"
	"berth/test/testkit"
)

// Left waits until nothing of the nodes is left, nor the keeper, which ends half a second after the last node. It returns what stays:
// mounts, groups, the bridge, processes, files.
func (b Berth) Left() (all []string) {
	testkit.Happens(func() bool {
		all = b.left()
		return len(all) == 0
	})
	return all
}

func (b Berth) left() (all []string) {
	l := b.Layout()
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || bytes.Contains(mounts, []byte(b.Root)) {
		all = append(all, "a mount")
	}
	if cg, err := host.ReadCgroups("/proc"); err == nil {
		trees := []string{cg.V2}
		for _, mount := range cg.V1 {
			trees = append(trees, mount)
		}
		for _, tree := range trees {
			if groups, _ := filepath.Glob(filepath.Join(tree, l.CgroupParent(), "*", "cgroup.procs")); tree != "" && len(groups) > 0 {
				all = append(all, "a group in "+tree)
			}
		}
	}
	if _, err := net.InterfaceByName(l.Bridge()); err == nil {
		all = append(all, "bridge "+l.Bridge())
	}
	for _, line := range testkit.Processes(b.Root) {
		all = append(all, "process "+strings.ReplaceAll(line, "\x00", " "))
	}
	for _, dir := range []string{l.LibNodes(), l.RunNodes(), l.IDs(), l.MACs(), filepath.Dir(l.Lock("x")), l.RuntimeState()} {
		for _, name := range entries(dir) {
			all = append(all, filepath.Join(dir, name))
		}
	}
	return all
}

// Groups lists the groups that stand for the whole root, and those beside them.
func (b Berth) Groups() (all []string) {
	for _, top := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		groups, _ := filepath.Glob(filepath.Join(top, b.Layout().CgroupParent()+"*"))
		all = append(all, groups...)
	}
	return all
}

// Running lists the processes, by their folders in /proc, whose programs' paths begin so.
func Running(path string) (all []string) {
	exes, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, exe := range exes {
		if to, err := os.Readlink(exe); err == nil && strings.HasPrefix(to, path) {
			all = append(all, filepath.Dir(exe))
		}
	}
	return all
}

// entries returns the names in a folder, none if it is not there.
func entries(dir string) (names []string) {
	all, _ := os.ReadDir(dir)
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names
}
