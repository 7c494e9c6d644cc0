package machine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/runner/machine"
	"berth/test/testkit"
)

// models are the device models that a machine may have: each is code of QEMU's that a guest can reach.
var models = []string{
	"acpi-ged", "fw_cfg_io", "ioapic", "isa-i8259", "isa-pit", "isa-serial", "isabus-bridge", "kvmvapic", "mc146818rtc", "pvpanic", "vhost-user-fs-device", "virtio-balloon-device", "virtio-blk-device", "virtio-mmio",
	"virtio-net-device", "virtio-rng-device", "virtio-serial-device", "virtserialport",
}

// onlyKnownModels compares the devices of a running machine with the models that it may have. QEMU tells them by its own protocol, of
// which only the monitor has the line: its descriptor is borrowed while it is stopped.
func onlyKnownModels(t *testing.T, node string) {
	t.Helper()
	monitor := monitorOf(t, node)
	emulator := childOf(t, monitor)
	var theirs uint64
	to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/3", emulator))
	testkit.Must(t, err)
	_, err = fmt.Sscanf(to, "socket:[%d]", &theirs)
	testkit.Must(t, err)
	// Both ends of a pair are made one after the other, the monitor's first.
	mine := fmt.Sprintf("socket:[%d]", theirs-1)
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", monitor))
	testkit.Must(t, err)
	i := slices.IndexFunc(fds, func(fd os.DirEntry) bool {
		at, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", monitor, fd.Name()))
		return at == mine
	})
	if i < 0 {
		t.Fatalf("the monitor has no %s", mine)
	}
	fd, err := strconv.Atoi(fds[i].Name())
	testkit.Must(t, err)
	pidfd, err := unix.PidfdOpen(monitor, 0)
	testkit.Must(t, err)
	defer unix.Close(pidfd)
	line, err := unix.PidfdGetfd(pidfd, fd, 0)
	testkit.Must(t, err)
	defer unix.Close(line)
	testkit.Must(t, unix.Kill(monitor, unix.SIGSTOP))
	defer func() { testkit.Must(t, unix.Kill(monitor, unix.SIGCONT)) }()
	testkit.Eventually(t, "the monitor is stopped", func() bool {
		all, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", monitor))
		return !slices.ContainsFunc(all, func(f string) bool {
			b, _ := os.ReadFile(f)
			_, state, _ := bytes.Cut(b, []byte(") "))
			return !bytes.HasPrefix(state, []byte("T"))
		})
	})
	if _, err := unix.Write(line, []byte(`{"execute":"human-monitor-command","arguments":{"command-line":"info qtree"}}`+"\n")); err != nil {
		t.Fatal(err)
	}
	var said []byte
	var answer struct {
		Return string `json:"return"`
	}
	testkit.Eventually(t, "QEMU answers", func() bool {
		b := make([]byte, 64<<10)
		if n, err := unix.Read(line, b); err == nil {
			said = append(said, b[:n]...)
		}
		return json.Unmarshal(said, &answer) == nil && answer.Return != ""
	})
	found := 0
	for text := range strings.Lines(answer.Return) {
		if model, ok := strings.CutPrefix(strings.TrimSpace(text), "dev: "); ok {
			found++
			if model, _, _ = strings.Cut(model, ","); !slices.Contains(models, model) {
				t.Errorf("the machine has a %q", model)
			}
		}
	}
	if found < 5 {
		t.Errorf("QEMU tells of %d devices:\n%s", found, answer.Return)
	}
}

func monitorOf(t *testing.T, node string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(bench.Root, "run/nodes", node, "pid"))
	testkit.Must(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	testkit.Must(t, err)
	return pid
}

// childOf returns the emulator, a child of the monitor beside the daemons of mounts.
func childOf(t *testing.T, pid int) int {
	t.Helper()
	for _, child := range childrenOf(pid) {
		if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", child)); bytes.HasPrefix(b, []byte(machine.Program)) {
			return child
		}
	}
	t.Fatalf("process %d has no emulator", pid)
	return 0
}

// childrenOf returns the children of a process.
func childrenOf(pid int) (all []int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, f := range lists {
		b, _ := os.ReadFile(f)
		for text := range strings.FieldsSeq(string(b)) {
			if child, err := strconv.Atoi(text); err == nil {
				all = append(all, child)
			}
		}
	}
	return all
}
