package lab_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"berth/test/lab"
	"berth/test/sample"
	"berth/test/shares"
)

// The disks of TestWeights, in QEMU's order. All of them are slow, so that the emulated CPUs can saturate them.
const (
	virtioDisk = "/dev/vdb"
	nvmeDisk   = "/dev/nvme0n1"
	slowBytes  = 20e6 // a second
	slowIOPS   = 400
)

// TestWeights measures block I/O limits on cgroup v2: weights by BFQ and by io.cost, on a virtio and an NVMe disk and through a
// volume; rates for every block size, on volumes and partitions, and for writes through the page cache. The bytes are the
// kernel's (io.stat), between two readings of its clock.
func TestWeights(t *testing.T) {
	m := start(t, lab.Machine{Disks: []lab.Disk{{Size: 256 << 20}, {Size: 256 << 20, NVMe: true}, {Size: 2 << 30}}})
	for disk := range 2 {
		m.Slow(t, disk, slowBytes, slowIOPS)
	}
	splits := [][]int{{50, 50}, {50, 25, 25}, {40, 20, 20, 20}}
	model := ""
	t.Run("calibrate", func(t *testing.T) { model = calibrate(t, m) })
	t.Run("refused", func(t *testing.T) { refusedWeights(t, m) })
	m.OK(t, "addpart /dev/vdc 1 2048 1228800; addpart /dev/vdc 2 1230848 614400; udevadm settle; pvcreate -q /dev/vdc1 >/dev/null; vgcreate -q vg0 /dev/vdc1 >/dev/null; "+
		"lvcreate -q -an -Zn -L 100M -n raw vg0 >/dev/null; lvcreate -q -an -Zn -L 400M -n xfs vg0 >/dev/null; vgchange -q -ay vg0 >/dev/null; udevadm settle")
	measured := map[string]func(t *testing.T){
		"bfq on virtio, iocost on nvme": func(t *testing.T) {
			sharing(t, m, bfq, "engine: iocost", splits...) // the kernel has the NVMe disk's model from calibrate
		},
		"iocost on virtio, bfq on nvme": func(t *testing.T) { sharing(t, m, "engine: iocost, model: "+model, bfq, splits...) },
		"strict bfq on both":            func(t *testing.T) { sharing(t, m, strictBFQ, strictBFQ, []int{40, 20, 20, 20}) },
		"saturated":                     func(t *testing.T) { saturated(t, m) },
		"volume and partition":          func(t *testing.T) { volumes(t, m) },
		"page cache":                    func(t *testing.T) { buffered(t, m) },
		"block sizes":                   func(t *testing.T) { blockSizes(t, m) },
	}
	for _, name := range sample.Some(sample.Of(t), 4, slices.Sorted(maps.Keys(measured))...) {
		t.Run(name, measured[name])
	}
	if got := m.OK(t, "cat /sys/block/{vdb,vdc,nvme0n1}/queue/scheduler; grep -h enable=1 /sys/fs/cgroup/io.cost.qos || true; ls /run/berth.disks"); strings.Contains(got, "[bfq]") || strings.Contains(got, "enable=1") || strings.Contains(got, ".") {
		t.Errorf("left on the disks:\n%s", got)
	}
}

// calibrate measures the NVMe disk and writes its model to the kernel. The virtio disk is as slow, so the model fits it too.
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

// refusedWeights checks that a weight that nothing enforces is refused with exit code 3, and that nothing is changed.
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

