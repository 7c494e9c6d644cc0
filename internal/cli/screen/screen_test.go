package screen

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"berth/internal/node/top"
)

// sampleOfThree returns a sample of a storage node, a batch node and a protected service.
func sampleOfThree() *top.Sample {
	waits := func(cpu, memory, io float64) *top.PressureUse {
		return &top.PressureUse{CPU: &top.StallUse{Some: new(cpu)}, Memory: &top.StallUse{Some: new(memory)}, IO: &top.StallUse{Some: new(io)}}
	}
	return &top.Sample{
		Time: time.Date(2026, 1, 2, 14, 3, 22, 0, time.UTC), Interval: 2 * time.Second,
		Host: top.HostUse{CPUs: 2, CPU: new(37.4), Memory: 5 << 30, MemoryTotal: 8 << 30, Pressure: waits(9, 0, 12.3)},
		Nodes: []top.Use{
			{
				Name: "wn-001", Kind: top.KindNode, CPU: new(100.4), Throttled: new(48.0), Memory: new(int64(96 << 20)), MemoryMax: new(int64(4 << 30)),
				PIDs: new(int64(12)), Pressure: waits(12, 0, 100), Links: []top.LinkUse{{Link: "eth0", RXBits: 954e6, TXBits: 12e3}},
				Disks: []top.DiskUse{
					{Disk: "nvme0n1", ReadBytes: 25.3e6, ReadOps: 6176, WriteBytes: 4096, WriteOps: 1, Waited: new(3.25)},
					{Disk: "sda"},
				},
			},
			{
				Name: "a-rather-long-name-of-a-worker-7", Kind: top.KindNode, CPU: new(0.02), Throttled: new(0.0), Memory: new(int64(4096)), PIDs: new(int64(1)),
				Pressure: waits(0, 0, 0), Disks: []top.DiskUse{},
				Links: []top.LinkUse{{Link: "eth0", RXBits: 8, RXPackets: 1}, {Link: "eth1"}},
			},
			{Name: "xrootd", Kind: top.KindService, CPU: new(3.2), Memory: new(int64(1 << 30)), Disks: []top.DiskUse{}},
		},
	}
}

func TestTopLines(t *testing.T) {
	for _, tt := range []struct {
		view view
		want string
	}{
		{view{width: 80, sort: "cpu", details: true}, `
14:03:22  2 nodes, 1 service by cpu, over 2.0 s
host  CPU 37% of 200%  memory 5.0Gi of 8.0Gi  waits cpu 9.0% mem 0% io 12%

NAME               CPU% THR% MEMORY    MAX cpu mem  io READ/s WRIT/s RXbit TXbit
wn-001              100   48 96.0Mi  4.0Gi  12   0 100  25.3M   4.1k  954M 12.0k
  nvme0n1: read 25.3MB/s 6.2k IOPS, write 4.1kB/s 1 IOPS, held back 3.2%
xrootd (service)    3.2    -  1.0Gi      -   -   -   -      0      0     -     -
…me-of-a-worker-7     0    0  4.0Ki      -   0   0   0      0      0     8     0
  eth0: rx 8bit/s 1 packets/s, tx 0bit/s 0 packets/s
  eth1: rx 0bit/s 0 packets/s, tx 0bit/s 0 packets/s`},
		{view{width: 40, height: 6, sort: "name"}, `
14:03:22  2 nodes, 1 service by name, ov
host  CPU 37% of 200%  memory 5.0Gi of 8

NAME                         CPU% MEMORY
…er-long-name-of-a-worker-7     0  4.0Ki
wn-001                        100 96.0Mi`},
		{view{sort: "net", first: 1}, `
14:03:22  2 nodes, 1 service by net, over 2.0 s
host  CPU 37% of 200%  memory 5.0Gi of 8.0Gi  waits cpu 9.0% mem 0% io 12%

NAME                              CPU% THR% MEMORY    MAX cpu mem  io READ/s WRIT/s R-IOPS W-IOPS RXbit TXbit TASKS
a-rather-long-name-of-a-worker-7     0    0  4.0Ki      -   0   0   0      0      0      0      0     8     0     1
xrootd (service)                   3.2    -  1.0Gi      -   -   -   -      0      0      0      0     -     -     -`},
	} {
		got := "\n" + strings.Join(lines(sampleOfThree(), tt.view), "\n")
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%+v: %s", tt.view, diff)
		}
	}
	none := &top.Sample{Nodes: []top.Use{}}
	if got := lines(none, view{width: 80, sort: "cpu"}); got[len(got)-1] != "no node runs" {
		t.Errorf("without nodes: %q", got)
	}
}

// TestTopFits checks that no line is wider than the terminal and no figure touches the one before it.
func TestTopFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := sampleOfThree()
		u := &s.Nodes[0]
		u.Name = rapid.StringMatching("[a-z0-9-]{1,48}").Draw(t, "name")
		u.CPU = new(rapid.Float64Range(0, 12800).Draw(t, "cpu"))
		u.Memory = new(rapid.Int64Range(0, 1<<50).Draw(t, "memory"))
		u.Disks[0].ReadBytes = rapid.Float64Range(0, 1e13).Draw(t, "read")
		u.Links[0].TXBits = rapid.Float64Range(0, 1e12).Draw(t, "tx")
		v := view{
			width: rapid.IntRange(20, 150).Draw(t, "width"), height: rapid.IntRange(1, 30).Draw(t, "height"),
			sort: rapid.SampledFrom(Sorts()).Draw(t, "sort"), details: rapid.Bool().Draw(t, "details"),
		}
		lines := lines(s, v)
		if len(lines) > v.height {
			t.Fatalf("%d lines in a height of %d", len(lines), v.height)
		}
		for _, l := range lines {
			if n := utf8.RuneCountInString(l); n > v.width {
				t.Fatalf("%d wide, want at most %d: %s", n, v.width, l)
			}
		}
		columns, _ := fitColumns(s.Nodes, 0)
		for _, c := range columns {
			if f := c.value(u); f != nil && len(c.text(*f)) >= c.width {
				t.Fatalf("%s: %q does not leave a space in %d", c.head, c.text(*f), c.width)
			}
		}
	})
}
