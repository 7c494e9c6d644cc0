package lab_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"berth/internal/node/top"
	"berth/test/lab"
	"berth/test/testkit"
)

// setRLimits changes resource limits of running processes, which needs CAP_SYS_RESOURCE, and restores them.
func setRLimits(t *testing.T, m *lab.VM) {
	limitedNode(t, m)
	nofile := func() string {
		return m.OK(t, fmt.Sprintf("awk '/Max open files/ {print $4, $5}' /proc/%d/limits", show(t, m, "n1").PID))
	}
	m.OK(t, "berth set n1 rlimits.nofile=500")
	if got := nofile(); got != "500 500" {
		t.Errorf("process 1 has %s open files, asked for 500", got)
	}
	m.OK(t, "berth set n1 rlimits.nofile=600 cpu.max=0.5") // a hard limit is raised
	if got := nofile() + " " + m.OK(t, "berth exec n1 -- sh -c 'ulimit -Hn'"); got != "600 600 600" {
		t.Errorf("process 1 and a new one have %s open files, asked for 600", got)
	}
	// If one key fails, none is changed: the kernel refuses more open files than fs.nr_open, which are written last.
	if r := m.Run(t, "berth", "set", "n1", "cpu.max=0.25", "rlimits.core=0", "rlimits.nofile=99999999999"); r.Code == 0 {
		t.Errorf("a limit above fs.nr_open: %+v", r)
	}
	if got := nofile() + " " + m.OK(t, "cut -d' ' -f1 "+group+"/cpu.max"); got != "600 600 50000" {
		t.Errorf("after a set that was refused: %s, want 600 600 50000", got)
	}
}

// topOnV2 checks berth top for a node that computes, is throttled, and writes to a disk.
func topOnV2(t *testing.T, m *lab.VM) {
	limitedNode(t, m)
	m.OK(t, "berth set n1 cpu.max=0.3 memory.high=max")
	m.OK(t, `berth exec n1 -- sh -c 'timeout 20 sh -c "while :; do :; done" & timeout 20 dd if=/dev/zero of=/dev/vdb bs=64k oflag=direct 2>/dev/null & :' </dev/null >/dev/null 2>&1 &
		while awaiting; do grep -q wbytes=[1-9] `+group+`/io.stat && exit; done; exit 1`)
	var s top.Sample
	if err := json.Unmarshal([]byte(m.OK(t, "berth top n1 -n 1 -i 4s --json")), &s); err != nil || len(s.Nodes) != 1 {
		t.Fatalf("%v, %+v", err, s)
	}
	u := s.Nodes[0]
	text, _ := json.Marshal(u)
	t.Logf("%s", text)
	if u.CPU == nil || *u.CPU > 36 || testkit.Measures() && *u.CPU < 15 || u.Throttled == nil || *u.Throttled == 0 {
		t.Errorf("CPU of a node with 0.3: %s", text)
	}
	if u.Pressure == nil || u.Pressure.CPU == nil || u.Pressure.IO == nil || *u.Pressure.IO.Some == 0 {
		t.Errorf("pressure: %s", text)
	}
	i := slices.IndexFunc(u.Disks, func(d top.DiskUse) bool { return d.Disk == "vdb" })
	if i < 0 || u.Disks[i].WriteBytes <= 0 || u.Disks[i].WriteBytes > 11e6 || u.Disks[i].WriteOps == 0 {
		t.Errorf("a disk limited to 10 MB/s of writes: %s", text)
	}
	if u.MemoryMax == nil || *u.MemoryMax != 256<<20 || u.PIDs == nil || *u.PIDs < 3 {
		t.Errorf("memory and tasks: %s", text)
	}
	table := m.OK(t, "berth top -n 1 -i 1s")
	for _, want := range []string{"n1 ", "vdb: read 0B/s", "waits cpu"} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
}

func limitedNode(t *testing.T, m *lab.VM) {
	t.Helper()
	node(t, m, limited)
}
