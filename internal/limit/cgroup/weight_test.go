package cgroup

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/host"
	"berth/internal/host/block"
	"berth/internal/host/group"
	"berth/internal/host/group/grouptest"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/test/loop"
	"berth/test/testkit"
)

// TestWeights checks which mechanism honours a weight on each kind of host and disk, and which weights are refused.
func TestWeights(t *testing.T) {
	type queue = block.Queue
	sda := func(change func(*queue)) block.Disk {
		q := queue{Major: 8, Name: "sda", Scheduler: "mq-deadline", BFQ: true}
		if change != nil {
			change(&q)
		}
		return block.Disk{Major: 8, Name: "sda", Queues: []queue{q}}
	}
	bfq := func(q *queue) { q.Scheduler = "bfq" }
	costOn := func(q *queue) { q.Cost, q.CostOn, q.CostModel = true, true, true }
	lent := func(q *queue) {
		q.Scheduler = "bfq"
		q.Loan = &block.Loan{Engine: vnode.BFQ, Was: block.Setup{Scheduler: "none"}, By: []string{"/run/berth/nodes/other"}}
	}
	volume := block.Disk{
		Major: 252, Name: "dm-0", Kind: block.LVM,
		Queues: []queue{{Major: 8, Name: "sda", Scheduler: "bfq", BFQ: true}, {Major: 8, Minor: 16, Name: "sdb", Scheduler: "bfq", BFQ: true}},
	}
	const model = "rbps=1 rseqiops=2 rrandiops=3 wbps=4 wseqiops=5 wrandiops=6"
	const depth = "at queue depth 1 it has no effect"
	const v1 = "; cgroup v1 gives direct and synchronous I/O a share, not writes through the page cache"

	tests := []struct {
		name string
		host host.Cgroups
		disk block.Disk
		io   vnode.IO
		want string
	}{
		{"v1 bfq", grouptest.V1(), sda(bfq), vnode.IO{Weight: 50}, "bfq: blkio.bfq.weight_device=8:0 50 (" + depth + v1 + ")"},
		{"v2 bfq", grouptest.V2(), sda(bfq), vnode.IO{Weight: 50}, "bfq: io.bfq.weight=8:0 50 (" + depth + ")"},
		{
			"v2 bfq of somebody else's, with few requests", grouptest.V2(), sda(func(q *queue) { bfq(q); q.Requests = 256 }),
			vnode.IO{Weight: 50},
			"bfq: io.bfq.weight=8:0 50 (" + depth + "; with more than its share of 256 requests in flight a node gets less (/sys/block/sda/queue/nr_requests; engine: bfq makes it 1024))",
		},
		{"clamped", grouptest.V2(), sda(bfq), vnode.IO{Weight: 1001}, "bfq: io.bfq.weight=8:0 1000 (BFQ knows 1 to 1000: it takes 1000; " + depth + ")"},
		{"v2 io.cost", grouptest.V2(), sda(costOn), vnode.IO{Weight: 10000}, "io.cost: io.weight=8:0 10000 (" + depth + ")"},
		{
			"io.cost with its own model", grouptest.V2(), sda(func(q *queue) { q.Cost, q.CostOn = true, true }),
			vnode.IO{Weight: 2},
			"io.cost: io.weight=8:0 2 (" + depth + "; by the kernel's own model of the disk: berth doctor --calibrate measures one that fits)",
		},
		{
			"both", grouptest.V2(), sda(func(q *queue) { costOn(q); bfq(q) }),
			vnode.IO{Weight: 5000},
			"io.cost and bfq: io.weight=8:0 5000 io.bfq.weight=8:0 1000 (BFQ knows 1 to 1000: it takes 1000; " + depth + ")",
		},
		{
			"io.cost means nothing on v1", grouptest.V1(), sda(costOn),
			vnode.IO{Weight: 2},
			"exit 3: io.d.weight 2: nothing shares disk sda out by weight (its scheduler is mq-deadline); add engine: bfq to the io entry, and berth switches the disk while the node runs; or for good: echo bfq > /sys/block/sda/queue/scheduler",
		},
		{
			"nothing, iocost to be had", grouptest.V2(), sda(func(q *queue) { q.BFQ, q.Cost = false, true }),
			vnode.IO{Weight: 2},
			"exit 3: io.d.weight 2: nothing shares disk sda out by weight (its scheduler is mq-deadline); add engine: iocost to the io entry, with the model that berth doctor --calibrate /dev/sda prints",
		},
		{
			"nothing at all", grouptest.V2(), sda(func(q *queue) { q.BFQ = false }),
			vnode.IO{Weight: 2},
			"exit 3: io.d.weight 2: nothing shares disk sda out by weight (its scheduler is mq-deadline); boot a kernel with CONFIG_IOSCHED_BFQ, or give read and write rates",
		},
		{
			"no queue", grouptest.V2(),
			block.Disk{Major: 9, Name: "md0", NoWeight: "md0 (md array): it has no queue of its own"},
			vnode.IO{Weight: 2},
			"exit 3: io.d.weight 2: a weight has no effect on md0 (md array): it has no queue of its own; give read and write rates instead: they hold there",
		},
		{
			"no queue, engine", grouptest.V2(),
			block.Disk{Major: 9, Name: "md0", NoWeight: "md0"},
			vnode.IO{Engine: vnode.BFQ},
			"exit 3: io.d.engine bfq: a weight has no effect on md0; give read and write rates instead: they hold there",
		},
		{"volume", grouptest.V2(), volume, vnode.IO{Weight: 7}, "bfq: io.bfq.weight=8:0 7 io.bfq.weight=8:16 7 (acts on sda and sdb, below dm-0; " + depth + ")"},
		{
			"on loan to another", grouptest.V1(), sda(lent),
			vnode.IO{Weight: 7},
			"exit 3: io.d.weight 7: disk sda has bfq only as long as node other runs; add engine: bfq to the io entry of this node too",
		},
		{"on loan, joined", grouptest.V1(), sda(lent), vnode.IO{Weight: 7, Engine: vnode.BFQ}, "sda to bfq; bfq: blkio.bfq.weight_device=8:0 7 (" + depth + v1 + ")"},
		{
			"on loan, another engine", grouptest.V2(), sda(func(q *queue) { lent(q); q.Cost = true }),
			vnode.IO{Engine: vnode.IOCost, Model: model},
			"exit 5: io.d.engine iocost: disk sda is switched to bfq for node other: it cannot be shared out by iocost too",
		},
		{"engine alone", grouptest.V2(), sda(nil), vnode.IO{Engine: vnode.BFQ}, "sda to bfq"},
		{"engine bfq", grouptest.V2(), sda(nil), vnode.IO{Weight: 3, Engine: vnode.BFQ}, "sda to bfq; bfq: io.bfq.weight=8:0 3 (" + depth + ")"},
		{
			"engine bfq, not built", grouptest.V2(), sda(func(q *queue) { q.BFQ = false }),
			vnode.IO{Engine: vnode.BFQ},
			"exit 3: io.d.engine bfq: this kernel has no BFQ for disk sda; boot a kernel with CONFIG_IOSCHED_BFQ, or its module bfq",
		},
		{
			"engine bfq, io.cost on", grouptest.V2(), sda(costOn),
			vnode.IO{Engine: vnode.BFQ},
			"exit 3: io.d.engine bfq: io.cost shares disk sda out already; leave engine out: io.cost honours weights",
		},
		{"engine iocost", grouptest.V2(), sda(func(q *queue) { q.Cost = true }), vnode.IO{Weight: 3, Engine: vnode.IOCost, Model: model}, "sda to iocost; io.cost: io.weight=8:0 3 (" + depth + ")"},
		{"engine iocost, model known", grouptest.V2(), sda(func(q *queue) { q.Cost, q.CostModel = true, true }), vnode.IO{Engine: vnode.IOCost}, "sda to iocost"},
		{
			"engine iocost, no model", grouptest.V2(), sda(func(q *queue) { q.Cost = true }),
			vnode.IO{Engine: vnode.IOCost},
			"exit 3: io.d.engine iocost: nobody has told io.cost what disk sda can do, and without a model that fits, weights have no effect; berth doctor --calibrate /dev/sda measures one, to be given as model",
		},
		{
			"engine iocost, not built", grouptest.V2(), sda(nil),
			vnode.IO{Engine: vnode.IOCost, Model: model},
			"exit 3: io.d.engine iocost: this kernel has no io.cost; use engine: bfq, or boot a kernel with CONFIG_BLK_CGROUP_IOCOST",
		},
		{
			"engine iocost on v1", grouptest.V1(), sda(costOn),
			vnode.IO{Engine: vnode.IOCost, Model: model},
			"exit 3: io.d.engine iocost: io.cost needs the io controller on cgroup v2; here it is on v1; use engine: bfq, or boot this host with cgroup v2 alone (kernel command line: systemd.unified_cgroup_hierarchy=1)",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.io.Name = "d"
			n, disks := &vnode.Node{Name: "wn", IO: []vnode.IO{tt.io}}, map[string]block.Disk{"d": tt.disk}
			if diff := cmp.Diff(tt.want, planned(n, tt.host, disks)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// planned prints the plan for a node's weights.
func planned(n *vnode.Node, h host.Cgroups, disks map[string]block.Disk) string {
	engines, err := Engines(n, h, disks, "/run/loans", "/run/node")
	limits, limitsErr := Limits(n, h, "berth/wn", disks)
	if err == nil {
		err = limitsErr
	}
	if err != nil {
		return fmt.Sprintf("exit %d: %v", refuse.KindOf(err), err)
	}
	var all []string
	for _, e := range engines {
		text, _ := e.(*block.Engine).Line()
		all = append(all, text)
	}
	for _, l := range limits {
		all = append(all, l.By+": "+l.writes()+remark("", l.Note))
	}
	return strings.Join(all, "; ")
}

// TestWeightsOfOneDisk: two volumes of a disk may each have a rate, but only one of them a weight.
func TestWeightsOfOneDisk(t *testing.T) {
	sda := []block.Queue{{Major: 8, Name: "sda", Scheduler: "bfq", BFQ: true}}
	disks := map[string]block.Disk{"a": {Major: 252, Name: "dm-0", Queues: sda}, "b": {Major: 252, Minor: 1, Name: "dm-1", Queues: sda}}
	n := &vnode.Node{IO: []vnode.IO{{Name: "a", Weight: 5}, {Name: "b", Read: vnode.IORate{Rate: 1e6}}}}
	if _, err := Limits(n, grouptest.V2(), "berth/wn", disks); err != nil {
		t.Error(err)
	}
	n.IO[1].Weight = 6
	_, err := Limits(n, grouptest.V2(), "berth/wn", disks)
	if refuse.KindOf(err) != refuse.Invalid || !strings.Contains(fmt.Sprint(err), "io.a and io.b act on one disk, sda") {
		t.Error(err)
	}
}

// TestHeldWeight: a weight whose engine was removed from the disk is shown as not held, and can be removed.
func TestHeldWeight(t *testing.T) {
	n := &vnode.Node{IO: []vnode.IO{{Name: "a", Weight: 5}}}
	disks := map[string]block.Disk{"a": {Major: 8, Name: "sda", Queues: []block.Queue{{Major: 8, Name: "sda", Scheduler: "none"}}}}
	held, err := Held(n, grouptest.V2(), "berth/wn", disks)
	testkit.Must(t, err)
	shown, err := Read(held)
	testkit.Must(t, err)
	if s := shown[0]; s.Holds || s.By != "nothing" || !strings.Contains(s.Note, "nothing shares disk sda out by weight") {
		t.Errorf("%+v", s)
	}
	for _, s := range Changes(held, nil) {
		testkit.Must(t, s.Do(t.Context()))
		testkit.Must(t, s.Verify(t.Context()))
	}
}

// TestKernelWeight sets the weight of a group on a loop device with BFQ, changes it, and then removes BFQ from the device.
func TestKernelWeight(t *testing.T) {
	h := grouptest.Host(t)
	if h.Has("blkio") == "" && h.Has("io") == "" {
		t.Skip("no blkio or io controller")
	}
	disk, err := block.Resolve("/sys", loop.ForTest(t, 16<<20))
	testkit.Must(t, err)
	if !disk.Queues[0].BFQ {
		t.Skip("no BFQ in this kernel")
	}
	scheduler := "/sys/block/" + disk.Name + "/queue/scheduler"
	testkit.Must(t, group.WriteFile(scheduler, "bfq"))
	disk.Queues[0].Scheduler = "bfq"
	path, disks := newGroup(t, h), map[string]block.Disk{"d": disk}
	limits := func(weight int) []*Limit {
		l, err := Limits(&vnode.Node{IO: []vnode.IO{{Name: "d", Weight: weight}}}, h, path, disks)
		testkit.Must(t, err)
		return l
	}
	check := func(l []*Limit, want string) {
		t.Helper()
		shown, err := Read(l)
		testkit.Must(t, err)
		if got := fmt.Sprint(shown[0].ReadBack, " ", shown[0].Holds); got != want {
			t.Errorf("read back %s, want %s", got, want)
		}
	}
	was, now := limits(50), limits(5000)
	do(t, was[0])
	check(was, "50 true")
	changes := Changes(was, now)
	do(t, changes[0])
	check(now, "1000 true")
	testkit.Must(t, changes[0].Undo(t.Context()))
	check(was, "50 true")

	testkit.Must(t, group.WriteFile(scheduler, "none"))
	check(was, "max false")
	if err := limits(7)[0].Do(t.Context()); refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "somebody took bfq from the disk") {
		t.Errorf("a weight without an engine: %v", err)
	}
	for _, s := range Changes(was, nil) { // it can still be removed
		do(t, s)
	}
}
