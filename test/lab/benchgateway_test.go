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
)

// TestBenchGateway measures every gateway on one tree in a machine with an NFS server and the servers that berth bench gateway starts
// itself. That something is measured is tested, not how much. `make bench-gateway` keeps a longer run as evidence.
func TestBenchGateway(t *testing.T) {
	t.Parallel()
	m := lab.Start(t, lab.Options{Machines: []lab.Machine{{CPUs: 2, Memory: 1536, Disks: []lab.Disk{{Size: 2 << 30}}}}}).VM(0)
	install(t, m)
	m.OK(t, `mkfs.ext4 -q /dev/vdb; mkdir -p /srv; mount /dev/vdb /srv
printf '[nfsd]\ngrace-time=10\nlease-time=10\nthreads=8\n' >/etc/nfs.conf; systemctl start nfs-server; modprobe -a fuse nfs
# NFS as from another machine: the kernel's client would find out that the server is this machine, and read its files itself.
p=/sys/module/nfs/parameters/localio_enabled; [ ! -e $p ] || echo N >$p`)
	const things = "wc -l </proc/self/mountinfo; ls /srv; ls -d /run/berth-bench* /run/sshd 2>/dev/null || true; exportfs; ip -br link"
	before := m.OK(t, things)
	limit := 4 * time.Minute
	args := []string{"berth", "bench", "gateway", "--set", "throughput", "--nodes", "1", "--dir", "/srv", "--json", "/root/gateway.json", "--seed", "20261"}
	if shares.Keeps() {
		args, limit = append(args, "--pairs", "6", "--size", "32MiB", "--run", "1s"), 30*time.Minute
	} else {
		args = append(args, "--pairs", "1", "--size", "4MiB", "--run", "200ms")
	}
	out := m.RunFor(t, limit, args...)
	if out.Code != 0 {
		t.Fatalf("exit code %d: %s%s", out.Code, out.Out, out.Err)
	}
	t.Logf("\n%s", out.Out)
	if after := m.OK(t, things); after != before {
		t.Errorf("the machine had\n%s\nand has\n%s", before, after)
	}
	text := m.OK(t, "cat /root/gateway.json")
	var study result.Study
	if err := json.Unmarshal([]byte(text), &study); err != nil {
		t.Fatal(err)
	}
	if len(study.Experiments) != 1 || len(study.Experiments[0].Rows) != 2 {
		t.Fatalf("%+v", study)
	}
	for _, row := range study.Experiments[0].Rows {
		var arms []string
		for _, arm := range row.Arms {
			arms = append(arms, arm.Arm)
			if arm.Values["bytes_per_second"] == 0 { // so short a trial can take less CPU than the kernel counts
				t.Errorf("%s, %s: %v", row.Name, arm.Arm, arm.Values)
			}
		}
		if want := []string{"host", "null", "bind", "nfs", "sshfs", "sshfs-direct", "sshfs-direct-sync"}; !slices.Equal(arms, want) {
			t.Errorf("%s: arms %v, want %v; %v", row.Name, arms, want, study.Experiments[0].Notes)
		}
	}
	if shares.Keeps() {
		if err := os.WriteFile(filepath.Join(os.Getenv(shares.Folder), "gateway-lab.json"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
