package lab_test

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth/test/lab"
)

// The disks of TestWeights, in the order in which QEMU has them. What is measured is how a disk is shared out, so all of
// them are slow ones: the emulated processors can fill them.
const (
	virtioDisk = "/dev/vdb"
	nvmeDisk   = "/dev/nvme0n1"
	slowBytes  = 20e6 // a second
	slowIOPS   = 400
)

// TestWeights proves block I/O of cgroup v2: weights by BFQ and by io.cost, on a virtio and an NVMe disk and through a
// volume, and that a rate holds for every block size, on volumes, partitions, and for writes through the page cache.
// All bytes are the kernel's count (io.stat) between two readings of its clock.
func TestWeights(t *testing.T) {
	m := start(t, lab.Machine{Disks: []lab.Disk{{Size: 256 << 20}, {Size: 256 << 20, NVMe: true}, {Size: 2 << 30}}})
	for disk := range 2 {
		m.Slow(t, disk, slowBytes, slowIOPS)
	}
	splits := [][]int{{50, 50}, {50, 25, 25}, {40, 20, 20, 20}}
	model := ""
	t.Run("calibrate", func(t *testing.T) { model = calibrate(t, m) })
	t.Run("refused", func(t *testing.T) { refusedWeights(t, m) })
	t.Run("bfq on virtio, iocost on nvme", func(t *testing.T) {
		shares(t, m, bfq, "engine: iocost", splits...) // the model is what the kernel was told
	})
	t.Run("iocost on virtio, bfq on nvme", func(t *testing.T) {
		shares(t, m, "engine: iocost, model: "+model, bfq, splits...)
	})
	t.Run("strict bfq on both", func(t *testing.T) { shares(t, m, strictBFQ, strictBFQ, []int{40, 20, 20, 20}) })
	t.Run("saturated", func(t *testing.T) { saturated(t, m) })
	m.OK(t, "addpart /dev/vdc 1 2048 1228800; addpart /dev/vdc 2 1230848 614400; udevadm settle; pvcreate -q /dev/vdc1 >/dev/null; vgcreate -q vg0 /dev/vdc1 >/dev/null; "+
		"lvcreate -q -an -Zn -L 100M -n raw vg0 >/dev/null; lvcreate -q -an -Zn -L 400M -n xfs vg0 >/dev/null; vgchange -q -ay vg0 >/dev/null; udevadm settle")
	t.Run("volume and partition", func(t *testing.T) { volumes(t, m) })
	t.Run("page cache", func(t *testing.T) { buffered(t, m) })
	t.Run("block sizes", func(t *testing.T) { blockSizes(t, m) })
	if got := m.OK(t, "cat /sys/block/{vdb,vdc,nvme0n1}/queue/scheduler; grep -h enable=1 /sys/fs/cgroup/io.cost.qos || true; ls /run/berth.disks"); strings.Contains(got, "[bfq]") || strings.Contains(got, "enable=1") || strings.Contains(got, ".") {
		t.Errorf("left on the disks:\n%s", got)
	}
}

// calibrate measures the NVMe disk and tells the kernel; the virtio disk is as slow, so that its model is the same.
func calibrate(t *testing.T, m *lab.VM) (model string) {
	text := m.OK(t, "berth doctor --calibrate "+nvmeDisk+" --destroy-data --write --time 1s --size 64MiB")
	t.Log(text)
	model = regexp.MustCompile(`(?m)model: (.*)$`).FindStringSubmatch(text)[1]
	for key, want := range map[string]float64{"rbps": slowBytes, "wbps": slowBytes, "rrandiops": slowIOPS, "wrandiops": slowIOPS} {
		got, _ := strconv.ParseFloat(regexp.MustCompile(`\b` + key + `=(\d+)`).FindStringSubmatch(model)[1], 64)
		if got < 0.5*want || got > 1.1*want {
			t.Errorf("%s is %.0f, the disk does %.0f", key, got, want)
		}
	}
	if got := m.OK(t, "cat /sys/fs/cgroup/io.cost.model"); !strings.Contains(got, "ctrl=user model=linear "+model) {
		t.Errorf("the kernel has the model %q", got)
	}
	return model
}

