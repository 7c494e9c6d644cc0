package device

import (
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// tree is a host with the disks sda (mounted) and sdb, a SCSI command device for each, and a few other devices.
func tree(t *testing.T) (proc, sys string) {
	t.Helper()
	root := t.TempDir()
	proc, sys = filepath.Join(root, "proc"), filepath.Join(root, "sys")
	put := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
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
	for number, name := range map[string]string{"8:0": "sda", "8:16": "sdb"} {
		scsi := filepath.Join(sys, "devices/scsi-"+name)
		disk := filepath.Join(scsi, "block", name)
		put(disk+"/dev", number+"\n")
		put(scsi+"/wwid", "naa."+name+"\n")
		link(scsi, disk+"/device")
		put(disk+"/uevent", "MAJOR=8\nDEVNAME="+name+"\nDEVTYPE=disk\n")
		link(disk, sys+"/dev/block/"+number)
		sg := map[string]string{"sda": "sg0", "sdb": "sg1"}[name]
		put(scsi+"/"+sg+"/uevent", "DEVNAME="+sg+"\n")
		link(scsi, scsi+"/"+sg+"/device")
		link(scsi+"/"+sg, sys+"/dev/char/21:"+sg[2:])
	}
	put(sys+"/devices/virtual/block/dm-0/uevent", "DEVNAME=dm-0\n")
	put(sys+"/devices/virtual/block/dm-0/dev", "253:0\n")
	put(sys+"/devices/virtual/block/dm-0/diskseq", "9\n")
	put(sys+"/devices/virtual/block/dm-0/dm/name", "vg-lv\n")
	put(sys+"/devices/virtual/block/dm-0/dm/uuid", "LVM-abc\n")
	link(sys+"/devices/virtual/block/dm-0", sys+"/dev/block/253:0")
	put(sys+"/dev/char/1:1/uevent", "DEVNAME=mem\n")
	put(sys+"/dev/char/202:0/uevent", "DEVNAME=cpu/0/msr\n")
	put(proc+"/devices", "Character devices:\n  1 mem\n195 nvidia-frontend\n\nBlock devices:\n  8 sd\n 77 loop\n")
	put(proc+"/swaps", "Filename Type Size Used Priority\n")
	put(proc+"/self/mountinfo", "27 1 8:0 / / rw - ext4 /dev/sda rw\n")
	return proc, sys
}

func TestResolve(t *testing.T) {
	testkit.NeedsRoot(t)
	proc, sys := tree(t)
	dev := t.TempDir()
	node := func(name string, kind uint32, major, minor uint32) {
		t.Helper()
		if err := unix.Mknod(filepath.Join(dev, name), kind|0o600, int(unix.Mkdev(major, minor))); err != nil {
			t.Skipf("needs to make device nodes in %s: %v", dev, err)
		}
	}
	node("sda", unix.S_IFBLK, 8, 0)
	node("sdb", unix.S_IFBLK, 8, 16)
	node("gone", unix.S_IFBLK, 8, 32)
	node("sg0", unix.S_IFCHR, 21, 0)
	node("sg1", unix.S_IFCHR, 21, 1)
	node("harmless", unix.S_IFCHR, 1, 1) // the number decides, not the name
	node("msr", unix.S_IFCHR, 202, 0)
	node("nvidia0", unix.S_IFCHR, 195, 0)
	node("nobody", unix.S_IFCHR, 77, 0) // a block driver's number
	node("sdz", unix.S_IFBLK, 8, 16)    // another name
	node("vg-lv", unix.S_IFBLK, 253, 0) // a mapped device with the name that its creator gave it
	node("dm-1", unix.S_IFBLK, 253, 0)
	if err := os.Mkdir(dev+"/by-id", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../sdb", dev+"/by-id/disk-2"); err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		name, access string
		want         Resolved
	}{
		{"by-id/disk-2", "mrw", Resolved{Type: "b", Major: 8, Minor: 16, Access: "rwm", Source: dev + "/sdb", ID: Identity{ID: "wwid naa.sdb"}}},
		{"sg1", "r", Resolved{Type: "c", Major: 21, Minor: 1, Access: "r", Source: dev + "/sg1", ID: Identity{ID: "at devices/scsi-sdb/sg1"}}},
		{"nvidia0", "", Resolved{Type: "c", Major: 195, Access: "rw", Source: dev + "/nvidia0"}},
		{"vg-lv", "", Resolved{Type: "b", Major: 253, Access: "rw", Source: dev + "/vg-lv", ID: Identity{ID: "uuid LVM-abc", Seq: 9}}},
	} {
		c.want.Path = "/dev/x"
		got, err := Resolve(proc, sys, vnode.Device{Path: dev + "/" + c.name, As: "/dev/x", Access: c.access})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if diff := cmp.Diff([]Resolved{c.want}, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
	for _, c := range []struct {
		name string
		kind refuse.Kind
		text string
	}{
		{"sda", refuse.Busy, "mounted on /"},
		{"sg0", refuse.Busy, "mounted on /"},
		{"gone", refuse.NotFound, "no driver"},
		{"nobody", refuse.NotFound, "no driver"},
		{"absent", refuse.NotFound, "there is no device"},
		{"harmless", refuse.Invalid, "memory"},
		{"msr", refuse.Invalid, "memory"},
		{"by-id", refuse.Invalid, "not a device node"},
		{"sd?", refuse.Invalid, "must appear below /dev"},
		{"hd?", refuse.NotFound, "no device matches"},
		{"by-*", refuse.NotFound, "no device matches"}, // a folder does not match
		{"sdz", refuse.Invalid, "the number of /dev/sdb, another device"},
		{"dm-1", refuse.Invalid, "the number of /dev/dm-0, another device"},
	} {
		_, err := Resolve(proc, sys, vnode.Device{Path: dev + "/" + c.name, As: "/dev/x"})
		if err == nil || refuse.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v (kind %d), want kind %d with %q", c.name, err, refuse.KindOf(err), c.kind, c.text)
		}
	}
	if _, err := Resolve(proc, sys, vnode.Device{Path: dev + "/sdb"}); refuse.KindOf(err) != refuse.Invalid {
		t.Errorf("a device outside /dev and no as: %v", err)
	}
}

func TestThisHost(t *testing.T) {
	for path, kind := range map[string]refuse.Kind{
		"/dev/fuse": 0, "/dev/kvm": 0, "/dev/null": refuse.Invalid, "/dev/kmsg": refuse.Invalid,
		"/dev/loop-control": refuse.Invalid, "/dev/tty1": refuse.Invalid, "/dev/autofs": refuse.Invalid,
	} {
		if _, err := os.Stat(path); err != nil {
			t.Logf("no %s here", path)
			continue
		}
		r, err := Resolve("/proc", "/sys", vnode.Device{Path: path})
		if refuse.KindOf(err) != kind || err == nil && r[0].Path != path {
			t.Errorf("%s: %+v, %v; want kind %d", path, r, err, kind)
		}
	}
}

func TestRules(t *testing.T) {
	for _, r := range rules() {
		for pattern := range strings.FieldsSeq(r.names) {
			if _, err := path.Match(pattern, "x"); err != nil {
				t.Errorf("rule %q: %v", pattern, err)
			}
		}
	}
	for _, name := range []string{"fuse", "kvm", "net/tun", "vfio/12", "ttyS0", "ttyUSB0", "sg3", "st0", "dri/card0", "infiniband/uverbs0", "hwrng"} {
		if why, never := forbidden(name); never {
			t.Errorf("%s is forbidden: %s", name, why)
		}
	}
	for _, name := range []string{"tty0", "nvme0", "cpu/11/msr", "mapper/control", "watchdog0", "input/event3", "vcsa1"} {
		if _, never := forbidden(name); !never {
			t.Errorf("%s is not forbidden", name)
		}
	}
}

// TestUnsafe: unsafe gives a device all the same, and records why no node should have it. It never gives a device that
// every node has of its own.
func TestUnsafe(t *testing.T) {
	for path, why := range map[string]string{"/dev/kmsg": "kernel log", "/dev/mem": "memory", "/dev/loop-control": "makes or changes devices"} {
		if _, err := os.Stat(path); err != nil {
			t.Logf("no %s here", path)
			continue
		}
		r, err := Resolve("/proc", "/sys", vnode.Device{Path: path, Unsafe: true})
		if err != nil || !strings.Contains(r[0].Unsafe, why) {
			t.Errorf("%s: %+v, %v", path, r, err)
		}
	}
	if r, err := Resolve("/proc", "/sys", vnode.Device{Path: "/dev/null", Unsafe: true}); refuse.KindOf(err) != refuse.Invalid {
		t.Errorf("/dev/null: %+v, %v", r, err)
	}
	if r, err := Resolve("/proc", "/sys", vnode.Device{Path: "/dev/nothing", Unsafe: true}); refuse.KindOf(err) != refuse.NotFound {
		t.Errorf("/dev/nothing: %+v, %v", r, err)
	}
	if r, err := Resolve("/proc", "/sys", vnode.Device{Path: "/dev/loop[0-9]*"}); err == nil {
		t.Logf("%d loop devices", len(r))
	}
}
