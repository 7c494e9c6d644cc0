package script

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth/internal/host"
	"berth/internal/sys/layout"
	"berth/test/testkit"
)

// tidy removes the nodes and links that a script left, and reports everything that is left of them after that.
func tidy(t *testing.T, work, bin, link string) {
	root := filepath.Join(work, "root")
	l := layout.New(root)
	berth := func(args ...string) {
		cmd := exec.Command(filepath.Join(bin, "berth"), args...)
		cmd.Env = append(os.Environ(), "ROOT="+root)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: berth %v: %v\n%s", work, args, err, out)
		}
	}
	if names := entries(l.LibNodes()); len(names) > 0 {
		berth(append([]string{"rm", "--force"}, names...)...)
	}
	if interfaces, err := net.Interfaces(); err == nil {
		for _, i := range interfaces {
			if strings.HasPrefix(i.Name, link) {
				_ = exec.Command("ip", "link", "delete", i.Name).Run() // it may have been deleted with its peer
			}
		}
	}
	if loops, err := exec.Command("losetup", "--noheadings", "--output", "NAME,BACK-FILE").Output(); err == nil {
		for line := range strings.Lines(string(loops)) {
			if name, file, _ := strings.Cut(line, " "); strings.Contains(file, work+"/") {
				_ = exec.Command("losetup", "--detach", name).Run() // left reports it if this fails
				t.Errorf("%s left: loop device %s", filepath.Base(work), name)
			}
		}
	}
	var is []string
	testkit.Happens(func() bool { // the keeper ends half a second after the last node
		is = left(root, l)
		return len(is) == 0
	})
	for _, what := range is {
		t.Errorf(testkit.FinalMark+"%s left: %s", filepath.Base(work), what)
	}
}

// left lists what exists of the nodes under a root.
func left(root string, l layout.Layout) []string {
	var all []string
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || bytes.Contains(mounts, []byte(root)) {
		all = append(all, "a mount")
	}
	if cg, err := host.ReadCgroups("/proc"); err == nil {
		trees := []string{cg.V2}
		for _, mount := range cg.V1 {
			trees = append(trees, mount)
		}
		for _, tree := range trees {
			if groups := entries(filepath.Join(tree, l.CgroupParent())); tree != "" && slices.ContainsFunc(groups, isFolder(tree, l)) {
				all = append(all, "a group in "+tree)
			}
		}
	}
	if _, err := net.InterfaceByName(l.Bridge()); err == nil {
		all = append(all, "bridge "+l.Bridge())
	}
	processes, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range processes {
		if words, err := os.ReadFile(p); err == nil && bytes.Contains(words, []byte(root)) {
			all = append(all, "process "+string(bytes.ReplaceAll(words, []byte{0}, []byte{' '})))
		}
	}
	for _, dir := range []string{l.LibNodes(), l.RunNodes(), l.IDs(), l.MACs(), filepath.Dir(l.Lock("x")), l.RuntimeState()} {
		for _, name := range entries(dir) {
			all = append(all, filepath.Join(dir, name))
		}
	}
	return all
}

func isFolder(tree string, l layout.Layout) func(string) bool {
	return func(name string) bool {
		fi, err := os.Stat(filepath.Join(tree, l.CgroupParent(), name))
		return err == nil && fi.IsDir()
	}
}

func entries(dir string) []string {
	var names []string
	all, _ := os.ReadDir(dir) // empty if there is no such folder
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names
}
