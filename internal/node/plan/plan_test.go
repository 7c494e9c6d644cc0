package plan

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/host/block"
	"berth/internal/image"
	"berth/internal/limit/device"
	"berth/internal/network/link"
	"berth/internal/network/nat"
	"berth/internal/node/mechanisms"
	"berth/internal/runner"
	"berth/internal/runner/oci"
	"berth/internal/spec/vnode"
	"berth/internal/storage/gateway"
	"berth/internal/storage/ids"
	"berth/internal/storage/packed"
	"berth/internal/storage/scratch"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
	"berth/internal/sys/thread"
	"berth/test/testkit"
)

func v1Host() host.Facts {
	v1 := map[string]string{}
	for _, c := range []string{"blkio", "cpu", "cpuacct", "cpuset", "devices", "freezer", "memory", "pids", "name=systemd"} {
		v1[c] = "/sys/fs/cgroup/" + strings.TrimPrefix(c, "name=")
	}
	return host.Facts{BootID: "boot", Cgroups: host.Cgroups{V1: v1, V2: "/sys/fs/cgroup/unified", V2Controllers: []string{"hugetlb"}, CPUs: "0-1", V1Sockets: true}}
}

func v2Host() host.Facts {
	return host.Facts{BootID: "boot", Cgroups: host.Cgroups{
		V2: "/sys/fs/cgroup", V2Controllers: []string{"cpu", "cpuset", "hugetlb", "io", "memory", "pids"}, CPUs: "0-1",
	}}
}

// facts returns the facts of a host that has what the test's node asks for.
func facts(h host.Facts, runtime string) Facts {
	return Facts{
		Layout: layout.New(""), Host: h, SiteID: "site", Runner: oci.Runtime{Name: runtime, Path: "/usr/bin/" + runtime, Version: "1"},
		Image: image.Image{Plain: true}, Root: image.HostRoot{Links: map[string]string{"bin": "usr/bin"}},
		Disks:    map[string]block.Disk{"data": {Major: 254, Name: "vda", Asked: "/dev/vda1", Via: "partition vda1 of vda"}},
		Devices:  []device.Granted{{Resolved: device.Resolved{Path: "/dev/fuse", Type: "c", Major: 10, Minor: 229, Access: "rw", Source: "/dev/fuse"}}},
		Gateways: gateway.All(), Mounts: []gateway.Source{{Path: "/srv/data", FSType: "ext4"}},
		Links: link.Facts{Links: map[string]link.HostLink{
			"br0": {Type: "bridge", MTU: 1500, Up: true}, "eth1": {Type: "device", MTU: 9000, Up: true},
		}},
	}
}

func parse(t *testing.T, text string) *vnode.Node {
	t.Helper()
	var n vnode.Node
	if err := json.Unmarshal([]byte("{"+text+"}"), &n); err != nil {
		t.Fatal(err)
	}
	vnode.Defaults(&n)
	return &n
}

const full = `
"name": "wn-001", "image": "host", "command": ["/bin/sleep", "infinity"],
"cpu": {"weight": 200, "max": "1.5", "set": "0-1"}, "memory": {"max": "1GiB"}, "pids": 512, "rlimits": {"nofile": 4096},
"io": [{"name": "data", "device": "/dev/vda1", "read": {"rate": "200MB/s"}, "write": {"iops": 100}}],
"network": [
  {"name": "eth0", "mode": "bridge", "address": ["192.0.2.10/24"]},
  {"name": "eth1", "mode": "macvlan", "parent": "eth1", "address": ["2001:db8::10/64"]}],
"devices": [{"path": "/dev/fuse"}],
"mounts": [{"source": "/srv/data", "target": "/data", "read_only": true}]`

// small is a spec without optional parts.
const small = `"name": "n", "image": "host", "command": ["/bin/true"]`