// sharing measures readers of both disks in up to four nodes at once, with 16 requests in flight each; the last split also
// with 64.
func sharing(t *testing.T, m *lab.VM, virtio, nvme string, splits ...[]int) {
	names := []string{"a", "b", "c", "d"}
	var specs []string
	for _, n := range names {
		specs = append(specs, fmt.Sprintf("name: %s\nimage: host\ncommand: [sleep, infinity]\ndevices: [%s, %s]\nio:\n- {name: v, device: %s, %s}\n- {name: n, device: %s, %s}\n",
			n, virtioDisk, nvmeDisk, virtioDisk, virtio, nvmeDisk, nvme))
	}
	nodes(t, m, specs...)
	read := func(n string, depth int) string {
		job := " --name=%s --filename=%s --rw=randread --bs=16k --direct=1 --ioengine=libaio --iodepth=%d --norandommap --time_based --runtime=600"
		return "berth exec " + n + " -- fio --thread" + fmt.Sprintf(job, "v", virtioDisk, depth) + fmt.Sprintf(job, "n", nvmeDisk, depth)
	}
	n, each := shares.Windows(shares.Share)
	alone := count(t, m, n, each, map[string]string{"a": read("a", 16)})
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
		t.Run(fmt.Sprintf("%d at %d", weights, depth), func(t *testing.T) {
			got := count(t, m, n, each, run)
			var wrong []string
			for _, disk := range []string{virtioDisk, nvmeDisk} {
				engine := strings.TrimPrefix(map[string]string{virtioDisk: virtio, nvmeDisk: nvme}[disk], "engine: ")
				engine, _, _ = strings.Cut(engine, ",")
				row := got.row(names[:len(weights)], disk, weights)
				row.Name = fmt.Sprintf("%s, %s, v2, %s, depth %d", engine, kindOf(disk), colons(weights), depth)
				for _, w := range alone {
					row.Alone = append(row.Alone, w["a"].read(disk))
				}
				wrong = append(wrong, kept(t, row, row.Within(5))...)
				if lost, _ := row.Lost(); strings.HasPrefix(engine, "bfq") && lost.Got > 8 {
					wrong = append(wrong, fmt.Sprintf("%s: %.1f %% lost", row.Name, lost.Got))
				}
			}
			judged(t, got.spare(), wrong)
		})
	}
	for _, l := range show(t, m, "a").Limits {
		by := map[bool]string{true: "bfq", false: "io.cost"}
		if l.Key == "io.v.weight" && l.HonouredBy != by[strings.HasPrefix(virtio, bfq)] || l.Key == "io.n.weight" && l.HonouredBy != by[strings.HasPrefix(nvme, bfq)] || !l.Holds {
			t.Errorf("show: %+v", l)
		}
	}
}

// io entries for a disk that is switched to BFQ.
const (
	bfq       = "engine: bfq"
	strictBFQ = bfq + "-strict"
)

// stalled is the percentage of late waits above which a wrong share is blamed on the machine. A node that gets no CPU requests
// less than its share, and BFQ waits only 8 ms (slice_idle) for the next request of a node.
const stalled = 5

// crowded is the percentage of this host's CPUs that other programs and its hypervisor may take: the machine is emulated, and needs them.
const crowded = 10

// spare is what the machine lacked while something was measured.
type spare struct{ late, others float64 } // percent of waits that were late; of this host's CPUs that others took

// witness waits 10 ms again and again until SIGTERM, and then writes how many waits ended 8 ms late or more, and how many there were.
const witness = `exec 9<> <(:); n=0; late=0; trap 'echo late $late $n >/tmp/witness; exit' TERM
while :; do a=${EPOCHREALTIME/./}; read -t 0.01 -u 9 || true; b=${EPOCHREALTIME/./}; n=$((n+1)); if ((b-a > 18000)); then late=$((late+1)); fi; done
`

// judged fails the test if something is wrong, or skips it if the machine lacked time. Nothing is measured again. When rows are
// kept as data, judged does neither.
func judged(t *testing.T, s spare, wrong []string) {
	t.Helper()
	switch {
	case len(wrong) == 0 || shares.Keeps():
	case s.late > stalled || s.others > crowded:
		t.Skipf("needs a machine with time to spare: %.0f %% of waits of 10 ms came 8 ms late or more, others took %.0f %% of this host's CPUs, and %s",
			s.late, s.others, strings.Join(wrong, ", "))
	default:
		t.Fatal(strings.Join(wrong, "\n"))
	}
}

// kept logs a row, stores it if rows are kept as data, and returns wrong.
func kept(t *testing.T, row *shares.Row, wrong []string) []string {
	t.Helper()
	t.Log(row.Text())
	if err := row.Keep("weights-lab.json"); err != nil {
		t.Error(err)
	}
	return wrong
}

func colons(weights []int) string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(weights), "[]"), " ", ":")
}

