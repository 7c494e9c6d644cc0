package lab_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"berth/test/built"
	"berth/test/lab"
	"berth/test/sample"
	"berth/test/testkit"
)

// TestSyncWays runs tests of package test/sync on cgroup v2, in a machine with the servers, the nodes and the clients: ways gate and launch
// (Samba), instances (XRootD) and network (sftp-server).
func TestSyncWays(t *testing.T) {
	dir := t.TempDir()
	build := exec.Command("go", "test", "-c", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, "sync.test"), "berth/test/sync")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	testkit.Must(t, built.Agent(t.Context(), dir, "berthfault"))
	testkit.Must(t, os.Rename(filepath.Join(dir, "berthd"), filepath.Join(dir, "berthd-berthfault")))
	testkit.Must(t, built.Agent(t.Context(), dir))
	testkit.Must(t, built.Sync(t.Context(), dir))
	testkit.Must(t, built.Berth(t.Context(), filepath.Join(dir, "berth")))
	m := lab.Start(t, lab.Options{Machines: []lab.Machine{{Memory: 1536, Disks: []lab.Disk{{Size: 1 << 30}}}}}).VM(0)
	for _, program := range []string{"sync.test", "berth", "berthd", "berthd-berthfault", "berth-sync"} {
		m.Copy(t, filepath.Join(dir, program), "/root/built/"+program)
	}
	m.OK(t, `ip link set lo up; echo "127.0.0.1 localhost $(hostname)" >/etc/hosts; chmod 711 /root`) // XRootD looks its own name up
	for _, test := range sample.Some(sample.Of(t), 1, "TestGate", "TestSamba", "TestInstances", "TestNetwork") {
		t.Run(test, func(t *testing.T) {
			before := m.OK(t, leftOfSync)
			others := lab.Others()
			r := m.RunFor(t, 8*time.Minute, "bash", "-c", "cd /root/built; "+built.Dir+"=/root/built BERTH_SYNC_DISK=/dev/vdb ./sync.test -test.v -test.run '^"+test+"$' 2>&1")
			crowd, err := others()
			testkit.Must(t, err)
			t.Logf("others took %.0f %% of the host\n%s", crowd, r.Out)
			if r.Code != 0 {
				t.Errorf("exit code %d; the kernel: %s", r.Code, m.OK(t, "dmesg | tail -20"))
			}
			if after := m.OK(t, leftOfSync); after != before {
				t.Errorf("before:\n%s\nand left:\n%s", before, after)
			}
			if slow := tooSlow.FindAllString(r.Out, -1); !t.Failed() && testkit.Measures() {
				judged(t, spare{others: crowd}, slow)
			}
		})
	}
}

// tooSlow are the words of test/sync of a rate that is less than what was asked for.
var tooSlow = regexp.MustCompile(`too slow: .*`)

// leftOfSync lists what a file server could leave: groups, programs of BPF, pins, interfaces, qdiscs, stopped processes, programs.
const leftOfSync = `find /sys/fs/cgroup -type d -name '*berth*'; find /sys/fs/bpf -mindepth 1; ls /sys/class/net; tc qdisc show; ip netns
grep -ls '^State:.T' /proc/[0-9]*/status || true; ps -eo comm= | grep -E '^(berth|xrootd|smbd|sftp)' || true
grep -hs ^prog_type /proc/[0-9]*/fdinfo/* | sort | uniq -c || true`
