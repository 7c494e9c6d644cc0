package plan

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/host/block"
	"berth/internal/limit/device"
	"berth/internal/spec/vnode"
	"berth/internal/sys/layout"
)

// TestReplug plans how a running node follows a device and a disk, on a host that is only written down.
func TestReplug(t *testing.T) {
	type place struct {
		minor uint32
		gone  bool
	}
	table := func(fuse, data place) device.Table {
		f := device.Granted{
			Resolved: device.Resolved{Path: "/dev/fuse", Type: "c", Major: 10, Minor: fuse.minor, Access: "rw", Source: "/dev/fuse"},
			Gone:     fuse.gone,
		}
		return device.Table{Devices: []device.Granted{f}, Disks: []device.Disk{{Entry: "data", Major: 254, Minor: data.minor, Gone: data.gone}}}
	}
	at := func(minor uint32) place { return place{minor: minor} }
	for _, tc := range []struct {
		name               string
		fuse, data         place // now; they were 10:229 and 254:0
		wasGone, tookOver  bool  // the disk was unplugged before; another disk has its number
		noDisk             bool  // the disk that came back cannot be looked at
		engine             vnode.Engine
		want, refused, rec string
	}{
		{name: "a device is gone", fuse: place{229, true}, data: at(0), rec: "/dev/fuse is gone, io.data acts on 254:0", want: `
cgroup.devices closed but for the standard devices
device.node /dev/fuse vanishes: c 10:229`},
		{name: "a device has another number", fuse: at(230), data: at(0), rec: "/dev/fuse is c 10:230, io.data acts on 254:0", want: `
cgroup.devices closed but for the standard devices and c 10:230 rw
device.node /dev/fuse vanishes: c 10:229
device.node /dev/fuse appears: c 10:230`},
		{name: "a disk is gone", fuse: at(229), data: place{0, true}, rec: "/dev/fuse is c 10:229, the disk of io.data is gone", want: `
cgroup.devices closed but for the standard devices and c 10:229 rw`},
		{name: "another disk took over the number", fuse: at(229), data: place{0, true}, tookOver: true, rec: "/dev/fuse is c 10:229, the disk of io.data is gone", want: `
cgroup.change io.data.read.rate 200MB/s ⇒ max: io.max=254:0 rbps=max (acts on the whole disk vda (partition vda1 of vda))
cgroup.change io.data.write.iops 100 ⇒ max: io.max=254:0 wiops=max (acts on the whole disk vda (partition vda1 of vda))
cgroup.devices closed but for the standard devices and c 10:229 rw`},
		{name: "a disk came back", fuse: at(229), data: at(0), wasGone: true, rec: "/dev/fuse is c 10:229, io.data acts on 254:0", want: `
cgroup.devices closed but for the standard devices and c 10:229 rw
cgroup.limit io.data.read.rate 200MB/s → io.max=254:0 rbps=200000000 (acts on the whole disk vda (partition vda1 of vda))
cgroup.limit io.data.write.iops 100 → io.max=254:0 wiops=100 (acts on the whole disk vda (partition vda1 of vda))`},
		{name: "what cannot be looked at gets no limits", fuse: place{229, true}, data: at(0), wasGone: true, noDisk: true, rec: "/dev/fuse is gone, io.data acts on 254:0", want: `
cgroup.devices closed but for the standard devices
device.node /dev/fuse vanishes: c 10:229`},
		{name: "an engine that the disk cannot have", fuse: place{229, true}, data: at(0), wasGone: true, engine: vnode.BFQ, refused: "io.data.engine bfq", rec: "/dev/fuse is gone, io.data acts on 254:0", want: `
cgroup.devices closed but for the standard devices
device.node /dev/fuse vanishes: c 10:229`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, f := parse(t, full), facts(v2Host(), "crun")
			n.IO[0].Engine = tc.engine
			r := Running{Table: table(at(229), place{0, tc.wasGone}), Disks: map[string]block.Disk{}}
			if tc.tookOver {
				r.Disks["data"] = f.Disks["data"]
			}
			if tc.noDisk {
				f.Disks = nil
			}
			p := Replug(n, f, r, table(tc.fuse, tc.data))
			got := ""
			for _, s := range p.All()[:len(p.All())-1] {
				got += "\n" + s.Kind() + " " + s.String()
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
			if p.Record.String() != tc.rec {
				t.Errorf("recorded: %s, want %s", p.Record, tc.rec)
			}
			if err := p.Refused; (err == nil) != (tc.refused == "") || err != nil && !strings.Contains(err.Error(), tc.refused) {
				t.Errorf("refused: %v, want %q in it", err, tc.refused)
			}
		})
	}
}

// TestHeldDevices: the record of a node's devices says whether an emulator has them open.
func TestHeldDevices(t *testing.T) {
	f := Facts{Devices: []device.Granted{{Resolved: device.Resolved{Path: "/dev/own", Type: "b", Major: 7}}}}
	for _, kind := range []vnode.Kind{"", vnode.MachineKind} {
		steps := f.devices(&vnode.Node{Kind: kind}, "berth/m", layout.Node{})
		if r := steps[len(steps)-1].(*device.Record); r.New.Devices[0].Held != (kind != "") {
			t.Errorf("of kind %q: %+v", kind, r.New)
		}
	}
}
