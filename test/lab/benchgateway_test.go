package lab_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"berth/internal/bench/result"
	"berth/test/lab"
	"berth/test/shares"
	"berth/test/testkit"
)

// TestBenchGateway measures every gateway on one tree, and every place that a node writes to, in a machine with an NFS server and the
// servers that berth bench gateway starts itself. That something is measured is tested, not how much. `make bench-gateway` keeps a longer run as evidence.
func TestBenchGateway(t *testing.T) {
	t.Parallel()
	m := lab.Start(t, lab.Options{Machines: []lab.Machine{{CPUs: 2, Memory: 1536, Disks: []lab.Disk{{Size: 2 << 30}, {Size: 4 << 30}}}}}).VM(0)
	install(t, m)
	m.OK(t, `mkfs.ext4 -q /dev/vdb; mkdir -p /srv; mount /dev/vdb /srv
printf '[nfsd]\ngrace-time=10\nlease-time=10\nthreads=8\n' >/etc/nfs.conf; systemctl start nfs-server; modprobe -a fuse nfs
# NFS as from another machine: the kernel's client would find out that the server is this machine, and read its files itself.
p=/sys/module/nfs/parameters/localio_enabled; [ ! -e $p ] || echo N >$p`)
	const things = "wc -l </proc/self/mountinfo; ls /srv; ls -d /run/berth-bench* /run/sshd 2>/dev/null || true; exportfs; ip -br link"
	before := m.OK(t, things)
	size := "4MiB"
	if shares.Keeps() {
		size = "32MiB"
	}
	throughput := gatewayStudy(t, m, "gateway-lab.json", "--set", "throughput", "--nodes", "1", "--size", size)
	for _, row := range sized(t, throughput, 2) {
		if want, got := []string{"host", "null", "bind", "nfs", "sshfs", "sshfs-direct", "sshfs-direct-sync"}, armsOf(row); !slices.Equal(got, want) {
			t.Errorf("%s: arms %v, want %v; %v", row.Name, got, want, throughput.Notes)
		}
	}
	if after := m.OK(t, things); after != before {
		t.Errorf("the machine had\n%s\nand has\n%s", before, after)
	}

	// The places that a node writes to: a file twice as large as its memory.
	m.OK(t, "modprobe -a loop xfs dm-mod || true; vgcreate -q vg0 /dev/vdc; berth pool add vg0 --vg vg0")
	storage := gatewayStudy(t, m, "gateway-lab-storage.json", "--set", "storage", "--pool", "vg0", "--size", "128MiB")
	for _, row := range sized(t, storage, 6) {
		if want, got := []string{"host", "null", "delta", "xfs", "xfs-published", "nfs", "scratch vg0"}, armsOf(row); !slices.Equal(got, want) {
			t.Errorf("%s: arms %v, want %v; %v", row.Name, got, want, storage.Notes)
		}
	}
	if after := m.OK(t, things+"; lvs --noheadings"); after != before {
		t.Errorf("the machine had\n%s\nand has\n%s", before, after)
	}
}

// gatewayStudy runs berth bench gateway, one short pair of each row, or six as evidence under the name, and returns what it measured.
func gatewayStudy(t *testing.T, m *lab.VM, name string, args ...string) result.Experiment {
	t.Helper()
	limit, length := 4*time.Minute, []string{"--pairs", "1", "--run", "200ms"}
	if shares.Keeps() {
		limit, length = 40*time.Minute, []string{"--pairs", "6", "--run", "1s"}
	}
	args = slices.Concat([]string{"berth", "bench", "gateway", "--dir", "/srv", "--json", "/root/gateway.json", "--seed", "20261"}, args, length)
	out := m.RunFor(t, limit, args...)
	if out.Code != 0 {
		t.Fatalf("exit code %d: %s%s", out.Code, out.Out, out.Err)
	}
	t.Logf("\n%s", out.Out)
	text := m.OK(t, "cat /root/gateway.json")
	if shares.Keeps() {
		testkit.Must(t, os.WriteFile(filepath.Join(os.Getenv(shares.Folder), name), []byte(text), 0o644))
	}
	var study result.Study
	if err := json.Unmarshal([]byte(text), &study); err != nil {
		t.Fatal(err)
	}
	if len(study.Experiments) != 1 {
		t.Fatalf("%+v", study)
	}
	return study.Experiments[0]
}

// sized returns the rows of an experiment, which must be so many.
func sized(t *testing.T, e result.Experiment, rows int) []result.Row {
	t.Helper()
	if len(e.Rows) != rows {
		t.Fatalf("%d rows, want %d: %+v", len(e.Rows), rows, e)
	}
	for _, row := range e.Rows {
		for _, arm := range row.Arms {
			if arm.Values["bytes_per_second"] == 0 { // so short a trial can take less CPU than the kernel counts
				t.Errorf("%s, %s: %v", row.Name, arm.Arm, arm.Values)
			}
		}
	}
	return e.Rows
}

func armsOf(r result.Row) (names []string) {
	for _, arm := range r.Arms {
		names = append(names, arm.Arm)
	}
	return names
}
