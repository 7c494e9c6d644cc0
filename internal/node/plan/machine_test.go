package plan

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/host/block"
	"berth/internal/host/membership"
	"berth/internal/image"
	"berth/internal/limit/device"
	"berth/internal/runner"
	"berth/internal/spec/vnode"
	"berth/internal/storage/gateway"
	"berth/internal/storage/mounts"
	"berth/internal/storage/packed"
	"berth/internal/sys/refuse"
)

// asked is a runner that keeps what it is asked for.
type asked struct{ spec *runner.Spec }

func (a asked) Steps(s runner.Spec) (runner.Steps, error) { *a.spec = s; return runner.Steps{}, nil }
func (a asked) String() string                            { return "asked" }

const aMachine = `"name": "m", "kind": "machine", "image": "file:/srv/x.erofs", "command": ["/bin/true"], "delta": {"in": "memory"}, "machine": {"kernel": "/boot/vmlinuz"}`

// TestMachineMounts: a machine gets the same of a folder of the host as a container, of its runner; nothing of it is staged or mounted.
func TestMachineMounts(t *testing.T) {
	var got runner.Spec
	plan := func(more string, change func(*Facts)) error {
		n, f := parse(t, aMachine+more), facts(v1Host(), "crun")
		f.Runner, f.Command.Args, f.Devices = asked{&got}, n.Command, nil
		f.Image = image.Image{
			Ref:    vnode.Image{Kind: vnode.FileImage, Ref: "/srv/x.erofs"},
			Packed: &packed.File{Image: "/srv/x.erofs", Path: "/srv/x.erofs", Kind: packed.EROFS, Digest: "sha256:1"},
		}
		f.Mounts = slices.Repeat([]gateway.Source{{Path: "/srv/real", FSType: "ext4"}, {Path: "/srv/b", FSType: "ext4"}}, 11)[:len(n.Mounts)]
		if change != nil {
			change(&f)
		}
		_, _, err := All(n, f)
		return err
	}
	two := `, "mounts": [{"source": "/srv/a", "target": "/a", "gateway": "virtiofs", "read_only": true}, {"source": "/srv/b", "target": "/b", "map": "identity"}]`
	if err := plan(two, nil); err != nil {
		t.Fatal(err)
	}
	want := []mounts.Stage{
		{At: "/run/berth/nodes/m/stage/m0", Source: "/srv/real", Idmap: true, ReadOnly: true, Recursive: true, Target: "/a"},
		{At: "/run/berth/nodes/m/stage/m1", Source: "/srv/b", Recursive: true, Target: "/b"},
	}
	if diff := cmp.Diff(want, got.Machine.Shares); diff != "" {
		t.Error(diff)
	}
	if len(got.Mounts)+len(got.Content.Stage) > 0 {
		t.Errorf("the machine's runner is asked for mounts: %+v %+v", got.Mounts, got.Content.Stage)
	}
	limited := two + `, "io": [{"name": "data", "device": "/dev/vda1", "write": {"rate": "1MB/s"}}]`
	v2 := func(f *Facts) { f.Host = v2Host() }
	// A limit on a device of the machine's own, which is the disk that it acts on or a part of it.
	own := func(access string) string {
		return limited + `, "devices": [{"path": "/dev/vda1", "as": "/dev/own", "access": "` + access + `"}]`
	}
	disk := func(via string) func(f *Facts) {
		return func(f *Facts) {
			f.Disks = map[string]block.Disk{"data": {Major: 254, Name: "vda", Asked: "/dev/vda1", Via: via}}
			f.Devices = []device.Granted{{Resolved: device.Resolved{Path: "/dev/own", Type: "b", Major: 254, Minor: 1, Access: "rw", Source: "/dev/vda1"}}}
		}
	}
	shared := two + `, "network": [{"mode": "bridge", "bridge": "br0", "address": ["192.0.2.7/24"]}], "io": [{"name": "f", "filesystem": "/srv", "read": {"rate": "1MB/s"}}]`
	on := func(fstype string) func(f *Facts) {
		return func(f *Facts) { f.Agent, f.Mounts[1].FSType = &membership.Agent{}, fstype }
	}
	for name, c := range map[string]struct {
		spec   string
		change func(*Facts)
		want   refuse.Kind
	}{
		"a file":                        {two, func(f *Facts) { f.Mounts[1].NoDir = true }, refuse.Cannot},
		"a file server":                 {`, "mounts": [{"source": "h:/b", "target": "/b", "gateway": "nfs"}]`, nil, refuse.Cannot},
		"writes on v1":                  {limited, nil, refuse.Cannot},
		"writes on v2":                  {limited, v2, 0},
		"writes, own whole disk":        {own("rw"), disk(""), 0},
		"writes, own unplugged disk":    {own("rw"), disk("unplugged"), 0},
		"writes, own disk to read":      {own("r"), disk(""), refuse.Cannot},
		"writes, own partition":         {own("rw"), disk("partition vda1 of vda"), refuse.Cannot},
		"writes, partition on v2":       {own("rw"), func(f *Facts) { v2(f); disk("partition vda1 of vda")(f) }, 0},
		"shared limit, a server's":      {shared, on("nfs4"), refuse.Cannot},
		"shared limit, sshfs of host":   {shared, on("fuse.sshfs"), refuse.Cannot},
		"shared limit, own disk":        {shared, on("ext4"), 0},
		"reads on v1":                   {two + `, "io": [{"name": "data", "device": "/dev/vda1", "read": {"rate": "1MB/s"}}]`, nil, 0},
		"writes, read-only mount":       {`, "mounts": [{"source": "/srv/a", "target": "/a", "read_only": true}], "io": [{"name": "data", "device": "/dev/vda1", "write": {"iops": 10}}]`, nil, 0},
		"v2 whose memory is v1":         {limited, func(f *Facts) { v2(f); f.Host.Cgroups.V1 = map[string]string{"memory": "/m"} }, refuse.Cannot},
		"20 mounts beside the own disk": {`, "mounts": [` + many(20) + `]`, nil, refuse.Cannot},
		"19 mounts beside the own disk": {`, "mounts": [` + many(19) + `]`, nil, 0},
	} {
		if err := plan(c.spec, c.change); (err == nil) != (c.want == 0) || err != nil && refuse.KindOf(err) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	n, f := parse(t, small+`, "mounts": [{"source": "/srv/a", "target": "/a", "gateway": "virtiofs"}]`), facts(v1Host(), "crun")
	f.Command.Args, f.Devices = n.Command, nil
	if _, _, err := All(n, f); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("virtiofs for a container: %v", err)
	}
}

// many is the JSON of so many mounts.
func many(n int) (text string) {
	for i := range n {
		if i > 0 {
			text += ", "
		}
		text += `{"source": "/srv/a", "target": "/` + string(rune('a'+i)) + `"}`
	}
	return text
}