// refusedWeights: what nothing honours is refused, with exit code 3, and nothing is changed.
func refusedWeights(t *testing.T, m *lab.VM) {
	before := m.OK(t, "cat /sys/block/vdb/queue/scheduler")
	m.OK(t, "dmsetup create hand --table '0 2048 linear /dev/vdc 0'; udevadm settle")
	for _, tt := range []struct{ io, want string }{
		{"device: " + virtioDisk + ", weight: 50", "nothing shares disk vdb out by weight"},
		{"device: " + virtioDisk + ", engine: iocost", "nobody has told io.cost what disk vdb can do"},
		{"device: /dev/mapper/hand, weight: 50", "is not proved; give read and write rates"},
	} {
		m.Write(t, "/root/no.yaml", "name: no\nimage: host\ncommand: [sleep, infinity]\nio: [{name: d, "+tt.io+"}]\n")
		r := m.Run(t, "berth", "apply", "-f", "/root/no.yaml")
		if r.Code != 3 || !strings.Contains(r.Err, tt.want) {
			t.Errorf("%s: exit %d, %s", tt.io, r.Code, r.Err)
		}
	}
	m.OK(t, "dmsetup remove hand")
	if after := m.OK(t, "cat /sys/block/vdb/queue/scheduler; ls /run/berth.disks 2>/dev/null || true"); after != before {
		t.Errorf("a refusal changed %s to %s", before, after)
	}
}

// shares runs readers of both disks in up to four nodes at once, with 16 requests in flight each, and the last split with 64
// too.
func shares(t *testing.T, m *lab.VM, virtio, nvme string, splits ...[]int) {
	names := []string{"a", "b", "c", "d"}
	for _, n := range names {
		node(t, m, fmt.Sprintf("name: %s\nimage: host\ncommand: [sleep, infinity]\ndevices: [%s, %s]\nio:\n- {name: v, device: %s, %s}\n- {name: n, device: %s, %s}\n",
			n, virtioDisk, nvmeDisk, virtioDisk, virtio, nvmeDisk, nvme))
	}
	read := func(n string, depth int) string {
		job := " --name=%s --filename=%s --rw=randread --bs=16k --direct=1 --ioengine=libaio --iodepth=%d --norandommap --time_based --runtime=60"
		return "berth exec " + n + " -- fio --thread" + fmt.Sprintf(job, "v", virtioDisk, depth) + fmt.Sprintf(job, "n", nvmeDisk, depth)
	}
	alone := count(t, m, 5*time.Second, map[string]string{"a": read("a", 16)})["a"]
	splits = append(splits, splits[len(splits)-1])
	for i, weights := range splits {
		depth := 16
		if i == len(splits)-1 {
			depth = 64
		}
		run, set := map[string]string{}, ""
		for i, w := range weights {
			run[names[i]] = read(names[i], depth)
			set += fmt.Sprintf("berth set %s io.v.weight=%d io.n.weight=%d\n", names[i], w, w)
		}
		m.OK(t, set)
		again(t, fmt.Sprintf("%d at %d", weights, depth), 3, func(t *testing.T) (wrong []string, late float64) {
			got := count(t, m, 5*time.Second, run)
			for disk, engine := range map[string]string{virtioDisk: virtio, nvmeDisk: nvme} {
				s, bad := split(got, disk, names, weights)
				lost := 100 * (1 - s.total/alone.read(disk))
				t.Logf("%s %s:%s %%, %.1f %% lost of %.2f MB/s", disk, engine[8:11], s.text, lost, alone.read(disk)/1e6)
				if strings.HasPrefix(engine, bfq) && lost > 8 {
					bad = append(bad, fmt.Sprintf("%s: %.1f %% lost", disk, lost))
				}
				wrong = append(wrong, bad...)
			}
			return wrong, got.late()
		})
	}
	for _, l := range show(t, m, "a").Limits {
		by := map[bool]string{true: "bfq", false: "io.cost"}
		if l.Key == "io.v.weight" && l.HonouredBy != by[strings.HasPrefix(virtio, bfq)] || l.Key == "io.n.weight" && l.HonouredBy != by[strings.HasPrefix(nvme, bfq)] || !l.Holds {
			t.Errorf("show: %+v", l)
		}
	}
}

// The io entries of a disk that is switched to BFQ.
const (
	bfq       = "engine: bfq"
	strictBFQ = bfq + "-strict"
)

// stalled is the percentage of waits that may be late before a miss is the machine's: a node that is not let run asks for
// less than its share, and BFQ leaves a disk idle for 8 ms (slice_idle) only to wait for the next request of a node whose
// turn it is.
const stalled = 5

