package lab_test

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"berth/test/built"
	"berth/test/lab"
)

// TestHeldMemory tries on cgroup v2, with the probe of test/security, to hold kernel memory beyond memory.max. It also sets
// memory.max below the size of the node's files in memory, which berth refuses.
func TestHeldMemory(t *testing.T) {
	t.Parallel()
	m := start(t, lab.Machine{CPUs: 1, Memory: 1024})
	probe := filepath.Join(t.TempDir(), "probe")
	if err := built.Probe(t.Context(), probe); err != nil {
		t.Fatal(err)
	}
	m.Copy(t, probe, "/usr/local/bin/probe")
	node(t, m, "name: held\nimage: host\ncommand: [sleep, infinity]\nmemory: {max: 64MiB, swap: 0}\n")
	type hoarded struct {
		Held, Charged int64
		Made          int
		Stopped       string
	}
	const mib = 1 << 20
	hoard := func(kind, bytes, most string) (h hoarded, killed bool) {
		r := m.Run(t, "berth", "exec", "held", "--", "probe", "hoard", kind, bytes, most)
		if r.Code == 137 {
			return h, true
		}
		if err := json.Unmarshal([]byte(r.Out), &h); err != nil {
			t.Fatalf("%s: %d %s%s", kind, r.Code, r.Out, r.Err)
		}
		return h, false
	}
	for _, kind := range []string{"tcp", "udp", "unix", "pipe", "memfd", "sysvmsg", "inodes"} {
		h, killed := hoard(kind, "8388608", "100000")
		t.Logf("%s: killed %v, %+v", kind, killed, h)
		if !killed && h.Charged < h.Held*7/10 {
			t.Errorf("%s: %+v: not counted as the node's memory", kind, h)
		}
	}
	for kind, most := range map[string]string{"tcp": "60", "udp": "60"} {
		h, killed := hoard(kind, "536870912", most)
		t.Logf("%s: killed %v, %+v", kind, killed, h)
		if h.Held > 64*mib {
			t.Errorf("%s: %+v in a node of 64 MiB", kind, h)
		}
	}
	if h, _ := hoard("usersock", "536870912", "3000"); h.Made != 0 || h.Stopped != "EPERM" {
		t.Errorf("NETLINK_USERSOCK: %+v", h)
	}
	if h, _ := hoard("answers", "33554432", "1000"); true {
		t.Logf("unread answers: %+v", h)
	}
	if h, _ := hoard("ptys", "1", "300"); h.Made != 256 {
		t.Errorf("pseudo terminals: %+v", h)
	}
	m.OK(t, `berth exec held -- sh -c '! touch /sys/fs/cgroup/x 2>/dev/null && ! (echo "some 150000 2000000" >/proc/pressure/cpu) 2>/dev/null'`)
	if out := m.OK(t, "berth exec held -- getent hosts held"); !strings.HasPrefix(out, "127.0.1.1") {
		t.Errorf("the node finds itself: %q", out)
	}
	m.OK(t, "berth set held memory.max=128MiB; berth exec held -- sh -c 'head -c 50000000 /dev/zero >/dev/shm/x'")
	r := m.Run(t, "berth", "set", "held", "memory.max=32MiB")
	if r.Code != 5 || !strings.Contains(r.Err, "files in memory 47MiB") {
		t.Errorf("below what is held: exit code %d: %s", r.Code, r.Err)
	}
	if s := show(t, m, "held"); s.State != "running" {
		t.Errorf("the node is %s", s.State)
	}
}
