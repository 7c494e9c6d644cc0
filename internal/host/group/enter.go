package group

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"berth/internal/host"
	"berth/internal/sys/fork"
)

// EntryTo returns how processes begin in the group at a path, in all hierarchies.
func EntryTo(h host.Cgroups, path string) Entry {
	var e Entry
	for _, hh := range Hierarchies(h) {
		if !hh.V2 {
			e.V1 = append(e.V1, V1Group{Mount: hh.Mount, Controller: hh.Controllers[0], Path: path})
		}
	}
	if h.Mode() != "v1" {
		e.V2 = V2Dir(h, path)
	}
	return e
}

// Entry says in which groups processes begin. The zero value: where their parent is.
type Entry struct {
	V1 []V1Group `json:"v1,omitempty"`
	V2 string    `json:"v2,omitempty"` // folder of the group; "": none
}

// V1Group is a group in one v1 hierarchy.
type V1Group struct {
	Mount      string `json:"mount"`
	Controller string `json:"controller"` // a controller of the hierarchy, to find it in /proc/self/cgroup
	Path       string `json:"path"`       // of the group, below Mount
}

// Gate is an entry whose v2 group is open, so that it can be entered where the tree is no longer visible.
type Gate struct {
	v1 []V1Group
	v2 *os.File
}

// Open opens the entry. The caller closes the gate.
func (e Entry) Open() (*Gate, error) {
	g := &Gate{v1: e.V1}
	if e.V2 == "" {
		return g, nil
	}
	var err error
	if g.v2, err = os.Open(e.V2); err != nil {
		return nil, fmt.Errorf("open the node's v2 group: %w", err)
	}
	return g, nil
}

// Close closes the gate.
func (g *Gate) Close() {
	if g.v2 != nil {
		g.v2.Close()
	}
}

// Start starts a command that is in the groups from its first instruction. The calling OS thread must be locked, and
// cmd.SysProcAttr set. The caller calls fork.Wait.
func (g *Gate) Start(cmd *exec.Cmd) error {
	if g.v2 != nil {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(g.v2.Fd())
	}
	leave, err := enterV1(g.v1)
	if err != nil {
		return err
	}
	err = fork.Start(cmd)
	if left := leave(); left != nil && err == nil {
		err = errors.Join(left, cmd.Process.Kill(), fork.Wait(cmd))
	}
	return err
}

// enterV1 moves the calling OS thread, which must be locked, into the groups; leave moves it back. Processes that the
// thread forks in between start in the groups.
//
// The reason is speed. A thread that moves itself (0 written to tasks) does not wait for an RCU grace period. Moving
// another process (its PID written to cgroup.procs, as the OCI runtimes do) waits 8 ms and more for one, because
// cgroup_procs_write_start takes cgroup_threadgroup_rwsem in every other case.
func enterV1(groups []V1Group) (leave func() error, err error) {
	if len(groups) == 0 {
		return func() error { return nil }, nil
	}
	homes, err := v1Homes()
	if err != nil {
		return nil, err
	}
	var entered []string // home folders of the groups entered
	leave = func() error {
		var errs []error
		for _, home := range entered {
			errs = append(errs, enterTasks(home))
		}
		if err := errors.Join(errs...); err != nil {
			return fmt.Errorf("leave the node's group: %w", err)
		}
		return nil
	}
	for _, g := range groups {
		if err := enterTasks(filepath.Join(g.Mount, g.Path)); err != nil {
			return nil, errors.Join(fmt.Errorf("enter the node's group: %w", err), leave())
		}
		entered = append(entered, filepath.Join(g.Mount, homes[g.Controller]))
	}
	return leave, nil
}

func enterTasks(dir string) error {
	return os.WriteFile(filepath.Join(dir, "tasks"), []byte("0"), 0)
}

// v1Homes maps each v1 controller, or name=…, to the path of this process's group.
func v1Homes() (map[string]string, error) {
	f, err := os.Open("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("read this process's own groups: %w", err)
	}
	defer f.Close()
	homes := map[string]string{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		parts := strings.SplitN(lines.Text(), ":", 3)
		if len(parts) != 3 || parts[1] == "" { // the v2 tree has no name
			continue
		}
		for c := range strings.SplitSeq(parts[1], ",") {
			homes[c] = parts[2]
		}
	}
	return homes, lines.Err()
}
