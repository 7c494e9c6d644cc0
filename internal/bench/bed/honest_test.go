package bed

import (
	"slices"
	"strings"
	"testing"

	"berth/internal/bench/result"
)

// TestPublishedAsPrinted checks published figures and designs against the publications.
func TestPublishedAsPrinted(t *testing.T) {
	f := netFigures(1)[0]
	if f.Host != 9.40e9 || f.Node != 9.43e9 || f.Arm != "sriov" || f.PenaltyPct > -.3 || f.PenaltyPct < -.34 {
		t.Errorf("the receiver's figures: %+v", f)
	}
	for _, d := range isolationSet(&Options{}) {
		if of := strings.Contains(d.Source, "PDSW 2015"); of == (d.Name == "isolation-latency") {
			t.Errorf("%s: source %q", d.Name, d.Source)
		}
	}
	for part, want := range map[Part][]string{
		ThrottlePart: {"10 MB/s +3", "10 MB/s +3 16KiB", "40 MB/s +0 16MiB"}, WeightPart: {"50:50 q64", "50:50 q16 16KiB", "40:20:20:20 q16 16MiB"},
	} {
		var names []string
		for _, row := range isolationRows(part, false) {
			names = append(names, row.name)
		}
		for _, w := range want {
			if !slices.Contains(names, w) {
				t.Errorf("part %s has no row %q: %q", part, w, names)
			}
		}
	}
	argv := reads(16<<20, 4).command(result.Target{Path: "/x", Size: 1 << 30}, 1e9, 1e8)
	if !slices.Contains(argv, "--rw=randread:16") || !slices.Contains(argv, "--bs=1048576") || !slices.Contains(argv, "--readonly") {
		t.Errorf("an object of 16 MiB: %q", argv)
	}
	for _, d := range definitions() { // what a setting says of the engine is what runs
		for _, j := range d.Disk {
			engine := "psync"
			if slices.Contains(DiskRun{j, []result.Target{{Path: "/x"}}}.Command(1e9, 0), "--ioengine=libaio") {
				engine = "libaio"
			}
			if mentions := strings.Contains(d.Setting, "libaio") || strings.Contains(d.Setting, "psync"); mentions && !strings.Contains(d.Setting, engine) {
				t.Errorf("%s, %s runs with %s; its setting: %q", d.Name, j.Name, engine, d.Setting)
			}
		}
	}
}