func TestPlans(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spec  string
		facts func() Facts
	}{
		{"v1-crun", full, func() Facts { return facts(v1Host(), "crun") }},
		{"v1-runc", full, func() Facts { return facts(v1Host(), "runc") }},
		{"v2-crun", full, func() Facts { return facts(v2Host(), "crun") }},
		{"users", small + `, "users": [{"from": 1500, "count": 1, "as": "same"}, {"from": 100000, "count": 70000, "as": "private", "of": "uid"}]`, func() Facts {
			f := facts(v2Host(), "crun")
			f.Devices, f.Mounts = nil, nil
			f.Site = ids.Site{List: "/etc/berth/users.yaml", Allowed: []vnode.IDRange{{From: 1000, Count: 1000}}}
			return f
		}},
		{"weights", small + `, "io": [{"name": "data", "device": "/dev/vda1", "weight": 50, "engine": "bfq"}]`, func() Facts {
			f := facts(v2Host(), "crun")
			f.Devices, f.Mounts = nil, nil
			vda := f.Disks["data"]
			vda.Queues = []block.Queue{{Major: 254, Name: "vda", Scheduler: "none", BFQ: true}}
			f.Disks["data"] = vda
			return f
		}},
		{"phys", small + `, "network": [{"name": "eth0", "mode": "phys", "parent": "eth1"}]`, func() Facts {
			f := facts(v1Host(), "crun")
			f.Devices, f.Mounts = nil, nil
			return f
		}},
		{"sriov", small + `, "network": [{"name": "eth0", "mode": "sriov", "parent": "eth1", "vlan": 120, "rate": {"tx": "100Mbit/s"}, "address": ["192.0.2.10/24"]}]`, func() Facts {
			f := facts(v1Host(), "crun")
			f.Devices, f.Mounts = nil, nil
			f.Links.Links["eth1"] = link.HostLink{Type: "device", MTU: 1500, Up: true, VFs: &link.HostVFs{Total: 7, Uses: []link.VFUse{{User: "node a/eth0"}, {}}}}
			return f
		}},
		{"dhcp", small + `, "hostname": "n.example.org", "network": [{"name": "eth0", "mode": "macvlan", "parent": "eth1", "dhcp": true}]`, func() Facts {
			f := facts(v1Host(), "crun")
			f.Devices, f.Mounts = nil, nil
			f.Links.Links["eth1"] = link.HostLink{Type: "device", MTU: 1500, Up: true}
			return f
		}},
		{"layers", `"name": "n", "image": "oci:worker", "delta": {"in": "memory", "size": "1GiB"}`, func() Facts {
			f := facts(v2Host(), "runc")
			f.Devices, f.Mounts = nil, nil
			f.Image = image.Image{Ref: vnode.Image{Kind: vnode.OCIImage, Ref: "worker"}, Lowers: []string{"/l/2", "/l/1"}}
			f.Command = Command{Args: []string{"/sbin/init"}, Init: runner.Systemd}
			return f
		}},
		{"memory", small + `, "delta": {"in": "memory", "size": "64MiB"}`, func() Facts {
			f := facts(v2Host(), "crun")
			f.Devices, f.Mounts = nil, nil
			return f
		}},
		{"nat", small + `, "network": [{"name": "eth0", "mode": "nat", "ports": ["8080:80", "127.0.0.1:5353:53/udp"]}]`, func() Facts {
			f := facts(v2Host(), "crun")
			f.Devices, f.Mounts = nil, nil
			f.Links.NAT = nat.Facts{
				Network: nat.Network{V4: netip.MustParsePrefix("10.88.0.0/16"), V6: netip.MustParsePrefix("fd00:88::/64")}, Address: netip.MustParseAddr("10.88.0.2"),
			}
			return f
		}},
		{"machine", aMachine + `, "network": [{"name": "eth0", "mode": "bridge", "parent": "br0", "address": ["192.0.2.10/24"]}]`, func() Facts {
			f := facts(v2Host(), "crun")
			f.Devices, f.Mounts, f.Runner = nil, nil, asked{&runner.Spec{}}
			f.Image = image.Image{
				Ref:    vnode.Image{Kind: vnode.FileImage, Ref: "/srv/x.erofs"},
				Packed: &packed.File{Image: "/srv/x.erofs", Path: "/srv/x.erofs", Kind: packed.EROFS, Digest: "sha256:1"},
			}
			return f
		}},
		{"scratch", small + `, "mounts": [{"source": "/srv/data", "target": "/tmp/data"}], "scratch": [
  {"target": "/tmp", "size": "20GiB", "pool": "vg0"}, {"target": "/thin", "size": "1GiB", "pool": "thin", "fs": "xfs", "mode": "0750"},
  {"target": "/file", "size": "1GiB"}, {"target": "/folder", "size": "1GiB", "pool": "quota"}, {"target": "/tmp/ram", "size": "1MiB", "pool": "ram"}]`, func() Facts {
			f := facts(v2Host(), "crun")
			f.Devices = nil
			f.Scratch = []scratch.Source{
				{Pool: scratch.Pool{Name: "vg0", ID: "00000001", VG: "vg-0"}, FS: "ext4"},
				{Pool: scratch.Pool{Name: "thin", ID: "00000002", VG: "vg-0", Thin: "t"}, FS: "xfs"},
				{Pool: scratch.Pool{Name: "default", ID: "00000003", Dir: "/srv/scratch"}, FS: "ext4"},
				{Pool: scratch.Pool{Name: "quota", ID: "00000004", Dir: "/srv/q", Quota: true}},
				{Pool: scratch.Pool{Name: "ram", ID: "00000005", Memory: true}},
			}
			return f
		}},
		{"sshfs", small + `, "network": [{"name": "eth0", "mode": "bridge", "address": ["192.0.2.10/24"]}],
"mounts": [{"source": "files.example.org:/srv/data", "target": "/data", "gateway": "sshfs", "options": {"user": "alice", "identity": "/etc/berth/alice"}},
  {"source": "[2001:db8::1]:/a", "target": "/a", "gateway": "sshfs-direct", "read_only": true, "options": {"direct_io": "true", "sync": "true", "uid": "1000"}}]`, func() Facts {
			f := facts(v2Host(), "crun")
			f.Devices = nil
			f.Mounts = []gateway.Source{{Path: "192.0.2.1:22/srv/data", FSType: "fuse.sshfs"}, {Path: "[2001:db8::1]:7022/a", FSType: "fuse.sshfs"}}
			return f
		}},
		{"nfs", small + `, "network": [{"name": "eth0", "mode": "bridge", "address": ["192.0.2.10/24"]}],
"mounts": [{"source": "files.example.org:/srv/data", "target": "/data", "gateway": "nfs"},
  {"source": "[2001:db8::1]:/a", "target": "/a", "gateway": "nfs", "via": "host", "read_only": true, "options": {"vers": "3", "port": "20490"}}]`, func() Facts {
			f := facts(v2Host(), "crun")
			f.Devices = nil
			f.Mounts = []gateway.Source{{Path: "/srv/data", FSType: "nfs4", Server: netip.MustParseAddr("192.0.2.1")}, {Path: "/a", FSType: "nfs4", Server: netip.MustParseAddr("2001:db8::1")}}
			return f
		}},
		{"packed", `"name": "n", "image": "file:/srv/x.erofs", "command": ["/bin/true"]`, func() Facts {
			f := facts(v2Host(), "crun")
			f.Devices, f.Mounts = nil, nil
			f.Image = image.Image{
				Ref:    vnode.Image{Kind: vnode.FileImage, Ref: "/srv/x.erofs"},
				Packed: &packed.File{Image: "/srv/x.erofs", Path: "/srv/x.erofs", Kind: packed.EROFS, Digest: "sha256:1"},
			}
			return f
		}},
		{"no-user-namespace", `"name": "n", "image": "dir:/srv/root", "command": ["/bin/true"], "user_namespace": false`, func() Facts {
			f := facts(v1Host(), "crun")
			f.Devices, f.Mounts = nil, nil
			f.Image = image.Image{Ref: vnode.Image{Kind: vnode.DirImage, Ref: "/srv/root"}, Lowers: []string{"/srv/root"}}
			return f
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, f := parse(t, tc.spec), tc.facts()
			if f.Command.Args == nil {
				f.Command.Args = n.Command
			}
			claims, live, err := All(n, f)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range claims { // layers are on the disk before they have their names, and a skeleton with its delta
				if _, lasts := c.(step.Lasting); !lasts && c.Kind() != "image.unpack" && c.Kind() != "image.skeleton" {
					t.Errorf("claim %s does not say when it is on the disk", c.Kind())
				}
			}
			testkit.Golden(t, filepath.Join("testdata", tc.name+".golden"), render(claims)+"-- live\n"+render(live))
			again, err := Live(n, f, claims)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(render(live), render(again)); diff != "" {
				t.Error("planned twice, two plans:", diff)
			}
			readable(t, append(claims, live...))
		})
	}
}

