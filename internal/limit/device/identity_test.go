package device

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/spec/vnode"
	"berth/internal/storage/mounts"
)

// disk is one disk that plug makes in the sysfs of a host.
type disk struct {
	name, number string
	attributes   map[string]string
	parts        map[string]string // partition number to device number
}

func plug(t *testing.T, disks ...disk) (sys string) {
	t.Helper()
	sys = t.TempDir()
	put := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	link := func(to, path string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range disks {
		dir := filepath.Join(sys, "devices", d.name)
		put(dir+"/dev", d.number)
		put(dir+"/uevent", "DEVNAME="+d.name)
		for name, text := range d.attributes {
			put(dir+"/"+name, text)
		}
		link(dir, sys+"/block/"+d.name)
		link(dir, sys+"/dev/block/"+d.number)
		for n, number := range d.parts {
			put(dir+"/"+d.name+"p"+n+"/partition", n)
			put(dir+"/"+d.name+"p"+n+"/dev", number)
			link(dir+"/"+d.name+"p"+n, sys+"/dev/block/"+number)
		}
	}
	return sys
}

func TestIdentify(t *testing.T) {
	sys := plug(
		t,
		disk{"sda", "8:0", map[string]string{"device/wwid": "naa.5000", "diskseq": "3"}, map[string]string{"1": "8:1"}},
		disk{"vda", "254:0", map[string]string{"serial": "S1"}, nil},
		disk{"nvme0n1", "259:0", map[string]string{"wwid": "eui.1", "device/serial": "S2"}, nil},
		disk{"dm-0", "253:0", map[string]string{"dm/uuid": "LVM-1"}, nil},
		disk{"loop0", "7:0", map[string]string{"loop/backing_file": "/a b", "diskseq": "9"}, nil},
		disk{"loop1", "7:1", map[string]string{"diskseq": "10"}, nil},
		disk{"xvda", "202:0", map[string]string{"diskseq": "11"}, nil},
	)
	for _, c := range []struct {
		major, minor uint32
		want         Identity
		gone         bool
	}{
		{8, 0, Identity{ID: "wwid naa.5000", Seq: 3}, false},
		{8, 1, Identity{ID: "wwid naa.5000", Seq: 3, Part: 1}, false},
		{254, 0, Identity{ID: "serial S1"}, false},
		{259, 0, Identity{ID: "wwid eui.1"}, false},
		{253, 0, Identity{ID: "uuid LVM-1"}, false},
		{7, 0, Identity{ID: "file /a b", Seq: 9}, false},
		{7, 1, Identity{Seq: 10}, true},
		{202, 0, Identity{Seq: 11}, false},
		{9, 9, Identity{}, true},
	} {
		got, ok := Identify(sys, "b", c.major, c.minor)
		if diff := cmp.Diff(c.want, got); diff != "" || ok == c.gone {
			t.Errorf("%d:%d: there %v (-want +got):\n%s", c.major, c.minor, ok, diff)
		}
	}
}

// TestWhere: a disk is found by its identity, and no other disk is taken for it.
func TestWhere(t *testing.T) {
	wwid := func(s, seq string) map[string]string { return map[string]string{"wwid": s, "diskseq": seq} }
	id := Identity{ID: "wwid A", Seq: 1}
	for _, c := range []struct {
		name  string
		id    Identity
		disks []disk
		want  string // "": gone
	}{
		{"unchanged", id, []disk{{"sda", "8:0", wwid("A", "1"), nil}}, "8:0"},
		{"gone", id, nil, ""},
		{"another has its number", id, []disk{{"sda", "8:0", wwid("B", "2"), nil}}, ""},
		{"back with its number", id, []disk{{"sda", "8:0", wwid("A", "2"), nil}}, "8:0"},
		{"back with another", id, []disk{{"sda", "8:0", wwid("B", "2"), nil}, {"sdb", "8:16", wwid("A", "3"), nil}}, "8:16"},
		{"the same, whatever it says of itself", id, []disk{{"sda", "8:0", wwid("renamed", "1"), nil}}, "8:0"},
		{"two say that they are it", id, []disk{{"sdb", "8:16", wwid("A", "2"), nil}, {"sdc", "8:32", wwid("A", "3"), nil}}, ""},
		{"two, one has its number", id, []disk{{"sda", "8:0", wwid("A", "2"), nil}, {"sdc", "8:32", wwid("A", "3"), nil}}, "8:0"},
		{"no name of its own, unplugged", Identity{Seq: 1}, []disk{{"sda", "8:0", map[string]string{"diskseq": "2"}, nil}}, ""},
		{"no name of its own, there", Identity{Seq: 1}, []disk{{"sda", "8:0", map[string]string{"diskseq": "1"}, nil}}, "8:0"},
		{"nothing to know it by", Identity{}, []disk{{"sda", "8:0", nil, nil}}, "8:0"},
		{"nothing to know it by, gone", Identity{}, nil, ""},
		{
			"a partition",
			Identity{ID: "wwid A", Part: 2},
			[]disk{{"sda", "8:0", wwid("B", "2"), nil}, {"sdb", "8:16", wwid("A", "3"), map[string]string{"1": "8:17", "2": "8:18"}}},
			"8:18",
		},
		{"a partition that is no more", Identity{ID: "wwid A", Part: 2}, []disk{{"sdb", "8:16", wwid("A", "3"), nil}}, ""},
	} {
		sys := plug(t, c.disks...)
		n, ok := c.id.Where(sys, "b", 8, 0)
		got := ""
		if ok {
			got = Disk{Major: n[0], Minor: n[1]}.Number()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestTable: the table after disks were swapped, and the steps that lead to it.
func TestTable(t *testing.T) {
	wwid := func(s, seq string) map[string]string { return map[string]string{"wwid": s, "diskseq": seq} }
	before := plug(t, disk{"sda", "8:0", wwid("A", "1"), nil}, disk{"sdb", "8:16", wwid("B", "2"), nil})
	a, _ := Identify(before, "b", 8, 0)
	b, _ := Identify(before, "b", 8, 16)
	table := Table{
		Devices: []Granted{
			{Resolved: Resolved{Path: "/dev/a", Type: "b", Major: 8, Access: "r", Source: "/dev/sda", ID: a}, Spec: vnode.Device{Path: "/dev/sda"}},
			{Resolved: Resolved{Path: "/dev/b", Type: "b", Major: 8, Minor: 16, Access: "rw", Source: "/dev/sdb", ID: b}, Spec: vnode.Device{Path: "/dev/sdb"}},
		},
		Disks: []Disk{{Entry: "one", Major: 8, ID: a}},
	}
	if !table.Now(before).Equal(table) {
		t.Errorf("nothing changed, and it is %+v", table.Now(before))
	}
	for _, c := range []struct {
		name        string
		sys         string
		rules, does []string
		disk        Disk
	}{
		{
			"one gone", plug(t, disk{"sdb", "8:16", wwid("B", "2"), nil}),
			[]string{"b 8:16 rw"},
			[]string{"/dev/a vanishes: b 8:0"},
			Disk{Entry: "one", Major: 8, ID: a, Gone: true},
		},
		{
			"swapped", plug(t, disk{"sda", "8:0", wwid("B", "3"), nil}, disk{"sdb", "8:16", wwid("A", "4"), nil}),
			[]string{"b 8:16 r", "b 8:0 rw"},
			[]string{"/dev/a vanishes: b 8:0", "/dev/b vanishes: b 8:16", "/dev/a appears: b 8:16", "/dev/b appears: b 8:0"},
			Disk{Entry: "one", Major: 8, Minor: 16, ID: Identity{ID: "wwid A", Seq: 4}},
		},
		{
			"back in its place", plug(t, disk{"sda", "8:0", wwid("A", "3"), nil}, disk{"sdb", "8:16", wwid("B", "2"), nil}),
			[]string{"b 8:0 r", "b 8:16 rw"},
			nil,
			Disk{Entry: "one", Major: 8, ID: Identity{ID: "wwid A", Seq: 3}},
		},
	} {
		now := table.Now(c.sys)
		if diff := cmp.Diff(c.rules, now.Rules()); diff != "" {
			t.Errorf("%s: rules (-want +got):\n%s", c.name, diff)
		}
		var does []string
		for _, s := range table.Nodes(now, mounts.Running{}, "") {
			does = append(does, s.String())
		}
		if diff := cmp.Diff(c.does, does); diff != "" {
			t.Errorf("%s: steps (-want +got):\n%s", c.name, diff)
		}
		if diff := cmp.Diff(c.disk, now.Disks[0]); diff != "" {
			t.Errorf("%s: disk (-want +got):\n%s", c.name, diff)
		}
		if c.name == "swapped" && now.Devices[0].Source != "/dev/sdb" {
			t.Errorf("%s: the device is at %s on the host", c.name, now.Devices[0].Source)
		}
		held := table
		held.Devices = slices.Clone(table.Devices)
		for i := range held.Devices {
			held.Devices[i].Held = true
		}
		// What was unplugged is lost for who has it open, wherever it is now, and whatever comes later.
		if is := held.Now(c.sys).Now(before); !is.Devices[0].Gone || is.Devices[1].Gone != (c.name == "swapped") {
			t.Errorf("%s: of devices that are held open there is %+v", c.name, is.Devices)
		}
		// As after a keeper that was killed before it wrote the table.
		if again := table.Now(c.sys); !again.Equal(now) || !now.Now(c.sys).Equal(now) {
			t.Errorf("%s: looked at again it is %+v, then %+v", c.name, again, now.Now(c.sys))
		}
	}
}

// TestRecord: a table is written whole and read back, and Undo restores the old one.
func TestRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "devices")
	first := &Record{Path: path, New: Table{Disks: []Disk{{Entry: "one", Major: 8}}}}
	second := &Record{Path: path, New: Table{Devices: []Granted{{Resolved: Resolved{Path: "/dev/a", Type: "c"}, Gone: true}}}}
	ctx := t.Context()
	for _, r := range []*Record{first, second} {
		if err := r.Prepare(ctx); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(r.Do(ctx), r.Verify(ctx)); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.Verify(ctx); err == nil {
		t.Error("another table is taken for the first")
	}
	for range 2 {
		if err := second.Undo(ctx); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadTable(path); err != nil || !got.Equal(first.New) {
			t.Errorf("after undo it is %+v, %v", got, err)
		}
	}
	for range 2 {
		if err := first.Undo(ctx); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadTable(path); err != nil || !got.Empty() {
			t.Errorf("after both undos it is %+v, %v", got, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Dir(path) + "/*"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
