package lab_test

import (
	"fmt"
	"strings"
	"testing"

	"berth/test/lab"
	"berth/test/shares"
)

// saturated measures a node with a rate on a disk that four nodes saturate. A rate alone is only an upper bound, so the node's
// share is just reported. With a weight by io.cost or strict BFQ in addition, the node must get 90 % of its rate or of its
// share by weight, whichever is less. With default BFQ the share is just reported: the other nodes' requests are queued in the
// disk itself, where no scheduler reorders them.
func saturated(t *testing.T, m *lab.VM) {
	const asked = 8e6
	names := []string{"a", "b", "c", "d"}
	run := map[string]string{}
	for _, n := range names {
		job := " --name=%s --filename=%s --rw=randread --bs=64k --direct=1 --ioengine=libaio --iodepth=16 --norandommap --time_based --runtime=600"
		run[n] = "berth exec " + n + " -- fio --thread" + fmt.Sprintf(job, "v", virtioDisk) + fmt.Sprintf(job, "n", nvmeDisk)
	}
	for _, how := range []struct{ name, virtio, nvme string }{
		{"rate alone", "", ""},
		{"rate and weight", ", weight: %d, engine: bfq-strict", ", weight: %d, engine: iocost"},
		{"rate and weight, NVMe by strict BFQ", ", weight: %d, " + bfq, ", weight: %d, engine: bfq-strict"},
	} {
		t.Run(how.name, func(t *testing.T) {
			var specs []string
			for _, n := range names {
				rate, weight := "", 100
				if n == "a" {
					rate, weight = ", read: {rate: 8MB/s}", 300
				}
				io := ""
				for name, disk := range map[string][2]string{"v": {virtioDisk, how.virtio}, "n": {nvmeDisk, how.nvme}} {
					more := disk[1]
					if more != "" {
						more = fmt.Sprintf(more, weight)
					}
					if rate+more != "" {
						io += "- {name: " + name + ", device: " + disk[0] + rate + more + "}\n"
					}
				}
				if io != "" {
					io = "io:\n" + io
				}
				specs = append(specs, fmt.Sprintf("name: %s\nimage: host\ncommand: [sleep, infinity]\ndevices: [%s, %s]\n%s", n, virtioDisk, nvmeDisk, io))
			}
			nodes(t, m, specs...)
			n, each := shares.Windows(shares.Saturated)
			got := count(t, m, n, each, run)
			var wrong []string
			for _, disk := range []string{virtioDisk, nvmeDisk} {
				by := map[string]string{virtioDisk: how.virtio, nvmeDisk: how.nvme}[disk]
				row := got.row(names, disk, []int{1, 1, 1, 1})
				row.Kind, row.Asked = shares.Saturated, []float64{asked, 50}
				row.Name = fmt.Sprintf("rate 8 MB/s on a full disk, %s, %s", kindOf(disk), engineOf(by))
				bad := row.AtLeast(90)
				if by == "" || strings.HasSuffix(by, bfq) {
					bad = nil // only reported
				}
				wrong = append(wrong, kept(t, row, bad)...)
			}
			judged(t, got.spare(), wrong)
		})
	}
}

// engineOf returns a text for the engine in an io entry.
func engineOf(entry string) string {
	if _, name, ok := strings.Cut(entry, "engine: "); ok {
		return "weight 300, " + name
	}
	return "no engine"
}