// witness prints how many waits of 10 ms there were, and how many ended 8 ms late or more, until it is killed.
const witness = `exec 9<> <(:); n=0; late=0; trap 'echo late $late $n >/tmp/witness; exit' TERM
while :; do a=${EPOCHREALTIME/./}; read -t 0.01 -u 9 || true; b=${EPOCHREALTIME/./}; n=$((n+1)); if ((b-a > 18000)); then late=$((late+1)); fi; done
`

// again measures up to so many times, in a test of its own: an emulated machine stands still now and then. The last try
// counts; where too many waits were late in it, what is wrong says nothing.
func again(t *testing.T, name string, tries int, measure func(t *testing.T) (wrong []string, late float64)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		for try := 1; ; try++ {
			wrong, late := measure(t)
			switch {
			case len(wrong) == 0:
				return
			case try < tries:
				t.Logf("%.0f %% of waits late", late)
			case late > stalled:
				t.Skipf("needs a machine with time to spare: %.0f %% of waits of 10 ms came 8 ms late or more, and %s", late, strings.Join(wrong, ", "))
			default:
				t.Fatal(strings.Join(wrong, "\n"))
			}
		}
	})
}

// shared is how a disk was shared out: in all, bytes a second, and the percentages as text.
type shared struct {
	total float64
	text  string
}

// split says how a disk was shared out, and which nodes got more than 5 points more or less than their weight says.
func split(got counted, disk string, names []string, weights []int) (s shared, wrong []string) {
	for i := range weights {
		s.total += got[names[i]].read(disk)
	}
	for i, w := range weights {
		share := 100 * got[names[i]].read(disk) / s.total
		s.text += fmt.Sprintf(" %.1f", share)
		if want := 100 * float64(w) / float64(sum(weights)); math.Abs(share-want) > 5 {
			wrong = append(wrong, fmt.Sprintf("%s: %s got %.1f %%, asked for %.1f", disk, names[i], share, want))
		}
	}
	return s, wrong
}

func sum(list []int) (n int) {
	for _, v := range list {
		n += v
	}
	return n
}

// volumes: a weight acts through a logical volume on the disk that it lies on; a rate holds on the volume itself, and on
// a partition for its whole disk.
func volumes(t *testing.T, m *lab.VM) {
	m.Slow(t, 2, slowBytes, slowIOPS)
	defer m.Slow(t, 2, 0, 0)
	read := func(n, device, depth string) string {
		return "berth exec " + n + " -- fio --thread --name=x --filename=" + device + " --rw=randread --bs=16k --direct=1 --ioengine=libaio --iodepth=" +
			depth + " --norandommap --time_based --runtime=60"
	}
	for i, n := range []string{"a", "b"} {
		node(t, m, fmt.Sprintf("name: %s\nimage: host\ncommand: [sleep, infinity]\ndevices: [/dev/vg0/raw]\nio: [{name: lv, device: /dev/vg0/raw, weight: %d, engine: bfq}]\n",
			n, []int{300, 100}[i]))
	}
	again(t, "weight of a volume", 3, func(t *testing.T) (wrong []string, late float64) {
		got := count(t, m, 5*time.Second, map[string]string{"a": read("a", "/dev/vg0/raw", "16"), "b": read("b", "/dev/vg0/raw", "16")})
		a, b := got["a"].read("/dev/vdc"), got["b"].read("/dev/vdc")
		t.Logf("through the volume: %.1f %% of 75", 100*a/(a+b))
		if share := 100 * a / (a + b); math.Abs(share-75) > 5 {
			wrong = append(wrong, fmt.Sprintf("through the volume: %.1f %%, asked for 75", share))
		}
		return wrong, got.late()
	})
	node(t, m, "name: lv\nimage: host\ncommand: [sleep, infinity]\ndevices: [/dev/vg0/raw]\nio: [{name: lv, device: /dev/vg0/raw, read: {rate: 2MB/s}}]\n")
	node(t, m, "name: part\nimage: host\ncommand: [sleep, infinity]\ndevices: [/dev/vdc2]\nio: [{name: p, device: /dev/vdc2, read: {rate: 2MB/s}}]\n")
	again(t, "rates", 3, func(t *testing.T) (wrong []string, late float64) {
		got := count(t, m, 10*time.Second, map[string]string{"lv": read("lv", "/dev/vg0/raw", "4"), "part": read("part", "/dev/vdc2", "4")})
		wrong = append(wrong, near(t, "rate of a volume", got["lv"].read("/dev/vg0/raw"), 2e6, 0.02)...)
		return append(wrong, near(t, "rate of a partition", got["part"].read("/dev/vdc"), 2e6, 0.02)...), got.late()
	})
}

