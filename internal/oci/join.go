package oci

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// V1Group is a node's group in one v1 hierarchy.
type V1Group struct {
	Mount      string `json:"mount"`
	Controller string `json:"controller"` // a controller of the hierarchy, to find it in /proc/self/cgroup
	Path       string `json:"path"`       // of the group, below Mount
}

// enterV1 moves the calling OS thread, which must be locked, into the groups; leave moves it back. Processes that the
// thread forks in between start in the groups.
//
// The reason is speed. A thread that moves itself (0 written to tasks) does not wait for an RCU grace period. Moving
// another process (its PID written to cgroup.procs, as the runtimes do) waits 8 ms and more for one, because
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
