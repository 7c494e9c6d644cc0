package lab_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"berth/test/lab"
)

// plugged is a node with limits and a device on disks that can be unplugged. It names the disks by persistent names.
const plugged = `name: n1
image: host
command: [sleep, infinity]
devices: [{path: /dev/disk/by-id/virtio-disk0, as: /dev/data}, {path: /dev/nvme0n1, as: /dev/fast, access: r}]
io:
  - {name: virtio, device: /dev/disk/by-id/virtio-disk0, read: {rate: 10MB/s}, write: {iops: 4000}, weight: 300, engine: bfq}
  - {name: nvme, device: /dev/nvme0n1, write: {rate: 5MB/s}}
`

// TestHotplug gives a running node devices and takes them away, and unplugs its disks. When a disk returns, under whatever
// device number, its limits return too. Another disk that got its number is not the node's.
func TestHotplug(t *testing.T) {
	t.Parallel()
	m := start(t, lab.Machine{Disks: []lab.Disk{{Size: 64 << 20, Hot: true}, {Size: 64 << 20, Hot: true}, {Size: 64 << 20, NVMe: true, Hot: true}}})
	m.OK(t, "udevadm settle; printf disk-zero | dd of=/dev/vdb conv=notrunc,fsync status=none; printf disk-one | dd of=/dev/vdc conv=notrunc,fsync status=none")
	t.Run("programs", func(t *testing.T) { programs(t, m, 33) })
	t.Run("programs, runc", func(t *testing.T) {
		m.OK(t, "mv $(command -v crun) /root/crun.off")
		defer m.OK(t, "mv /root/crun.off /usr/bin/crun")
		m.OK(t, "! command -v crun")
		programs(t, m, 1)
	})
	t.Run("unplug", func(t *testing.T) { unplug(t, m) })
}

// programs adds and removes devices. Done more than 64 times, the kernel's limit of BPF programs in a cgroup, it shows that
// Berth replaces the programs.
func programs(t *testing.T, m *lab.VM, times int) {
	node(t, m, "name: n1\nimage: host\ncommand: [sleep, infinity]\ndevices: [/dev/vdb]\n")
	t.Log(m.OK(t, "berth show n1 | grep '^runtime '"))
	// A process in the node's cgroup but outside its /dev: only the BPF program denies it a disk.
	opens := func(path string) string {
		return m.OK(t, "sh -c 'echo 0 >"+group+"/node/cgroup.procs; head -c 1 "+path+" >/dev/null 2>&1 && echo yes || echo no'")
	}
	want := func(what string, vdb, nvme string) {
		t.Helper()
		if a, b, c := opens("/dev/vdb"), opens("/dev/nvme0n1"), opens("/dev/vda"); a != vdb || b != nvme || c != "no" {
			t.Errorf("%s: vdb opens %s, nvme0n1 %s, vda %s", what, a, b, c)
		}
	}
	want("at first", "yes", "no")
	m.OK(t, "berth set n1 devices+=/dev/nvme0n1:/dev/disk/fast:r")
	want("added", "yes", "yes")
	m.OK(t, "berth exec n1 -- head -c 1 /dev/disk/fast >/dev/null")
	if r := m.Run(t, "berth", "exec", "n1", "--", "dd", "if=/dev/zero", "of=/dev/disk/fast", "bs=4k", "count=1", "conv=nocreat"); r.Code == 0 {
		t.Error("a device that is read-only could be written")
	}
	m.OK(t, "berth set n1 devices-=/dev/vdb")
	want("one taken away", "no", "yes")
	m.OK(t, "! berth exec n1 -- ls /dev/vdb")
	m.OK(t, fmt.Sprintf("for i in $(seq %d); do berth set n1 devices+=/dev/vdb; berth set n1 devices-=/dev/vdb; done", times))
	want("after more", "no", "yes")
	m.OK(t, "berth set n1 devices-=/dev/nvme0n1")
	want("none left", "no", "no")
	m.OK(t, "! berth exec n1 -- ls /dev/disk")
}

