package show

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"berth/internal/host/block"
	"berth/internal/host/counters"
	"berth/internal/host/netif"
	"berth/internal/network/link"
	"berth/internal/network/sriov"
	"berth/internal/node"
	"berth/internal/node/history"
	"berth/internal/node/inspect"
	"berth/internal/node/protect"
	"berth/internal/spec/vnode"
	"berth/internal/sys/layout"
	"berth/internal/sys/mac"
	"berth/internal/sys/proof"
	"berth/internal/sys/step"
	"berth/test/testkit"
)

func ptr[T any](v T) *T { return new(v) }

func proposal() *node.Proposal {
	const disk = "acts on the whole disk vda (/var/tmp is on vda1)"
	return &node.Proposal{
		Node: "worker", Does: "create",
		Steps: []step.Line{
			{Kind: "ids.claim", Text: "65536 ids of the host for worker, the same at every start"},
			{Kind: "image.delta", Text: "/var/lib/berth/nodes/worker/delta for the node's writes, without a limit"},
			{Kind: "image.skeleton", Text: "/var/lib/berth/nodes/worker/delta/root, an empty root for the host's programs"},
			{Kind: "oci.bundle", Text: `/run/berth/nodes/worker/bundle/config.json: 11 capabilities, 9 mounts, command ["/bin/sleep" "infinity"]`},
			{Kind: "cgroup.limit", Text: "cpu.max 1.5 → cpu.cfs_period_us=100000 cpu.cfs_quota_us=150000"},
			{Kind: "cgroup.limit", Text: "io.data.read.rate 200MB/s → blkio.throttle.read_bps_device=254:0 200000000", Note: disk},
			{Kind: "cgroup.limit", Text: "io.data.write.rate 100MB/s → blkio.throttle.write_bps_device=254:0 100000000", Note: disk + "; cgroup v1 limits direct writes only, not those through the page cache"},
			{Kind: "oci.start", Text: "crun start worker: /bin/sleep infinity"},
		},
	}
}

func TestPlanIsPrinted(t *testing.T) {
	dirs := layout.New("").Node("worker")
	for file, width := range map[string]int{"plan-80.txt": 80, "plan-file.txt": 0} {
		var b bytes.Buffer
		Proposal(&b, width, proposal(), dirs)
		testkit.Golden(t, filepath.Join("testdata", file), b.String())
		for line := range strings.Lines(b.String()) {
			if n := utf8.RuneCountInString(line) - 1; width > 0 && n > width {
				t.Errorf("a line is %d wide, of %d: %s", n, width, line)
			}
		}
	}
	var b bytes.Buffer
	Proposal(&b, 80, &node.Proposal{
		Command: "apply", Node: "worker", Does: "restart",
		Drift: []vnode.Difference{{Key: "cpu.max", Old: "1.5", New: "1", Live: true}},
		Differences: []vnode.Difference{
			{Key: "cpu.max", Old: "1", New: "1.5", Live: true}, {Key: "hostname", Old: "worker", New: "w1.example.org"},
		},
		Removes: []string{"/var/lib/berth/nodes/worker/delta for the node's writes, without a limit"},
		Steps:   []step.Line{{Kind: "oci.start", Text: "crun start worker: /bin/sleep infinity"}},
	}, dirs)
	Proposal(&b, 80, &node.Proposal{Node: "other", Does: "nothing"}, dirs)
	testkit.Golden(t, "testdata/plan-change.txt", b.String())
}

// TestShowIsPrinted has a clock of its own: ages do not grow while it runs.
func TestShowIsPrinted(t *testing.T) { synctest.Test(t, showIsPrinted) }