func kindOf(disk string) string {
	return map[string]string{virtioDisk: "virtio", nvmeDisk: "NVMe"}[disk]
}

func sum(list []int) (n int) {
	for _, v := range list {
		n += v
	}
	return n
}

// volumes checks that a weight on a logical volume acts on the disk below it, that a rate holds on the volume itself, and that
// a rate on a partition holds for its whole disk.
func volumes(t *testing.T, m *lab.VM) {
	m.Slow(t, 2, slowBytes, slowIOPS)
	defer m.Slow(t, 2, 0, 0)
	read := func(n, device, depth string) string {
		return "berth exec " + n + " -- fio --thread --name=x --filename=" + device + " --rw=randread --bs=16k --direct=1 --ioengine=libaio --iodepth=" +
			depth + " --norandommap --time_based --runtime=600"
	}
	const weighted = "name: %s\nimage: host\ncommand: [sleep, infinity]\ndevices: [/dev/vg0/raw]\nio: [{name: lv, device: /dev/vg0/raw, weight: %d, engine: bfq}]\n"
	nodes(t, m, fmt.Sprintf(weighted, "a", 300), fmt.Sprintf(weighted, "b", 100))
	t.Run("weight of a volume", func(t *testing.T) {
		n, each := shares.Windows(shares.Share)
		got := count(t, m, n, each, map[string]string{"a": read("a", "/dev/vg0/raw", "16"), "b": read("b", "/dev/vg0/raw", "16")})
		row := got.row([]string{"a", "b"}, "/dev/vdc", []int{300, 100})
		row.Name = "bfq below a volume, virtio, v2, 300:100, depth 16"
		judged(t, got.spare(), kept(t, row, row.Within(5)))
	})
	nodes(t, m, "name: lv\nimage: host\ncommand: [sleep, infinity]\ndevices: [/dev/vg0/raw]\nio: [{name: lv, device: /dev/vg0/raw, read: {rate: 2MB/s}}]\n",
		"name: part\nimage: host\ncommand: [sleep, infinity]\ndevices: [/dev/vdc2]\nio: [{name: p, device: /dev/vdc2, read: {rate: 2MB/s}}]\n")
	t.Run("rates", func(t *testing.T) {
		n, each := shares.Windows(shares.Rate)
		got := count(t, m, n, each, map[string]string{"lv": read("lv", "/dev/vg0/raw", "4"), "part": read("part", "/dev/vdc2", "4")})
		wrong := got.rate(t, "volume, 2 MB/s, reads", "lv", "/dev/vg0/raw", moved.read, 2e6, 2)
		judged(t, got.spare(), append(wrong, got.rate(t, "partition, 2 MB/s, reads", "part", "/dev/vdc", moved.read, 2e6, 2)...))
	})
}

// buffered checks that writes through the page cache of ext4 and XFS are limited, by the bytes that the kernel writes back. The
// nodes have memory.high: with memory.max alone the writer is sometimes killed when all of its memory is under writeback.
func buffered(t *testing.T, m *lab.VM) {
	m.OK(t, "mkfs.ext4 -q -F /dev/vdc2; mkfs.xfs -q -f /dev/vg0/xfs; mkdir -p /srv/ext4 /srv/xfs; mount /dev/vdc2 /srv/ext4; mount /dev/vg0/xfs /srv/xfs; chmod 777 /srv/ext4 /srv/xfs")
	defer m.OK(t, "umount /srv/ext4 /srv/xfs")
	disk, run := map[string]string{"ext4": "/dev/vdc", "xfs": "/dev/vg0/xfs"}, map[string]string{}
	const spec = "name: %[1]s\nimage: host\ncommand: [sleep, infinity]\nmemory: {max: 96MiB, high: 80MiB}\nmounts: [{source: /srv/%[1]s, target: /mnt}]\nio: [{name: d, path: /srv/%[1]s, write: {rate: 4MB/s}}]\n"
	nodes(t, m, fmt.Sprintf(spec, "ext4"), fmt.Sprintf(spec, "xfs"))
	for fs := range disk {
		run[fs] = "berth exec " + fs + " -- sh -c 'while :; do dd if=/dev/zero of=/mnt/file bs=64k count=1600 conv=notrunc; done'"
		if text := m.OK(t, "berth show "+fs); !strings.Contains(text, "writes through the page cache of ") {
			t.Errorf("show does not say that buffered writes count:\n%s", text)
		}
	}
	t.Run("written back", func(t *testing.T) {
		n, each := shares.Windows(shares.Rate)
		// The kernel writes back in bursts: windows of 30 s have a standard deviation of 2.6 % (docs/evidence/weights-lab.txt).
		got := count(t, m, n, 3*each, run)
		var wrong []string
		for fs, d := range disk {
			wrong = append(wrong, got.rate(t, "page cache, "+fs+", 4 MB/s, writes", fs, d, moved.written, 4e6, 10)...)
		}
		judged(t, got.spare(), wrong)
	})
}