func unplug(t *testing.T, m *lab.VM) {
	node(t, m, plugged)
	eventually := func(what, script string) {
		t.Helper()
		m.Await(t, what, script, "berth show n1; cat "+group+"/io.max /run/berth/keeper.log")
	}
	numbers := func(disks ...string) []string {
		return strings.Fields(m.OK(t, "cd /sys/block; for d in "+strings.Join(disks, " ")+"; do cat $d/dev; done"))
	}
	limits := func(virtio, nvme string) string {
		script := "test \"$(sort " + group + "/io.max)\" = \"$(printf '"
		var lines []string
		if virtio != "" {
			lines = append(lines, virtio+" rbps=10000000 wbps=max riops=max wiops=4000")
		}
		if nvme != "" {
			lines = append(lines, nvme+" rbps=max wbps=5000000 riops=max wiops=max")
		}
		return script + strings.Join(lines, `\n`) + "' | sort)\""
	}
	// switched returns a script that succeeds if only this disk uses BFQ and the node has its weight on it.
	switched := func(disk, number string) string {
		return "test \"$(cd /sys/block; grep -l '[[]bfq[]]' vd?/queue/scheduler)\" = \"" + disk + "\" && test \"$(sed 1d " + group + "/io.bfq.weight)\" = \"" + number + "\""
	}
	was := numbers("vdb", "vdc", "nvme0n1")
	m.OK(t, limits(was[0], was[2]))
	m.OK(t, switched("vdb/queue/scheduler", was[0]+" 300"))

	m.Unplug(t, 0)
	m.Unplug(t, 1)
	eventually("both virtio disks go", "! test -e /sys/block/vdb && ! test -e /sys/block/vdc")
	eventually("the node knows", "berth show n1 | grep -q '^/dev/data .*(gone)'")
	m.OK(t, limits("", was[2]))
	m.OK(t, "! berth exec n1 -- ls /dev/data; berth plan -f /root/node.yaml | grep 'the disk of io.virtio is unplugged'; berth set n1 pids=99")

	m.Plug(t, 1)
	eventually("the other disk comes", "test -e /sys/block/vdb")
	now := numbers("vdb")
	if now[0] != was[0] {
		t.Fatalf("the other disk is %s, not %s: nothing is shown", now[0], was[0])
	}
	m.OK(t, "udevadm settle; sleep 0.5; test \"$(head -c 8 /dev/vdb)\" = disk-one; berth show n1 | grep '^/dev/data .*(gone)'; ! berth exec n1 -- ls /dev/data")
	m.OK(t, limits("", was[2]))
	m.OK(t, switched("", ""))
	m.OK(t, "sh -c 'echo 0 >"+group+"/node/cgroup.procs; ! head -c 1 /dev/vdb 2>/dev/null'")

	m.Plug(t, 0)
	eventually("it is back", "test -e /sys/block/vdc")
	now = numbers("vdb", "vdc")
	began := time.Now()
	eventually("its limits are back", limits(now[1], was[2]))
	eventually("its engine and its weight are back", switched("vdc/queue/scheduler", now[1]+" 300"))
	t.Logf("limits of a disk that came back: within %v of its being seen", time.Since(began).Round(100*time.Millisecond))
	eventually("its device is back", "berth show n1 | grep '^/dev/data .*b "+now[1]+" /dev/vdc'")
	m.OK(t, `test "$(berth exec n1 -- head -c 9 /dev/data)" = disk-zero; ! sh -c 'echo 0 >`+group+`/node/cgroup.procs; head -c 1 /dev/vdb >/dev/null 2>&1'`)
	for _, l := range show(t, m, "n1").Limits {
		if !l.Holds || l.Asked != l.ReadBack {
			t.Errorf("show: %+v", l)
		}
	}

	// Without a keeper, repair does the same.
	m.OK(t, "pkill -9 -x berth-keeper")
	m.Unplug(t, 2)
	eventually("the NVMe disk goes", "! test -e /sys/block/nvme0n1")
	m.Plug(t, 2)
	eventually("it is back", "test -e /sys/block/nvme0n1")
	fast := numbers("nvme0n1")[0]
	said := m.OK(t, "udevadm settle; berth repair")
	if !strings.Contains(said, fmt.Sprintf("the disk of io.nvme is now %s", fast)) {
		t.Errorf("repair says\n%s", said)
	}
	m.OK(t, limits(now[1], fast)+"; berth exec n1 -- head -c 1 /dev/fast >/dev/null")
}