func showIsPrinted(t *testing.T) {
	var b bytes.Buffer
	err := Detail(&b, 80, &node.Detail{
		Status: node.Status{
			Name: "worker", State: node.Running, PID: 4711, Started: time.Now().Add(-90 * time.Second), Image: "host",
			Runtime: "crun 1.8.1", UserNS: true, Restarts: 1,
		},
		Hostname: "worker.example.org", Phase: "up", Command: []string{"/bin/sh", "-c", "echo it's me", ""},
		IDs: "1109852160-1109917695", Cgroup: "berth/worker",
		Within: inspect.Within{
			User: "postgres",
			Mounts: []vnode.Mount{
				{Source: "/srv/db/data", Target: "/data"},
				{Source: "/etc/motd", Target: "/etc/motd", ReadOnly: true, Map: vnode.Identity},
				{Source: "files.example.org:/export", Target: "/mnt", Gateway: vnode.NFSGateway, Map: vnode.Identity},
			},
			Tmpfs:   []vnode.Tmpfs{{Target: "/run/postgresql", Size: 1 << 20}, {Target: "/tmp", Mode: "0700"}},
			Exposed: []inspect.Exposed{{Source: "/srv/db/data", Target: "/data", Why: "/ is not mounted nosuid, and others than root come to /srv/db"}},
		},
		Links: []inspect.Link{{Mode: "bridge", State: netif.State{
			Name: "eth0", MAC: mac.Must("46:26:b8:74:83:91"), MTU: 1500, Address: []string{"192.0.2.10/24", "2001:db8::10/64"},
		}, Lease: &inspect.Lease{Server: "192.0.2.1", Ends: time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)}}},
		Limits: []proof.Limit{
			{Key: "cpu.max", Asked: "1.5", ReadBack: "1.5", By: "cfs quota", Holds: true},
			{Key: "memory.max", Asked: "1GiB", ReadBack: "2GiB", By: "memory.limit_in_bytes"},
			{Key: "io.data.read.rate", Asked: "200MB/s", ReadBack: "200MB/s", By: "blkio.throttle", Holds: true, Note: "acts on the whole disk vda (/var/tmp is on vda1)"},
			{Key: "io.data.write.rate", Asked: "100MB/s", ReadBack: "100MB/s", By: "blkio.throttle", Holds: true, Note: "acts on the whole disk vda (/var/tmp is on vda1); cgroup v1 limits direct writes only, not those through the page cache"},
		},
		Usage: &counters.Usage{Memory: new(int64(5 << 20)), OOMKills: new(int64(1)), PIDs: new(int64(1)), CPU: ptr(1500 * time.Millisecond)},
	})
	if err != nil {
		t.Fatal(err)
	}
	b.WriteString("\n")
	err = Detail(&b, 80, &node.Detail{
		Status: node.Status{
			Name: "old", State: node.Exited, Image: "oci:busybox", Exit: &history.Exit{Code: 137, Signal: "SIGKILL", OOM: true},
			Machine: &vnode.Machine{CPUs: 2, Memory: 512 << 20, Kernel: "/boot/vmlinuz-6.12.43-amd64"},
		},
		Hostname: "old", Phase: "down", IDs: "none: root inside is root outside", Cgroup: "berth/old",
		Limits: []proof.Limit{{Key: "pids", Asked: "512", By: "pids.max", Holds: true}},
	})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Golden(t, "testdata/show.txt", b.String())
}

// TestListIsPrinted has a clock of its own: ages do not grow while it runs.
func TestListIsPrinted(t *testing.T) { synctest.Test(t, listIsPrinted) }

func listIsPrinted(t *testing.T) {
	var b bytes.Buffer
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d - 100*time.Millisecond) }
	nodes, services := []node.Status{
		{Name: "a", State: node.Running, PID: 4711, Started: ago(5 * time.Second), Image: "host", UserNS: true, Addresses: []string{"192.0.2.10/24", "2001:db8::10/64"}},
		{Name: "b", State: node.Exited, Ended: ago(3 * time.Hour), Image: "oci-layout:/srv/images/a-long-way-down", UserNS: true, Exit: &history.Exit{Code: 1}},
		{Name: "c", State: node.Stopped, Ended: ago(50 * time.Hour), Image: "dir:/srv/root", Exit: &history.Exit{Code: 143, Signal: "SIGTERM"}},
		{Name: "d", State: "creating", UserNS: true},
		{
			Name: "e", State: node.Exited, Ended: ago(90 * time.Second), Image: "host", UserNS: true, Exit: &history.Exit{Code: 1},
			Restarting: true, Restarts: 2, Refused: &history.Refusal{Why: "mount /mnt: source /srv/share: no such file or directory; make the folder", Times: 6},
		},
	}, []protect.Service{
		{Name: "xrootd.service", Since: ago(time.Minute), PIDs: []int{812, 813}},
		{Name: "4712", Since: ago(time.Hour), Gone: true},
	}
	list := func(width int) {
		if err := List(&b, width, nodes, services); err != nil {
			t.Fatal(err)
		}
	}
	list(80)
	testkit.Golden(t, "testdata/ls.txt", b.String())
	web := link.Wire{If: "eth0", Mode: vnode.NAT, Ports: []string{"8080:80/tcp", "127.0.0.1:8443:443/tcp"}}
	nodes[0].Addresses, nodes[0].Wires = []string{"10.88.0.2/24"}, []link.Wire{web}
	nodes[1].Wires = []link.Wire{web} // it does not run
	b.Reset()
	for _, width := range []int{0, 120, 80} {
		list(width)
		b.WriteByte('\n')
	}
	testkit.Golden(t, "testdata/ls-ports.txt", b.String())
	now := time.Now()
	before := now.Add(-30 * time.Hour)
	ended := node.Status{State: node.Exited, Ended: now, Exit: &history.Exit{Unknown: true, After: now}}
	if got, want := exitText(&ended), now.Local().Format("unknown, between 15:04:05 and 15:04:05"); got != want {
		t.Errorf("a minute ago: %q, want %q", got, want)
	}
	ended.Exit.After = before
	if got, want := exitText(&ended), "unknown, between "+before.Local().Format("2006-01-02 15:04")+" and "+now.Local().Format("2006-01-02 15:04"); got != want {
		t.Errorf("over midnight: %q, want %q", got, want)
	}
}

