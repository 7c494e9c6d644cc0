package lab_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/test/lab"
)

// TestSmoke shows in one machine that this source tree works with cgroup v2, systemd and an adapter that has virtual functions.
// The tests of the other files look at each part closely; this one measures nothing and takes no part of a walk.
func TestSmoke(t *testing.T) {
	h := startSRIOV(t, lab.Machine{Disks: []lab.Disk{{Size: 64 << 20}}})[0]
	before := h.OK(t, heldByHost)

	// One end of the network is the host, by the adapter itself; the other is the node, by a virtual function of the adapter.
	h.OK(t, "berth vf enable "+h.pf+" 1; ip addr add 192.0.2.1/24 dev "+h.pf)
	home := h.home(t)
	h.Write(t, "/root/smoke.yaml", fmt.Sprintf(smoke, h.pf))
	h.OK(t, "berth apply -f /root/smoke.yaml")
	t.Run("limits", func(t *testing.T) { smokeLimits(t, h.VM) })
	t.Run("network", func(t *testing.T) {
		if vf := h.vfs(t).VFs[0]; vf.Owner != "smoke/eth0" || vf.Admin.MAC != h.mac(t, "smoke") {
			t.Errorf("berth vf ls says %+v", vf)
		}
		smokeAnswers(t, h.VM)
	})
	t.Run("keeper killed", func(t *testing.T) { smokeKeeper(t, h.VM) })

	h.OK(t, "berth rm smoke")
	if now := h.home(t); !slices.Equal(home, now) {
		t.Errorf("the functions were\n%s\nand are\n%s", strings.Join(home, "\n"), strings.Join(now, "\n"))
	}
	h.OK(t, "berth vf disable "+h.pf+"; ip addr flush dev "+h.pf+"; while awaiting; do pgrep -x berth-keeper || exit 0; done; exit 1")
	if d := cmp.Diff(strings.Split(before, "\n"), strings.Split(h.OK(t, heldByHost), "\n")); d != "" {
		t.Errorf("on the host (-before +after):\n%s", d)
	}
}

// smoke is a node with limits, a device and a virtual function of the adapter that %s names.
const smoke = `name: smoke
image: host
command: [sleep, infinity]
cpu: {weight: 200, max: 0.5}
memory: {max: 256MiB}
pids: 100
devices: [/dev/vdb]
io: [{name: disk, device: /dev/vdb, read: {rate: 10MB/s, iops: 5000}, write: {rate: 20MB/s, iops: 4000}, weight: 300, engine: bfq}]
network: [{mode: sriov, parent: %s, address: [192.0.2.2/24]}]
`

// heldByHost lists what Berth could leave in the kernel: links, mounts, loop devices, schedulers of disks, groups, processes.
// Programs that udev starts for an event end by themselves.
const heldByHost = `udevadm settle; echo links:; ip -o addr | awk '{print $2, $3, $4}' | grep -v inet6; ls /sys/class/net
echo mounts:; awk '{print $5}' /proc/self/mountinfo; echo loop devices:; cat /sys/block/loop*/loop/backing_file 2>/dev/null || true
echo schedulers:; grep -Ho '[[].*]' /sys/block/vd*/queue/scheduler
echo groups:; ls -d /sys/fs/cgroup/*/; find /sys/fs/cgroup -type d -name '*berth*'
echo processes:; ps -N --ppid 2 -o comm= | grep -vE 'udev-worker|^(bash|ps|grep|sort)$' | sort`

// smokeLimits compares the kernel's files of the node's group with what was asked for.
func smokeLimits(t *testing.T, m *lab.VM) {
	disk := m.OK(t, "cat /sys/block/vdb/dev")
	want := map[string]string{
		"cpu.max": "50000 100000", "cpu.weight": "200", "memory.max": "268435456", "pids.max": "100",
		"io.max":        disk + " rbps=10000000 wbps=20000000 riops=5000 wiops=4000",
		"io.bfq.weight": "default 100\n" + disk + " 300",
	}
	if d := cmp.Diff(want, files(t, m, "/sys/fs/cgroup/berth/smoke", keys(want)...)); d != "" {
		t.Errorf("control files (-want +got):\n%s", d)
	}
	for _, l := range show(t, m, "smoke").Limits {
		if !l.Holds || l.Asked != l.ReadBack || l.HonouredBy == "" {
			t.Errorf("berth show says %+v", l)
		}
	}
}

// smokeAnswers has the host send echo requests to the node until it answers one.
func smokeAnswers(t *testing.T, m *lab.VM) {
	t.Helper()
	m.OK(t, "while awaiting; do busybox ping -c1 -W1 192.0.2.2 >/dev/null && exit; done; ip addr; ip neigh; berth show smoke; exit 1")
}

// smokeKeeper kills the keeper. The node lives on, the keeper of berth repair sees its end, and then takes its group away.
func smokeKeeper(t *testing.T, m *lab.VM) {
	was := show(t, m, "smoke").PID
	m.OK(t, fmt.Sprintf("pkill -9 -x berth-keeper; while awaiting; do pgrep -x berth-keeper || break; done; kill -0 %d", was))
	smokeAnswers(t, m)
	m.OK(t, "berth repair; test $(pgrep -cx berth-keeper) = 1; berth exec smoke -- true")
	if s := show(t, m, "smoke"); s.State != "running" || s.PID != was {
		t.Errorf("process 1 of the node was %d; now it is %s with %d", was, s.State, s.PID)
	}
	smokeLimits(t, m)
	m.OK(t, fmt.Sprintf("kill -9 %d; while awaiting; do [ -e /sys/fs/cgroup/berth ] || exit 0; done; cat /run/berth/keeper.log; exit 1", was))
	// The new keeper is not the parent of the node's process 1: the host's process 1 may get its exit code.
	if s := show(t, m, "smoke"); s.State != "exited" || s.Exit == nil || !s.Exit.Unknown && s.Exit.Code != 137 {
		t.Errorf("after its end the node is %s: %+v", s.State, s.Exit)
	}
}