// buffered: writes through the page cache of ext4 and XFS are limited too, by the bytes that the kernel writes back. With
// memory.max alone the writer is killed now and then: all of its memory is under writeback, and nothing can be taken back.
func buffered(t *testing.T, m *lab.VM) {
	m.OK(t, "mkfs.ext4 -q -F /dev/vdc2; mkfs.xfs -q -f /dev/vg0/xfs; mkdir -p /srv/ext4 /srv/xfs; mount /dev/vdc2 /srv/ext4; mount /dev/vg0/xfs /srv/xfs; chmod 777 /srv/ext4 /srv/xfs")
	defer m.OK(t, "umount /srv/ext4 /srv/xfs")
	disk, run := map[string]string{"ext4": "/dev/vdc", "xfs": "/dev/vg0/xfs"}, map[string]string{}
	for fs := range disk {
		node(t, m, fmt.Sprintf("name: %s\nimage: host\ncommand: [sleep, infinity]\nmemory: {max: 96MiB, high: 80MiB}\nmounts: [{source: /srv/%s, target: /mnt}]\nio: [{name: d, path: /srv/%s, write: {rate: 4MB/s}}]\n",
			fs, fs, fs))
		run[fs] = "berth exec " + fs + " -- sh -c 'while :; do dd if=/dev/zero of=/mnt/file bs=64k count=1600 conv=notrunc; done'"
		if text := m.OK(t, "berth show "+fs); !strings.Contains(text, "writes through the page cache of ") {
			t.Errorf("show does not say that buffered writes count:\n%s", text)
		}
	}
	again(t, "written back", 3, func(t *testing.T) (wrong []string, late float64) {
		got := count(t, m, 30*time.Second, run)
		for fs, d := range disk {
			wrong = append(wrong, near(t, "written back by "+fs, got[fs].written(d), 4e6, 0.05)...)
		}
		return wrong, got.late()
	})
}

// blockSizes: rates hold for requests of 4 KiB to 1 MiB, reads and writes at the same time, beside one to four nodes without
// a limit, which leave the disks headroom. Both disks have all of it at once.
func blockSizes(t *testing.T, m *lab.VM) {
	const free = 1.5e6 // what a node without a limit reads, and writes, of each disk a second: the processors are emulated
	m.Slow(t, 0, 0, 0)
	m.Slow(t, 1, 0, 0)
	load := func(n, block string, rate float64, patterns ...string) string {
		text := "berth exec " + n + " -- fio --thread --rate=" + fmt.Sprintf("%.0f", rate)
		for _, disk := range []string{virtioDisk, nvmeDisk} {
			for _, rw := range patterns {
				text += " --name=x --filename=" + disk + " --rw=" + rw + " --bs=" + block + " --direct=1 --ioengine=libaio --iodepth=4 --time_based --runtime=60"
			}
		}
		return text
	}
	all := []string{"a", "b", "c", "d"}
	for _, n := range all {
		node(t, m, fmt.Sprintf("name: %s\nimage: host\ncommand: [sleep, infinity]\ndevices: [%s, %s]\n", n, virtioDisk, nvmeDisk))
	}
	for i, block := range []string{"4k", "16k", "128k", "1M"} {
		rate := map[bool]float64{true: 10e6, false: 2e6}[block == "1M"]
		io := ""
		for name, disk := range map[string]string{"v": virtioDisk, "n": nvmeDisk} {
			io += fmt.Sprintf("- {name: %s, device: %s, read: {rate: %.0fMB/s}, write: {rate: %.0fMB/s}}\n", name, disk, rate/1e6, rate/1e6)
		}
		n, beside := "limited-"+strings.ToLower(block), all[:i+1]
		node(t, m, fmt.Sprintf("name: %s\nimage: host\ncommand: [sleep, infinity]\ndevices: [%s, %s]\nio:\n%s", n, virtioDisk, nvmeDisk, io))
		run := map[string]string{n: load(n, block, 100e6, "randread", "randwrite")}
		for _, b := range beside {
			run[b] = load(b, "64k", free, "randrw")
		}
		again(t, fmt.Sprintf("%s beside %d free nodes", block, len(beside)), 3, func(t *testing.T) (wrong []string, late float64) {
			got := count(t, m, 10*time.Second, run)
			for _, b := range beside {
				if done := got[b].read(nvmeDisk) + got[b].written(nvmeDisk); done < free {
					wrong = append(wrong, fmt.Sprintf("%s moved %.2f MB/s only", b, done/1e6))
				}
			}
			for _, disk := range []string{virtioDisk, nvmeDisk} {
				wrong = append(wrong, near(t, disk+", reads", got[n].read(disk), rate, 0.02)...)
				wrong = append(wrong, near(t, disk+", writes", got[n].written(disk), rate, 0.02)...)
			}
			return wrong, got.late()
		})
	}
}