func TestOutcomeAndSetArePrinted(t *testing.T) {
	var b bytes.Buffer
	Outcome(&b, &node.Outcome{Node: "a", Did: "created"})
	Outcome(&b, &node.Outcome{Node: "b", Did: "changed", Changes: []vnode.Difference{
		{Key: "cpu.max", Old: "1", New: "1.5", Live: true}, {Key: "pids", Old: "512", Live: true},
	}})
	if err := Set(&b, 80, []node.SetResult{
		{Key: "cpu.max", Asked: "1.005", ReadBack: "1", By: "cfs quota"},
		{Key: "memory.max", Asked: "2GiB"},
		{Key: "io.s.read.rate", Asked: "20MB/s", By: "vnode sync", Note: "held by the file servers of s (fs1 by way launch), not here: berth sync ls there shows it"},
	}); err != nil {
		t.Fatal(err)
	}
	testkit.Golden(t, "testdata/apply-set.txt", b.String())
}

func TestVFsArePrinted(t *testing.T) {
	var out bytes.Buffer
	all := []sriov.PF{
		{Name: "enp1s0", PCI: "0000:01:00.0", Driver: "igb", NUMA: -1, Up: true, Carrier: true, Speed: 1000, Total: 7, VFs: []sriov.VF{
			{Index: 0, PCI: "0000:01:10.0", Driver: "igbvf", Owner: "wn-001/eth0", Admin: &sriov.Admin{MAC: mac.Must("02:00:5e:10:00:01"), VLAN: 120, SpoofChk: true}},
			{Index: 1, PCI: "0000:01:10.4", Driver: "igbvf", Link: "enp1s0v1", Admin: &sriov.Admin{MAC: mac.Must("02:00:5e:10:00:02"), Trust: true, MaxTxRate: 100, State: 2}},
			{Index: 2, PCI: "0000:01:11.0"},
		}},
		{Name: "enp2s0", PCI: "0000:02:00.0", Driver: "ice", NUMA: 1, Total: 64},
	}
	if err := VFs(&out, all); err != nil {
		t.Fatal(err)
	}
	testkit.Golden(t, "testdata/vf-ls.txt", out.String())
	out.Reset()
	if err := VFs(&out, nil); err != nil || out.String() != "no adapter of this host has SR-IOV\n" {
		t.Errorf("%q %v", out.String(), err)
	}
}

// TestLayersArePrinted: what lies under a folder is drawn from the top, each with what acts on it.
func TestLayersArePrinted(t *testing.T) {
	var b bytes.Buffer
	disk := &block.Layer{Title: "vda", Kind: "disk", Number: "254:0", Scheduler: "none"}
	Layers(&b, 80, &block.Layer{Title: "dm-0 (vg0-data)", Kind: "LVM volume", Number: "253:0", Throttle: "act here", Weight: "do not act here: use the disk below", Below: []*block.Layer{disk}})
	const want = `dm-0 (vg0-data)  LVM volume, 253:0
    rates   act here
    weights do not act here: use the disk below
  vda  disk, 254:0
      rates   act here
      weights act here, by BFQ or io.cost; the scheduler is none
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
}
