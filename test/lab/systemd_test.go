package lab_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/test/built"
	"berth/test/lab"
)

// TestBesideSystemd runs nodes on a host whose process 1 is systemd, which manages cgroups of its own: nodes live in a
// group at the top of the tree that systemd does not know.
func TestBesideSystemd(t *testing.T) {
	t.Parallel()
	m := start(t, lab.Machine{Disks: []lab.Disk{{Size: 64 << 20}, {Root: true}}})
	m.OK(t, "mkdir /srv/root; mount -o ro /dev/vdc /srv/root")
	m.Snapshot(t, "clean")

	t.Run("limits hold", func(t *testing.T) {
		m.OK(t, "echo 2 >/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
		node(t, m, strings.NewReplacer(
			"/dev/vdb, /dev/nvme0n1", "/dev/vdb", "  - {name: nvme, device: /dev/nvme0n1, read: {rate: 10MB/s}, write: {rate: 10MB/s}}\n", "",
		).Replace(limited))
		names := []string{"cpu.max", "cpu.weight", "cpuset.cpus.effective", "memory.max", "pids.max", "hugetlb.2MB.max", "io.max"}
		before := files(t, m, group, names...)
		if len(before) != len(names) {
			t.Fatalf("control files: %v", before)
		}
		// systemd writes -CONTROLLER into the root's subtree_control when its units no longer need one. The kernel
		// refuses that (EBUSY) while a group below hands the controller on, as the nodes' parent does.
		for _, does := range []string{
			"systemctl daemon-reload",
			"systemd-run -q --unit=u -p IOWeight=500 -p CPUWeight=50 -p AllowedCPUs=0 -p MemoryMax=50M sleep 1000",
			"systemctl stop u",
			"systemctl set-property --runtime system.slice AllowedCPUs=0 IOWeight=300; systemctl revert system.slice; systemctl daemon-reload",
			"systemctl daemon-reexec; systemctl is-system-running --wait || true",
			"systemctl isolate multi-user.target",
			"! echo -io >/sys/fs/cgroup/cgroup.subtree_control",
		} {
			m.OK(t, does)
			if d := cmp.Diff(before, files(t, m, group, names...)); d != "" {
				t.Errorf("after %s (-before +after):\n%s", does, d)
			}
		}
	})

	t.Run("pause", func(t *testing.T) {
		m.Restore(t, "clean")
		testPause(t, m)
	})

	t.Run("started in a service", func(t *testing.T) {
		m.Restore(t, "clean")
		m.Write(t, "/root/node.yaml", "name: n2\nimage: host\ncommand: [sleep, infinity]\n")
		m.OK(t, "systemd-run -q --wait --unit=starter -p KillMode=control-group berth apply -f /root/node.yaml")
		// The service has ended. Neither the node nor the keeper was part of it.
		m.OK(t, "pkill -9 -f '^sleep infinity$'; while awaiting; do berth ls | grep -q '^n2 *exited' && exit; done; berth ls; exit 1")
		if s := show(t, m, "n2"); s.State != "exited" || s.Exit == nil || s.Exit.Code != 137 || s.Exit.Unknown {
			t.Errorf("status after the end of a node: %+v %+v", s, s.Exit)
		}
		m.OK(t, "berth rm n2")
	})

	t.Run("systemd in a node", func(t *testing.T) {
		m.Restore(t, "clean")
		node(t, m, "name: s1\nimage: dir:/srv/root\nmemory: {max: 256MiB}\npids: 500\ncommand: [/sbin/init]\n")
		m.OK(t, `while awaiting; do berth exec s1 -- systemctl is-system-running && exit; done
			berth exec s1 -- systemctl --failed; berth logs s1; exit 1`)
		m.OK(t, "berth exec s1 -- systemd-run -q --wait -p MemoryMax=20M -p CPUWeight=50 true") // it arranges groups of its own
		m.OK(t, "! berth exec s1 -- sh -c 'echo max >/sys/fs/cgroup/memory.max'")
		began := time.Now()
		m.OK(t, "berth stop --grace 60s s1")
		if d := time.Since(began); d > time.Minute {
			t.Errorf("stop took %v: systemd did not halt by itself", d)
		}
		// A halt inside a PID namespace ends its init by SIGINT (pid_namespaces(7)).
		if s := show(t, m, "s1"); s.State != "stopped" || s.Exit == nil || s.Exit.Signal != "SIGINT" {
			t.Errorf("status after stop: %+v %+v", s, s.Exit)
		}
	})

	t.Run("systemd installed later", func(t *testing.T) {
		m.Restore(t, "clean")
		const spec = "name: s2\nimage: dir:/srv/root\nmemory: {max: 256MiB}\npids: 500\ncommand: "
		node(t, m, spec+"[sleep, infinity]\n")
		m.OK(t, "berth exec s2 -- sh -c 'mkdir -p /opt/sbin; ln -s /lib/systemd/systemd /opt/sbin/init'")
		m.Write(t, "/root/node.yaml", spec+"[/opt/sbin/init]\n")
		m.OK(t, "berth apply --restart -f /root/node.yaml; berth show s2 --json | grep '\"init\": \"systemd\"'")
		m.OK(t, "while awaiting; do berth exec s2 -- systemctl is-system-running && exit; done; berth logs s2; exit 1")
	})

	// The same as TestBoundFolder of test/security, on another kernel.
	t.Run("file capabilities in a bound folder", func(t *testing.T) {
		m.Restore(t, "clean")
		probe := filepath.Join(t.TempDir(), "probe")
		if err := built.Probe(t.Context(), probe); err != nil {
			t.Fatal(err)
		}
		m.Copy(t, probe, "/srv/probe")
		const spec = "name: b1\nimage: dir:/srv/root\ncommand: [sleep, infinity]\nmounts: [{source: /srv/probe, target: /probe, read_only: true}, {source: /srv/above/source, target: /data%}]\n"
		m.OK(t, "mkdir -p /srv/above/source")
		node(t, m, strings.Replace(spec, "%", "", 1))
		m.OK(t, "berth exec b1 -- /probe empower /data/tool; berth show b1 | grep EXPOSED")
		const caps = "setpriv --reuid 65534 --regid 65534 --clear-groups /srv/above/source/tool status self | grep -o '\"CapEff\":\"[0-9a-f]*\"'"
		if got := strings.TrimSpace(m.OK(t, caps)); got != `"CapEff":"0000000000000002"` {
			t.Errorf("a user of the host has %s", got)
		}
		m.OK(t, "mount --bind /srv/above/source /srv/above/source; mount -o remount,bind,nosuid /srv/above/source; ! berth show b1 | grep EXPOSED")
		if got := strings.TrimSpace(m.OK(t, caps)); got != `"CapEff":"0000000000000000"` {
			t.Errorf("with nosuid a user of the host has %s", got)
		}
		m.OK(t, "umount /srv/above/source; berth rm --force b1")
		m.Write(t, "/root/node.yaml", strings.Replace(spec, "%", ", nosuid_source: true", 1))
		if r := m.Run(t, "berth", "apply", "-f", "/root/node.yaml"); r.Code != 3 || !strings.Contains(r.Err, "nosuid") {
			t.Errorf("an exposed source: %+v", r)
		}
		m.OK(t, "chmod 700 /srv/above; berth apply -f /root/node.yaml")
	})

	t.Run("host reboots", func(t *testing.T) {
		m.Restore(t, "clean")
		const spec = "name: r1\nimage: host\ncommand: [sleep, infinity]\nnetwork: [{name: eth0, mode: bridge, address: [10.9.0.2/24]}]\n"
		node(t, m, spec)
		node(t, m, "name: r2\nimage: host\nrestart: always\ncommand: [sh, -c, \"trap 'exit 5' TERM; while :; do sleep 0.1; done\"]\n")
		mac := "berth exec r1 -- cat /sys/class/net/eth0/address"
		before, ids := m.OK(t, mac), show(t, m, "r1").IDs
		began := time.Now()
		m.Reboot(t)
		// systemd waits 90 s for processes that ignore its SIGTERM, as the init of a node does: the keeper ends them.
		if d := time.Since(began); d > 90*time.Second {
			t.Errorf("the reboot took %v: it waited for the nodes", d)
		}
		if s := show(t, m, "r1"); s.State != "stopped" || s.Exit == nil || s.Exit.Signal != "SIGKILL" {
			t.Errorf("a node that ignores SIGTERM: %+v %+v", s, s.Exit)
		}
		if s := show(t, m, "r2"); s.State == "running" || s.Exit == nil || s.Exit.Code != 5 {
			t.Errorf("a node that has a handler for SIGTERM: %+v %+v", s, s.Exit)
		}
		t.Logf("rebooted in %.0f s", time.Since(began).Seconds())
		m.OK(t, "berth ls | grep -w stopped; berth start r1")
		if after := m.OK(t, mac); after != before {
			t.Errorf("MAC %s before the reboot, %s after", before, after)
		}
		if after := show(t, m, "r1").IDs; after != ids {
			t.Errorf("ids %s before the reboot, %s after", ids, after)
		}
	})

	t.Run("power cut", func(t *testing.T) {
		m.OK(t, "test ! -e /etc/systemd/system/berth-autostart.service")
		node(t, m, "name: p1\nimage: host\nautostart: true\ncommand: [sleep, infinity]\nnetwork: [{name: eth0, mode: bridge, address: [10.9.0.3/24]}]\n")
		before := show(t, m, "p1").IDs
		m.OK(t, "sync")
		m.Kill()
		m.Boot(t)
		m.OK(t, "systemctl is-active --quiet --wait berth-autostart.service || systemctl start berth-autostart.service; test $(systemctl show -P Result berth-autostart) = success")
		if s := show(t, m, "p1"); s.State != "running" {
			t.Errorf("a node that starts with the host: %+v", s)
		}
		if after := show(t, m, "p1").IDs; after != before {
			t.Errorf("ids %s before the power cut, %s after", before, after)
		}
	})
}
