package group

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// GroupOf returns the group of a process in this hierarchy, relative to its mount: "" is the top.
func (h Hierarchy) GroupOf(pid int) (string, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return "", fmt.Errorf("find the cgroup of process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(text)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		if h.V2 && f[0] == "0" || !h.V2 && slices.Contains(strings.Split(f[1], ","), h.Controllers[0]) {
			return strings.TrimPrefix(f[2], "/"), nil
		}
	}
	return "", fmt.Errorf("find the cgroup of process %d: /proc names none in %s", pid, h.Mount)
}

// Move moves a process to a group. A process that has ended is no error.
func (h Hierarchy) Move(pid int, to string) error {
	err := WriteFile(filepath.Join(h.Mount, to, "cgroup.procs"), strconv.Itoa(pid))
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}