// blockSizes checks rates for requests of 4 KiB to 1 MiB, for concurrent reads and writes on both disks, beside one to four nodes
// without a limit that leave the disks headroom.
func blockSizes(t *testing.T, m *lab.VM) {
	const free = 1.5e6    // bytes per second that a node without a limit reads, and writes, on each disk; small, as the CPUs are emulated
	for disk := range 2 { // and slow again for whatever comes after it
		m.Slow(t, disk, 0, 0)
		defer m.Slow(t, disk, slowBytes, slowIOPS)
	}
	load := func(n, block string, rate float64, patterns ...string) string {
		text := "berth exec " + n + " -- fio --thread --rate=" + fmt.Sprintf("%.0f", rate)
		for _, disk := range []string{virtioDisk, nvmeDisk} {
			for _, rw := range patterns {
				text += " --name=x --filename=" + disk + " --rw=" + rw + " --bs=" + block + " --direct=1 --ioengine=libaio --iodepth=4 --time_based --runtime=600"
			}
		}
		return text
	}
	all, blocks, specs := []string{"a", "b", "c", "d"}, []string{"4k", "16k", "128k", "1M"}, []string{}
	spec := fmt.Sprintf("\nimage: host\ncommand: [sleep, infinity]\ndevices: [%s, %s]\n", virtioDisk, nvmeDisk)
	limit := func(block string) float64 { return map[bool]float64{true: 10e6, false: 2e6}[block == "1M"] }
	for i, n := range all {
		rate, io := limit(blocks[i])/1e6, ""
		for name, disk := range map[string]string{"v": virtioDisk, "n": nvmeDisk} {
			io += fmt.Sprintf("- {name: %s, device: %s, read: {rate: %.0fMB/s}, write: {rate: %.0fMB/s}}\n", name, disk, rate, rate)
		}
		specs = append(specs, "name: "+n+spec, "name: limited-"+strings.ToLower(blocks[i])+spec+"io:\n"+io)
	}
	nodes(t, m, specs...)
	for i, block := range blocks {
		rate, n, beside := limit(block), "limited-"+strings.ToLower(block), all[:i+1]
		run := map[string]string{n: load(n, block, 100e6, "randread", "randwrite")}
		for _, b := range beside {
			run[b] = load(b, "64k", free, "randrw")
		}
		t.Run(fmt.Sprintf("%s beside %d free nodes", block, len(beside)), func(t *testing.T) {
			windows, each := shares.Windows(shares.Rate)
			got := count(t, m, windows, each, run)
			var wrong []string
			for _, b := range beside {
				for _, w := range got {
					if done := w[b].read(nvmeDisk) + w[b].written(nvmeDisk); done < free {
						wrong = append(wrong, fmt.Sprintf("%s moved %.2f MB/s only", b, done/1e6))
					}
				}
			}
			for _, disk := range []string{virtioDisk, nvmeDisk} {
				name := fmt.Sprintf("%s, %.0f MB/s of %s beside %d, ", kindOf(disk), rate/1e6, block, len(beside))
				wrong = append(wrong, got.rate(t, name+"reads", n, disk, moved.read, rate, 2)...)
				wrong = append(wrong, got.rate(t, name+"writes", n, disk, moved.written, rate, 2)...)
			}
			judged(t, got.spare(), wrong)
		})
	}
}
