package bed

import (
	"testing"

	"berth/internal/bench/result"
)

// Only a disk that is known to turn needs no steady state.
func TestTurns(t *testing.T) {
	for _, c := range []struct {
		disk result.Disk
		want bool
	}{
		{result.Disk{Device: "vda", Rotational: "1"}, false}, // virtio says so of whatever it lies on
		{result.Disk{Device: "loop0", Rotational: "1"}, false},
		{result.Disk{Device: "sda", Model: "QEMU HARDDISK", Rotational: "1"}, false},
		{result.Disk{Device: "sda", Model: "VBOX HARDDISK", Rotational: "1"}, false},
		{result.Disk{Device: "sdb", Model: "ST4000NM0035", Rotational: "1"}, true},
		{result.Disk{Device: "sdb", Model: "INTEL SSDSC2BB48", Rotational: "0"}, false},
		{result.Disk{Device: "nvme0n1", Rotational: "0"}, false},
	} {
		b := Bed{
			Targets: []result.DiskUsed{{Disk: c.disk}},
			Rows:    []Row{{Job: DiskRun{Job{Pattern: "randread"}, nil}}, {Job: DiskRun{Job{Pattern: "write", Block: 4096}, nil}}},
		}
		job, needed := b.needsSteady()
		if c.disk.Turns() != c.want || needed == c.want || needed && job.Block != 4096 {
			t.Errorf("%+v: turns %v, a steady state is tried: %v", c.disk, c.disk.Turns(), needed)
		}
	}
}
