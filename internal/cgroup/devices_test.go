package cgroup

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestKernelDevices: what is not listed cannot be opened, not even by the host's root.
func TestKernelDevices(t *testing.T) {
	h := thisHost(t)
	path := newGroup(t, h)
	d := DevicesStep(h, path)
	if d == nil {
		t.Skip("no device controller on cgroup v1: on v2 the runtime attaches a program")
	}
	do(t, d)
	cmd := exec.Command("/bin/sh", "-c", `echo 0 > "$0" && head -c 1 /dev/zero | wc -c; head -c 1 /dev/kmsg`, filepath.Join(d.Dir, "tasks"))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if strings.TrimSpace(out.String()) != "1" {
		t.Errorf("/dev/zero is closed too: %q %q", &out, &errs)
	}
	if err == nil || !strings.Contains(errs.String(), "Operation not permitted") {
		t.Errorf("/dev/kmsg could be opened: %v, %q", err, &errs)
	}
}
