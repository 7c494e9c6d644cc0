package machine

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/test/loop"
	"berth/test/testkit"
)

// writeRate is the limit of the machine's disk, in bytes a second.
const writeRate = 2_000_000

// TestDisks: what a machine writes to its root and to its scratch volume is kept when it stops and gone with it; its devices have the
// names of the spec and no others; the node's limits hold for what it writes.
func TestDisks(t *testing.T) {
	needs(t)
	own, other := loop.OfSectors(t, 32<<20, 4096), loop.ForTest(t, 16<<20)
	must(t, "pool", "add", "disks", "--dir", t.TempDir())
	t.Cleanup(func() { berth(t, "", "pool", "rm", "disks") })
	file := spec(t, "m5", fmt.Sprintf(`scratch: [{target: /data/own, size: 48MiB, pool: disks, fs: ext4, mode: "0750"}]
devices: [{path: %s, as: /dev/vdb}, {path: %s, as: /dev/by/name, access: r}]
io: [{name: own, device: %s, write: {rate: 2MB/s}}]
`, own, other, own))
	text, err := os.ReadFile(file)
	testkit.Must(t, err)
	testkit.Must(t, os.WriteFile(file, bytes.Replace(text, []byte("delta: {in: memory}"), []byte("delta: {size: 40MiB}"), 1), 0o600))
	word := bytes.Repeat([]byte("word\n"), 1000)
	testkit.Must(t, writeAt(other, word))

	must(t, "apply", "-f", file)
	inside := func(script string) string { t.Helper(); return must(t, "exec", "m5", "--", "sh", "-ec", script) }
	mounts := inside("cat /proc/mounts")
	for _, want := range []string{" /data/own ext4 rw,nosuid,nodev", "overlay / overlay "} {
		if !strings.Contains(mounts, want) {
			t.Errorf("%q is not mounted in the machine:\n%s", want, mounts)
		}
	}
	if out := inside("ls -ld /data/own"); !strings.HasPrefix(out, "drwxr-x---") {
		t.Errorf("the volume is %s", out)
	}
	for name, size := range map[string]string{"/dev/vdb": "32", "/dev/by/name": "16"} {
		if out := inside("dd if=" + name + " of=/dev/null bs=1M 2>&1"); !strings.Contains(out, size+"+0 records in") {
			t.Errorf("%s has not %s MiB: %s", name, size, out)
		}
	}
	if out := inside("blockdev --getss /dev/vdb; blockdev --getss /dev/by/name"); out != "4096\n512\n" {
		t.Errorf("the devices have sectors of %q bytes", out)
	}
	if out := inside("head -c 5 /dev/by/name; ! dd if=/dev/zero of=/dev/by/name bs=512 count=1 2>&1"); !strings.HasPrefix(out, "word\n") {
		t.Errorf("the other device holds %q", out)
	}
	if f, err := os.OpenFile(own, os.O_RDWR|unix.O_EXCL, 0); !errors.Is(err, unix.EBUSY) {
		f.Close()
		t.Errorf("the host can mount a disk of the machine's: %v", err)
	}
	inside("echo root >/kept; echo scratch >/data/own/kept")
	copied := filepath.Join(t.TempDir(), "copied")
	must(t, "cp", "m5:/data/own/kept", copied)
	if b, err := os.ReadFile(copied); string(b) != "scratch\n" || err != nil {
		t.Errorf("cp brings %q: %v", b, err)
	}
	must(t, "cp", copied, "m5:/data/own/copied")
	if out := inside("cat /data/own/copied"); out != "scratch\n" {
		t.Errorf("cp took %q", out)
	}
	if list := exported(t, "m5"); !slices.Contains(list, "kept") || !slices.Contains(list, "data/own/") || slices.Contains(list, "data/own/kept") {
		t.Errorf("exported are %q", list)
	}
	writesInTime(t, inside)
	onlyKnownModels(t, "m5")
	must(t, "set", "m5", "io.own.write.rate=3MB/s")
	if show := must(t, "show", "m5"); !strings.Contains(show, "io.own.write.rate  3MB/s   3MB/s") || !strings.Contains(show, "scratch /data/own") {
		t.Errorf("after set, show says:\n%s", show)
	}

	inside("echo device | dd of=/dev/vdb bs=512 conv=sync; echo last >>/kept") // not synced: the command's end does it
	must(t, "stop", "m5")
	if b, err := os.ReadFile(own); err != nil || !bytes.HasPrefix(b, []byte("device\n")) {
		t.Errorf("the host reads %.20q from the device: %v", b, err)
	}
	must(t, "start", "m5")
	if out := inside("cat /kept /data/own/kept; head -c 7 /dev/vdb"); out != "root\nlast\nscratch\ndevice\n" {
		t.Errorf("after a restart the disks hold %q", out)
	}
	image := filepath.Join(bench.Dir(), "other.erofs")
	testkit.Must(t, os.Link(bench.image, image))
	defer os.Remove(image)
	text, err = os.ReadFile(file)
	testkit.Must(t, err)
	testkit.Must(t, os.WriteFile(file, bytes.Replace(text, []byte(bench.image), []byte(image), 1), 0o600))
	must(t, "apply", "--trust", "--restart", "-f", file)
	if out := inside("cat /data/own/kept; ! ls /kept 2>/dev/null"); out != "scratch\n" {
		t.Errorf("with another image the disks hold %q", out)
	}
	must(t, "rm", "--force", "m5")
	if left, _ := filepath.Glob(filepath.Join(bench.Root, "lib/nodes/m5*")); len(left) > 0 {
		t.Errorf("rm left %v", left)
	}
}