func render(steps []step.Step) string {
	var b strings.Builder
	for _, s := range steps {
		fmt.Fprintf(&b, "%-16s %s\n", s.Kind(), s)
	}
	return b.String()
}

// readable reads each step back from its journal record: another process must be able to read it.
func readable(t *testing.T, steps []step.Step) {
	t.Helper()
	kinds := mechanisms.Kinds()
	for _, s := range steps {
		record, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		again, err := kinds.Decode(s.Kind(), record)
		if err != nil {
			t.Fatal(err)
		}
		// The content of a bundle is in its file, not in the journal.
		if want, _, _ := strings.Cut(s.String(), "config.json: "); s.String() != again.String() && want+"config.json" != again.String() {
			t.Errorf("%s: %q is read back as %q", s.Kind(), s, again)
		}
	}
}

// TestPlanReadsNothing plans on a thread that sees neither a file nor a link of the host: the plan must be the same.
func TestPlanReadsNothing(t *testing.T) {
	testkit.NeedsRoot(t)
	n, f := parse(t, full), facts(v2Host(), "crun")
	f.Command.Args, n.Delta.Size = n.Command, 1<<30
	steps := func() string {
		claims, live, err := All(n, f)
		text := fmt.Sprint(err)
		for _, s := range append(claims, live...) {
			text += fmt.Sprintf("\n%s %s %+v", s.Kind(), s, s)
		}
		return text
	}
	want, empty := steps(), t.TempDir()
	var got string
	err := thread.Own(func() error {
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNET); err != nil {
			return err
		}
		if err := unix.Chroot(empty); err != nil {
			return err
		}
		got = steps()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the plan depends on the host, not only on its facts:\n%s", d)
	}
}