func near(t *testing.T, what string, got, want, within float64) (wrong []string) {
	t.Helper()
	text := fmt.Sprintf("%s: %.3f MB/s of %.0f (%+.2f %%)", what, got/1e6, want/1e6, 100*(got/want-1))
	t.Log(text)
	if math.Abs(got/want-1) > within {
		return []string{text}
	}
	return nil
}

// moved is what a node read and wrote a second, by disk.
type moved map[string][2]float64

func (m moved) read(disk string) float64    { return m[disk][0] }
func (m moved) written(disk string) float64 { return m[disk][1] }

// counted is what each node moved, and under "witness" how many percent of waits were late meanwhile.
type counted map[string]moved

func (c counted) late() float64 { return c["witness"]["late"][0] }

// count runs a command in each node, and counts what the kernel did for them in a window that begins when all are at it.
func count(t *testing.T, m *lab.VM, window time.Duration, run map[string]string) counted {
	t.Helper()
	script, look := "", "now() { read up rest </proc/uptime; echo now $up; }; look() { now; "
	for n, cmd := range run {
		script += cmd + " >/dev/null 2>/tmp/err." + n + " & pids=\"$pids $!\"\n"
		look += "echo node " + n + "; cat /sys/fs/cgroup/berth/" + n + "/io.stat; "
	}
	m.Write(t, "/tmp/witness.sh", witness)
	text := m.OK(t, look+"now; }\n"+script+"sleep 2; bash /tmp/witness.sh & w=$!; look; sleep "+fmt.Sprint(window.Seconds())+"; look; kill $w; wait $w; cat /tmp/witness\n"+
		"for p in $pids; do kill -0 $p || { tail -n 3 /tmp/err.*; echo 'a load has ended' >&2; exit 1; }; done; for p in $pids; do kill $p; done; pkill -x 'fio|dd' || true\n"+
		"(sleep 5; pkill -KILL -x 'fio|dd') & k=$!; wait $pids || true; kill $k || true") // fio with --rate was seen not to end
	numbers := devices(t, m)
	var clock []float64
	got, sign, node := counted{}, -1.0, ""
	late := 0.0
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		switch {
		case len(f) < 2:
		case f[0] == "late":
			n, _ := strconv.ParseFloat(f[1], 64)
			all, _ := strconv.ParseFloat(f[2], 64)
			late = 100 * n / max(all, 1)
		case f[0] == "now":
			at, _ := strconv.ParseFloat(f[1], 64)
			if clock = append(clock, at); len(clock) == 3 {
				sign = 1
			}
		case f[0] == "node":
			if node = f[1]; got[node] == nil {
				got[node] = moved{}
			}
		default:
			for _, name := range numbers[f[0]] {
				v := got[node][name]
				for _, kv := range f[1:] {
					key, value, _ := strings.Cut(kv, "=")
					if i := map[string]int{"rbytes": 1, "wbytes": 2}[key]; i > 0 {
						n, _ := strconv.ParseFloat(value, 64)
						v[i-1] += sign * n
					}
				}
				got[node][name] = v
			}
		}
	}
	// Between the middles of the two readings.
	took := (clock[2]+clock[3])/2 - (clock[0]+clock[1])/2
	for _, disks := range got {
		for name, v := range disks {
			disks[name] = [2]float64{v[0] / took, v[1] / took}
		}
	}
	got["witness"] = moved{"late": {late}}
	return got
}

// devices maps the kernel's number of a disk or volume to the paths that these tests know it by.
func devices(t *testing.T, m *lab.VM) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for line := range strings.Lines(m.OK(t, `for d in /dev/vdb /dev/vdc /dev/nvme0n1 /dev/vg0/*; do [ -b $d ] && echo $d $(cat /sys/class/block/$(basename $(readlink -f $d))/dev); done; true`)) {
		if f := strings.Fields(line); len(f) == 2 {
			all[f[1]] = append(all[f[1]], f[0])
		}
	}
	return all
}
