package plan

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/host"
	"berth/internal/host/block"
	"berth/internal/limit/device"
	"berth/internal/spec/vnode"
)

// TestChange plans changes of a running node on hosts that are only written down.
func TestChange(t *testing.T) {
	fuse := device.Granted{Resolved: device.Resolved{Path: "/dev/fuse", Type: "c", Major: 10, Minor: 229, Access: "rw", Source: "/dev/fuse"}}
	capable := v2Host()
	capable.SysRes = true
	for _, tc := range []struct {
		name    string
		host    host.Facts
		changes map[string]string
		gone    bool   // the disk of io.data
		want    string // kinds and lines
		refused string
	}{
		{name: "nothing", host: v2Host()},
		{name: "v2", host: v2Host(), changes: map[string]string{"cpu.max": "0.5", "io.data.read.rate": "50MB/s"}, want: `
cgroup.change cpu.max 1.5 ⇒ 0.5: cpu.max=50000 100000
cgroup.change io.data.read.rate 200MB/s ⇒ 50MB/s: io.max=254:0 rbps=50000000 (acts on the whole disk vda (partition vda1 of vda))`},
		{name: "v1", host: v1Host(), changes: map[string]string{"pids": "99"}, want: `
cgroup.change pids 512 ⇒ 99: pids.max=99`},
		{name: "a limit is taken away", host: v2Host(), changes: map[string]string{"memory.max": "max"}, want: `
cgroup.change memory.max 1GiB ⇒ max: memory.max=max`},
		{name: "of the processes", host: v2Host(), changes: map[string]string{"rlimits.nofile": "500"}, refused: "CAP_SYS_RESOURCE"},
		{name: "of the processes, with the right to", host: capable, changes: map[string]string{"rlimits.nofile": "5000"}, want: `
cgroup.rlimit rlimits.nofile 4096 ⇒ 5000: setrlimit of each process`},
		{name: "a device", host: v2Host(), changes: map[string]string{vnode.TakeDevice: "/dev/fuse"}, want: `
cgroup.devices_change
device.node /dev/fuse vanishes: c 10:229
device.record`},
		{name: "on a disk that is unplugged", host: v2Host(), changes: map[string]string{"io.data.read.rate": "50MB/s", "pids": "99"}, gone: true, want: `
cgroup.change pids 512 ⇒ 99: pids.max=99`},
		{name: "more huge pages than are free", host: v2Host(), changes: map[string]string{"hugepages.2MiB": "64MiB"}, refused: "hugepages.2MiB"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			old, changed, f := parse(t, full), parse(t, full), facts(tc.host, "crun")
			for key, value := range tc.changes {
				if err := vnode.Change(changed, key, value); err != nil {
					t.Fatal(err)
				}
			}
			r := Running{
				Table: device.Table{Devices: []device.Granted{fuse}, Disks: []device.Disk{{Entry: "data", Major: 254, Gone: tc.gone}}},
				Disks: map[string]block.Disk{"data": f.Disks["data"]},
			}
			f.Devices = r.Table.Devices
			if len(changed.Devices) == 0 {
				f.Devices = nil
			}
			steps, err := Change(old, changed, f, r)
			if tc.refused != "" || err != nil {
				if err == nil || tc.refused == "" || !strings.Contains(err.Error(), tc.refused) {
					t.Errorf("%v, want %q in it", err, tc.refused)
				}
				return
			}
			got := ""
			for _, s := range steps {
				got += "\n" + s.Kind()
				if s.Kind() != "cgroup.devices_change" && s.Kind() != "device.record" {
					got += " " + s.String()
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
