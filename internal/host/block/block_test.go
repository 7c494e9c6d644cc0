package block

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
	"berth/test/loop"
	"berth/test/testkit"
)

// tree is a small host: a disk with two partitions, a logical volume on the second, an NVMe disk, a RAID of two disks.
//
//	vda 254:0 ── vda1 254:1
//	         └── vda2 254:2 ── dm-0 252:0 (vg0-root)
//	nvme0n1 259:0 ── nvme0n1p1 259:1
//	sda 8:0, sdb 8:16 ── md0 9:0
//	sdc 8:32 (btrfs)
func tree(t *testing.T, mounts, swaps string) (proc, sys string) {
	t.Helper()
	root := t.TempDir()
	proc, sys = filepath.Join(root, "proc"), filepath.Join(root, "sys")
	write := func(path, text string) {
		t.Helper()
		testkit.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		testkit.Must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	device := func(number, dir string) string {
		dir = filepath.Join(sys, "devices", dir)
		write(filepath.Join(dir, "dev"), number+"\n")
		testkit.Must(t, os.MkdirAll(filepath.Join(sys, "dev/block"), 0o755))
		testkit.Must(t, os.Symlink(dir, filepath.Join(sys, "dev/block", number)))
		return dir
	}
	partition := func(number, dir string) string {
		dir = device(number, dir)
		write(filepath.Join(dir, "partition"), "1\n")
		return dir
	}
	holds := func(holder, below string) {
		testkit.Must(t, os.MkdirAll(filepath.Join(below, "holders"), 0o755))
		testkit.Must(t, os.Symlink(holder, filepath.Join(below, "holders", filepath.Base(holder))))
	}
	device("254:0", "pci/vda")
	partition("254:1", "pci/vda/vda1")
	vda2 := partition("254:2", "pci/vda/vda2")
	lv := device("252:0", "virtual/dm-0")
	write(filepath.Join(lv, "dm/name"), "vg0-root\n")
	holds(lv, vda2)
	device("259:0", "pci/nvme0n1")
	partition("259:1", "pci/nvme0n1/nvme0n1p1")
	sda, sdb, md := device("8:0", "pci/sda"), device("8:16", "pci/sdb"), device("9:0", "virtual/md0")
	holds(md, sda)
	holds(md, sdb)
	device("8:32", "pci/sdc")
	write(filepath.Join(sys, "fs/btrfs/2b4e/devices/sdc"), "")
	device("104:0", "pci/cciss!c0d0")
	write(filepath.Join(proc, "self/mountinfo"), mounts)
	write(filepath.Join(proc, "swaps"), "Filename Type Size Used Priority\n"+swaps)
	return proc, sys
}

func TestDiskOfNumber(t *testing.T) {
	_, sys := tree(t, "", "")
	for number, want := range map[string]Disk{
		"254:0": {Major: 254, Minor: 0, Name: "vda", Asked: "x"},
		"254:2": {Major: 254, Minor: 0, Name: "vda", Asked: "x", Via: "partition vda2 of vda"},
		"259:1": {Major: 259, Minor: 0, Name: "nvme0n1", Asked: "x", Via: "partition nvme0n1p1 of nvme0n1"},
		"252:0": {Major: 252, Minor: 0, Name: "dm-0", Asked: "x"},
		"9:0":   {Major: 9, Minor: 0, Name: "md0", Asked: "x"},
		"104:0": {Major: 104, Minor: 0, Name: "cciss/c0d0", Asked: "x"},
	} {
		major, minor, _ := parseNumber(number)
		d, err := byNumber(sys, major, minor)
		if err != nil {
			t.Errorf("%s: %v", number, err)
			continue
		}
		got, err := d.disk(sys, "x")
		testkit.Must(t, err)
		got.Queues, got.NoWeight, got.Kind = nil, "", "" // see TestLayers
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", number, diff)
		}
	}
}

func TestInUse(t *testing.T) {
	const root = "22 1 %s / / rw - ext4 /dev/root rw\n"
	tests := []struct {
		name, mounts, swaps, number, want string
	}{
		{"idle disk", "", "", "259:0", ""},
		{"mounted itself", fmt.Sprintf(root, "259:0"), "", "259:0", "nvme0n1 is mounted on /"},
		{"a partition of it", fmt.Sprintf(root, "259:1"), "", "259:0", "nvme0n1p1 is mounted on /"},
		{"its disk", fmt.Sprintf(root, "259:0"), "", "259:1", "nvme0n1 is mounted on /"},
		{"a neighbour only", fmt.Sprintf(root, "254:2"), "", "254:1", ""},
		{"a volume on a partition of it", fmt.Sprintf(root, "252:0"), "", "254:0", "dm-0 (vg0-root) is mounted on /"},
		{"an idle volume on it", "", "", "254:2", "dm-0 (vg0-root) is built on vda2"},
		{"the idle volume itself", "", "", "252:0", ""},
		{"part of a RAID", fmt.Sprintf(root, "9:0"), "", "8:16", "md0 is mounted on /"},
		{"swap", "", "/dev/vda1 partition 1 0 -2\n", "254:0", "vda1 is swap"},
		{"a swap file", "", "/dev/vda1 file 1 0 -2\n", "254:1", ""},
		{"btrfs by name", "22 1 0:30 / /data rw - btrfs /dev/nvme0n1p1 rw\n", "", "259:1", "nvme0n1p1 is mounted on /data"},
		{"btrfs by sysfs", "", "", "8:32", "sdc is part of a btrfs"},
		{"other major 0", "22 1 0:30 / /x rw - tmpfs nvme0n1 rw\n", "", "259:0", ""},
		{"not there", "", "", "7:99", "the kernel has no block device 7:99"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			proc, sys := tree(t, tt.mounts, tt.swaps)
			major, minor, _ := parseNumber(tt.number)
			by, ok := InUse(proc, sys, major, minor)
			if by != tt.want || ok != (tt.want != "") {
				t.Errorf("got %q, %v; want %q", by, ok, tt.want)
			}
		})
	}
	t.Run("unreadable mounts count as use", func(t *testing.T) {
		proc, sys := tree(t, "", "")
		testkit.Must(t, os.Remove(filepath.Join(proc, "self/mountinfo")))
		if by, ok := InUse(proc, sys, 259, 0); !ok || !strings.Contains(by, "read mounts") {
			t.Errorf("got %q, %v", by, ok)
		}
	})
}

