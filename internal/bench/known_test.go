package bench

import (
	"bytes"
	"context"
	"io"
	"path/filepath"
	"strings"
	"testing"
)

func TestKnownDifference(t *testing.T) {
	o := small(t)
	o.Rows, o.MarginPct = []Row{newRow(RandomRead, 4096, 1)}, 1
	k := Known{Runs: 20, TruePct: 3, Mechanism: "a fake", Name: "m1"}
	for _, c := range []struct {
		name               string
		slower, equal, not float64
		missed             int
	}{
		{"as promised", 970, 1000, 0, 0},
		{"the difference is another", 900, 1000, 0, 1},
		{"the equal arm differs", 970, 900, 0, 2},
		{"no difference is there", 1000, 1000, 0, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			rep, err := KnownDifference(t.Context(), k, o,
				Arms{Host: quiet(1, 1000), Node: quiet(2, c.slower), Null: quiet(3, c.equal)}, func(int, int) {})
			if err != nil {
				t.Fatal(err)
			}
			missed := 0
			for _, p := range rep.Summary.criteria() {
				count(&missed, !p.met())
			}
			if missed != c.missed || (rep.Check() == nil) != (missed == 0) || len(rep.Runs) != 20 || len(rep.Runs[3].Node) != 12 {
				t.Errorf("%d criteria missed, want %d: %+v", missed, c.missed, rep.Summary)
			}
			var b bytes.Buffer
			if err := rep.Text(&b); err != nil || !strings.HasPrefix(b.String(), "machine m1: ") {
				t.Errorf("%v\n%s", err, b.String())
			}
		})
	}
}

// quiet is a disk whose noise is a tenth of fake's, as that of a capped one.
func quiet(seed uint64, iops float64) Arm { return fakeNoise(seed, iops, .002) }

func TestFirstLineOfEmulated(t *testing.T) {
	got := Machine{CPU: "QEMU TCG CPU version 2.5+", Cores: 2, Kernel: "6.12.1"}.firstLine("guest")
	if !strings.HasPrefix(got, "EMULATED machine") {
		t.Error(got)
	}
	m := Machine{CPU: "QEMU TCG CPU version 2.5+"}
	for _, r := range []interface{ Text(io.Writer) error }{
		&Report{Machine: m}, &NetReport{Machine: m, OwnPeer: true}, &Explained{Machine: m}, &Isolation{Machine: m},
		Compare(&Study{}, &Study{Emulated: m.Emulation()}, "a", "b"), Compare(&Study{Emulated: m.Emulation()}, &Study{}, "a", "b"),
	} {
		var b bytes.Buffer
		if err := r.Text(&b); err != nil || !strings.HasPrefix(b.String(), "EMULATED") {
			t.Errorf("%T: %v %s", r, err, b.String())
		}
	}
}

// The command runs in the group, and its arguments arrive as they are.
func TestInGroups(t *testing.T) {
	procs := filepath.Join(t.TempDir(), "cgroup.procs") // a plain file stands for the kernel's
	out, err := InGroups(procs)(t.Context(), []string{"sh", "-c", `cat "$0"; echo $$ "$1"`, procs, `a  "b" $c`})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(out), "\n")
	if want := lines[0] + ` a  "b" $c`; len(lines) != 3 || lines[1] != want {
		t.Errorf("%q: not the process that joined, or not its arguments", out)
	}
	if _, err := InGroups(filepath.Join(t.TempDir(), "gone", "cgroup.procs"))(t.Context(), []string{"true"}); err == nil {
		t.Error("the command runs outside its group")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := InGroups(procs)(ctx, []string{"sleep", "10"}); err == nil {
		t.Error("a cancelled command succeeds")
	}
}