// TestOrder checks the rules for the order of steps that every plan must keep.
func TestOrder(t *testing.T) {
	n, f := parse(t, full), facts(v1Host(), "crun")
	f.Command.Args = n.Command
	_, live, err := All(n, f)
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]int{}
	for i, s := range live {
		at[s.Kind()] = i // the last step of its kind
	}
	for _, before := range [][2]string{
		{"cgroup.group", "oci.create"}, // the runtime starts in the group
		{"oci.create", "cgroup.limit"}, // crun resets v1's memory limit
		{"oci.create", "link.veth"},    // the runtime makes the namespace
		{"cgroup.devices", "oci.start"}, {"cgroup.limit", "oci.start"}, {"link.configure", "oci.start"},
	} {
		if at[before[0]] >= at[before[1]] {
			t.Errorf("%s comes after %s", before[0], before[1])
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, tc := range []struct {
		name, spec string
		kind       refuse.Kind
		want       string
	}{
		{"oom_score_adj", `, "oom_score_adj": -100`, refuse.Cannot, "oom_score_adj -100: this process may not protect others"},
		{"numa", `, "cpu": {"numa": 0}`, refuse.Cannot, "cpu.numa 0: this host has no NUMA nodes"},
		{"image of an archive", `, "image": "file:/srv/x.tar"`, refuse.Cannot, "berth image import it"},
		{"weight", `, "io": [{"name": "data", "device": "/dev/vda", "weight": 100}]`, refuse.Cannot, "weight"},
		{"shared file system", `, "io": [{"name": "data", "filesystem": "eos", "read": {"rate": "1MB/s"}}]`, refuse.Cannot, "this host belongs to no site"},
		{"memory.low on v1", `, "memory": {"low": "1GiB"}`, refuse.Cannot, "memory.low"},
		{"host without a user namespace", `, "user_namespace": false`, refuse.Invalid, "user_namespace: false"},
		{"systemd on v1", "", refuse.Cannot, "systemd"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, f := parse(t, small+tc.spec), facts(v1Host(), "crun")
			f.Devices, f.Mounts, f.Command.Args = nil, nil, n.Command
			if tc.name == "systemd on v1" {
				f.Command.Init = runner.Systemd
			}
			_, _, err := All(n, f)
			if refuse.KindOf(err) != tc.kind || !strings.Contains(fmt.Sprint(err), tc.want) {
				t.Errorf("got %v (exit %d), want %q (exit %d)", err, refuse.KindOf(err), tc.want, tc.kind)
			}
		})
	}
}

func TestOwn(t *testing.T) {
	n, f := parse(t, small), facts(v1Host(), "crun")
	f.Devices, f.Mounts, f.Command.Args = nil, nil, n.Command
	claims, err := Claims(n, f)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range claims {
		all, err := Range(claims)
		if err != nil {
			t.Fatal(err)
		}
		Own(c, all)
		switch s := c.(type) {
		case *image.Delta:
			if s.Owner == 0 {
				t.Error("the delta belongs to the host's root")
			}
		case *image.Skeleton:
			if s.Owner == 0 {
				t.Error("the skeleton belongs to the host's root")
			}
		}
	}
}

// TestNameOfAFile: on cgroup v1 the group of a node of this name could not be made beside the file of the group above.
func TestNameOfAFile(t *testing.T) {
	n := parse(t, small)
	if err := Supported(n); err != nil {
		t.Fatal(err)
	}
	n.Name = "tasks"
	if err := Supported(n); refuse.KindOf(err) != refuse.Invalid {
		t.Errorf("a node named tasks: %v", err)
	}
}