// writeAt writes to a device past the page cache of the host's other openers.
func writeAt(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_SYNC, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write(b)
	return err
}

// writesInTime: by the counters of the group, the machine writes at most 5 % more than its limit allows, and above half of it.
func writesInTime(t *testing.T, inside func(string) string) {
	t.Helper()
	group := groupOf(t)
	if group == "" {
		t.Log("no blkio hierarchy of cgroup v1: the lab shows it")
		return
	}
	inside("dd if=/dev/zero of=/dev/vdb bs=64k oflag=direct </dev/null >/dev/null 2>&1 & echo $! >/data/own/writer")
	defer inside("kill $(cat /data/own/writer)")
	testkit.Eventually(t, "the machine writes", func() bool { return written(t, group) > 256<<10 })
	from, begun := written(t, group), time.Now()
	testkit.Eventually(t, "it has written what it may in two seconds", func() bool { return written(t, group) > from+2*writeRate })
	rate := float64(written(t, group)-from) / time.Since(begun).Seconds()
	// A request of 64 KiB may lie on either end of the window.
	if most := writeRate*1.05 + 64<<10; rate > most || rate < writeRate/2 {
		t.Errorf("the machine wrote %.0f bytes a second; its limit is %d", rate, writeRate)
	}
}

// groupOf returns the machine's group in the hierarchy blkio of cgroup v1, "" where there is none.
func groupOf(t *testing.T) string {
	t.Helper()
	cg, err := host.ReadMounted()
	testkit.Must(t, err)
	at := cg.V1["blkio"]
	if at == "" {
		return ""
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", monitorOf(t, "m5")))
	testkit.Must(t, err)
	for line := range strings.Lines(string(text)) {
		if _, path, ok := strings.Cut(line, "blkio:"); ok {
			return filepath.Join(at, strings.TrimSpace(path))
		}
	}
	t.Fatal("the monitor is in no group of blkio")
	return ""
}

// written returns the bytes that a group has written to all disks.
func written(t *testing.T, group string) (all int64) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(group, "blkio.throttle.io_service_bytes"))
	testkit.Must(t, err)
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[1] == "Write" {
			n, err := strconv.ParseInt(f[2], 10, 64)
			testkit.Must(t, err)
			all += n
		}
	}
	return all
}
