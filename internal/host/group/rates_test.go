package group

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/host/group/grouptest"
	"berth/internal/sys/proc"
	"berth/test/loop"
	"berth/test/testkit"
)

func TestV2LiftRates(t *testing.T) {
	h, dir := grouptest.Drawn(t)
	inner := filepath.Join(dir, "inner", "io.max")
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "io.max"), []byte("8:0 rbps=max wbps=100000 riops=max wiops=max\n"), 0o644))
	testkit.Must(t, os.WriteFile(inner, []byte("8:16 rbps=7 wbps=max riops=max wiops=max\n"), 0o644))
	lifted, err := LiftRates(h, "berth/wn")
	testkit.Must(t, err)
	want := []string{"io.max=8:16 rbps=7 wbps=max riops=max wiops=max", "io.max=8:0 rbps=max wbps=100000 riops=max wiops=max"}
	if diff := cmp.Diff(want, lifted); diff != "" {
		t.Error(diff)
	}
	for file, want := range map[string]string{inner: "8:16", filepath.Join(dir, "io.max"): "8:0"} {
		if got := grouptest.Text(t, file); got != want+" rbps=max wbps=max riops=max wiops=max" {
			t.Errorf("%s: %s", file, got)
		}
	}
}

// TestKernelHeldIsNamed kills a process whose write waits behind a rate. A kill that knows nothing of the rate names the process
// and what it waits for; one that knows it lifts the rate, and the process ends.
func TestKernelHeldIsNamed(t *testing.T) {
	h := grouptest.Host(t)
	if h.Has("blkio") != "v1" {
		t.Skip("the blkio controller is not on cgroup v1")
	}
	path := grouptest.New(t, h, Kinds(), Steps)
	disk := loop.ForTest(t, 1<<20)
	var st unix.Stat_t
	testkit.Must(t, unix.Stat(disk, &st))
	rate := filepath.Join(h.V1["blkio"], path, "blkio.throttle.write_bps_device")
	testkit.Must(t, WriteFile(rate, fmt.Sprintf("%d:%d 1", unix.Major(st.Rdev), unix.Minor(st.Rdev))))
	cmd := grouptest.Enter(t, h, path, "exec dd if=/dev/zero of="+disk+" bs=64k count=1 oflag=direct")
	// A process also waits while its program is read from the disk: the write has begun once the kernel counts it (proc_pid_io(5)).
	testkit.Eventually(t, "the write", func() bool {
		counted := grouptest.Text(t, fmt.Sprintf("/proc/%d/io", cmd.Process.Pid))
		return strings.Contains(counted, "\nwrite_bytes: 65536\n") && proc.Waits(cmd.Process.Pid) != ""
	})

	blind := h
	blind.V1 = maps.Clone(h.V1)
	delete(blind.V1, "blkio")
	short, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	err := Kill(short, blind, path)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d %q waits in ", cmd.Process.Pid, "dd")) {
		t.Errorf("killed, with the rate: %v", err)
	}
	testkit.Must(t, Kill(t.Context(), h, path))
	if got := grouptest.Text(t, rate); got != "" {
		t.Errorf("the rate is still there: %s", got)
	}
}