func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	testkit.Must(t, os.WriteFile(file, nil, 0o600))
	resolve, under := Resolve, Under
	for _, tt := range []struct {
		name string
		find func(sys, path string) (Disk, error)
		path string
		kind refuse.Kind
		want string
	}{
		{"no such device", resolve, dir + "/none", refuse.NotFound, "there is no device " + dir + "/none"},
		{"a file as device", resolve, file, refuse.Invalid, "is not a block device"},
		{"a character device", resolve, "/dev/null", refuse.Invalid, "is not a block device"},
		{"no such folder", under, dir + "/none", refuse.NotFound, "there is no folder"},
		{"proc", under, "/proc", refuse.Cannot, "name the disk with device"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := tt.find("/sys", tt.path)
			if refuse.KindOf(err) != tt.kind || !strings.Contains(fmt.Sprint(err), tt.want) {
				t.Errorf("got %v (kind %d); want %q (kind %d)", err, refuse.KindOf(err), tt.want, tt.kind)
			}
		})
	}
}

// TestThisHost resolves what this host has: the disk under the root folder.
func TestThisHost(t *testing.T) {
	d, err := Under("/sys", "/")
	if refuse.KindOf(err) == refuse.Cannot {
		t.Skip("the root file system has no device: ", err)
	}
	testkit.Must(t, err)
	if _, err := os.Stat("/sys/block/" + d.Name); err != nil {
		t.Errorf("%+v is not a whole disk: %v", d, err)
	}
	by, ok := InUse("/proc", "/sys", d.Major, d.Minor)
	if !ok || !strings.Contains(by, "mounted on") {
		t.Errorf("the disk of / is not in use: %q", by)
	}
	node, err := Resolve("/sys", "/dev/"+d.Name)
	if refuse.KindOf(err) == refuse.NotFound {
		t.Skip("no node in /dev for ", d.Name)
	}
	testkit.Must(t, err)
	if node.Number() != d.Number() {
		t.Errorf("Resolve says %s, Under says %s", node.Number(), d.Number())
	}
	t.Run("claimed", func(t *testing.T) {
		used, err := Claimed("/dev/" + d.Name)
		if errors.Is(err, unix.EPERM) {
			t.Skip("this host lets nobody open its disk: ", err)
		}
		if err != nil || !used {
			t.Errorf("Claimed(/dev/%s) = %v, %v", d.Name, used, err)
		}
	})
}

// TestLoopPartition resolves a partition of a loop device, and opens it exclusively as a mount would.
func TestLoopPartition(t *testing.T) {
	loop := loop.ForTest(t, 16<<20)
	part := addPartition(t, loop, 1, 1<<20, 4<<20)

	name := filepath.Base(loop)
	want := Disk{Name: name, Asked: part, Via: "partition " + name + "p1 of " + name}
	var st unix.Stat_t
	testkit.Must(t, unix.Stat(loop, &st))
	want.Major, want.Minor = unix.Major(st.Rdev), unix.Minor(st.Rdev)
	got, err := Resolve("/sys", part)
	testkit.Must(t, err)
	if len(got.Queues) != 1 || got.Queues[0].Name != name || got.Queues[0].Seq == 0 || got.NoWeight != "" || got.Kind != Loop {
		t.Errorf("a weight acts on %+v %s", got.Queues, got.NoWeight)
	}
	got.Queues, got.Kind = nil, ""
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	link := filepath.Join(t.TempDir(), "by-id")
	testkit.Must(t, os.Symlink(part, link))
	if got, err = Resolve("/sys", link); err != nil || got.Number() != want.Number() {
		t.Errorf("through a link: %+v, %v", got, err)
	}
	if by, ok := InUse("/proc", "/sys", want.Major, want.Minor); ok {
		t.Errorf("idle loop device in use: %s", by)
	}
	testkit.Eventually(t, "nobody holds the idle loop device", func() bool { // udev, or who looks for a free device, may for a moment
		used, err := Claimed(loop)
		testkit.Must(t, err)
		return !used
	})
	fd := -1
	testkit.Eventually(t, "the partition is opened exclusively, as a mount would", func() bool {
		fd, err = unix.Open(part, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
		return !errors.Is(err, unix.EBUSY)
	})
	testkit.Must(t, err)
	defer unix.Close(fd)
	for _, path := range []string{loop, part} {
		if used, err := Claimed(path); err != nil || !used {
			t.Errorf("Claimed(%s) = %v, %v while its partition is", path, used, err)
		}
	}
}
