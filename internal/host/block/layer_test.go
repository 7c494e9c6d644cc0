package block

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/sys/refuse"
	"berth/test/loop"
	"berth/test/testkit"
)

// stack is a host with a device of each kind. Each line has the number and the folder below sys/devices, then files as
// NAME=TEXT and the devices that it is built on as <FOLDER.
const stack = `
8:0 pci/sda queue/scheduler=[none]·mq-deadline·bfq diskseq=1
8:1 pci/sda/sda1 partition=1
8:16 pci/sdb queue/scheduler=mq-deadline·[bfq] diskseq=2
259:0 pci/nvme0n1 queue/scheduler=none
252:0 virtual/dm-0 dm/name=vg0-data dm/uuid=LVM-abc <pci/sda/sda1
252:1 virtual/dm-1 dm/name=vg0-wide dm/uuid=LVM-abd <pci/sda/sda1 <pci/sdb
252:2 virtual/dm-2 dm/name=luks dm/uuid=CRYPT-LUKS2-x <pci/sda/sda1
252:3 virtual/dm-3 dm/name=vg0-thin dm/uuid=LVM-abe <virtual/dm-0
252:4 virtual/dm-4 dm/name=hand dm/uuid= <pci/sdb
252:5 virtual/dm-5 dm/name=zero dm/uuid=LVM-abf
9:0 virtual/md0 md/level=raid1 <pci/sda <pci/sdb
7:0 virtual/loop0 queue/scheduler=[none]·bfq diskseq=9 loop/backing_file=/no/such/file
253:0 virtual/zram0
`

func drawn(t *testing.T) string {
	t.Helper()
	sys := filepath.Join(t.TempDir(), "sys")
	for line := range strings.Lines(strings.TrimSpace(stack)) {
		f := strings.Fields(line)
		dir := filepath.Join(sys, "devices", f[1])
		testkit.Must(t, os.MkdirAll(filepath.Join(sys, "dev/block"), 0o755))
		testkit.Must(t, os.MkdirAll(dir, 0o755))
		testkit.Must(t, os.WriteFile(filepath.Join(dir, "dev"), []byte(f[0]+"\n"), 0o644))
		testkit.Must(t, os.Symlink(dir, filepath.Join(sys, "dev/block", f[0])))
		for _, w := range f[2:] {
			if slave, ok := strings.CutPrefix(w, "<"); ok {
				testkit.Must(t, os.MkdirAll(filepath.Join(dir, "slaves"), 0o755))
				testkit.Must(t, os.Symlink(filepath.Join(sys, "devices", slave), filepath.Join(dir, "slaves", filepath.Base(slave))))
				continue
			}
			name, text, _ := strings.Cut(w, "=")
			testkit.Must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
			testkit.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(strings.ReplaceAll(text, "·", " ")+"\n"), 0o644))
		}
	}
	return sys
}

// TestLayers checks where rates and weights act, for a device of each kind.
func TestLayers(t *testing.T) {
	sys := drawn(t)
	for number, want := range map[string]string{
		"8:0":   "sda disk: rates here; weights on sda",
		"8:1":   "sda1 partition: rates acts on the whole disk sda: the kernel has no limit of a partition; weights on sda",
		"259:0": "nvme0n1 disk: rates here; no weights: nvme0n1 (disk): NVMe multipath: it has no queue of its own (nvme_core.multipath=N on the kernel's command line gives it one)",
		"252:0": "dm-0 (vg0-data) logical volume: rates here; weights on sda",
		"252:1": "dm-1 (vg0-wide) logical volume: rates here; weights on sda sdb",
		"252:2": "dm-2 (luks) encrypted volume: rates here; no weights: dm-2 (luks) (encrypted volume): it has no queue of its own, and whether what it sends to sda1 is still known as the node's is not proved",
		"252:3": "dm-3 (vg0-thin) logical volume: rates here; no weights: dm-3 (vg0-thin) (logical volume): it has no queue of its own, and lies on the logical volume dm-0 (vg0-data)",
		"252:4": "dm-4 (hand) mapped device: rates here; no weights: dm-4 (hand) (mapped device): it has no queue of its own, and whether what it sends to sdb is still known as the node's is not proved",
		"252:5": "dm-5 (zero) logical volume: rates here; no weights: dm-5 (zero) (logical volume): it has no queue of its own",
		"9:0":   "md0 md array: rates here; no weights: md0 (md array): it has no queue of its own, and whether what it sends to sda, sdb is still known as the node's is not proved",
		"7:0":   "loop0 loop device: rates here; weights on loop0",
		"253:0": "zram0 disk: rates here; no weights: zram0 (disk): it takes requests without a queue of its own, so it has no I/O scheduler",
	} {
		major, minor, _ := parseNumber(number)
		d, err := byNumber(sys, major, minor)
		testkit.Must(t, err)
		l, err := d.layer(sys)
		testkit.Must(t, err)
		got := l.Title + " " + string(l.Kind) + ": rates "
		if l.Throttle == "" {
			got += "here"
		}
		got += l.Throttle
		queues, none := l.queues()
		if none != "" {
			got += "; no weights: " + none
		} else {
			got += "; weights on"
			for _, q := range queues {
				got += " " + q.Name
			}
		}
		if got != want {
			t.Errorf("%s:\n got %s\nwant %s", number, got, want)
		}
	}
}

// TestLoopLayers follows a loop device to the disk that holds its file.
func TestLoopLayers(t *testing.T) {
	loop := loop.ForTest(t, 1<<20)
	l, err := Layers("/sys", loop)
	testkit.Must(t, err)
	if l.Kind != Loop || l.Weight != "" || l.Throttle != "" {
		t.Errorf("%+v", l)
	}
	backing := (&device{dir: "/sys/block/" + l.Name}).text("loop/backing_file")
	file, err := Under("/sys", backing)
	if refuse.KindOf(err) == refuse.Cannot {
		t.Skip("no device under the temporary folder: ", err)
	}
	testkit.Must(t, err)
	last := l
	for len(last.Below) > 0 {
		last = last.Below[0]
	}
	if last.Name != file.Name {
		t.Errorf("%s lies on %s, its file on %s", loop, last.Name, file.Name)
	}
	if file.FS == "" {
		t.Errorf("%s lies on no file system", backing)
	}
}

func TestBtrfs(t *testing.T) {
	sys := drawn(t)
	for id, devices := range map[string][]string{"one": {"sdb"}, "two": {"sda", "sdb"}, "none": nil} {
		dir := filepath.Join(sys, "fs/btrfs", id, "devices")
		testkit.Must(t, os.MkdirAll(dir, 0o755))
		for _, name := range devices {
			testkit.Must(t, os.Symlink(filepath.Join(sys, "devices/pci", name), filepath.Join(dir, name)))
		}
	}
	for id, want := range map[string]string{
		"one":  "sdb",
		"two":  "/x lies on a btrfs over several devices: /dev/sda, /dev/sdb; give each of its disks an io entry with device",
		"none": "the kernel names no device of the btrfs none",
	} {
		d, err := underBtrfs(sys, "/x", id)
		got := fmt.Sprint(err)
		if err == nil {
			got = d.name
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", id, diff)
		}
	}
	if id, err := btrfsID("/proc"); err == nil || !strings.Contains(err.Error(), "ask the btrfs of /proc for its id") {
		t.Errorf("of what is no btrfs: %q, %v", id, err)
	}
}
