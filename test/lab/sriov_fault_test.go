package lab_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth/test/built"
	"berth/test/sample"
)

// testKilled kills berth with SIGKILL at fault points from the first to the last at which it handles a virtual function. After
// berth repair all functions are as before.
func testKilled(t *testing.T, a *host) {
	berth := filepath.Join(t.TempDir(), "berth")
	if err := built.Berth(context.Background(), berth, "berthfault"); err != nil {
		t.Fatal(err)
	}
	a.Copy(t, berth, "/usr/local/bin/berth-fault")
	home := a.home(t)
	file := a.vfNode(t, "f", "192.0.2.9", ", vlan: 7")
	for _, c := range []struct{ name, before, command string }{
		{"apply", "", "berth-fault apply -f " + file},
		{"rm", "berth apply -f " + file, "berth-fault rm --force f"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a.OK(t, c.before)
			log := a.OK(t, "rm -f /root/points; BERTH_FAULT_LOG=/root/points "+c.command+" >/dev/null; cat /root/points")
			a.OK(t, "berth rm --force f 2>/dev/null || true")
			points := vfPoints(strings.Split(log, "\n"))
			t.Logf("%d points", len(points))
			for i, stride := sample.Of(t).Sparse().Points(0); i < len(points); i += stride {
				a.OK(t, c.before)
				number, _, _ := strings.Cut(points[i], " ")
				r := a.Run(t, "bash", "-c", "BERTH_FAULT="+number+" "+c.command)
				if r.Code != 137 {
					t.Errorf("killed at %s: exit code %d\n%s%s", points[i], r.Code, r.Out, r.Err)
				}
				said := a.OK(t, "berth repair")
				if a.Run(t, "berth", "show", "f").Code == 0 { // otherwise the functions must be back already
					if state := show(t, a.VM, "f").State; state != "running" {
						t.Errorf("killed at %s, repair said %q, and the node is %s", points[i], said, state)
					}
					a.OK(t, "berth rm --force f")
				}
				if now := a.home(t); !slices.Equal(home, now) {
					t.Fatalf("killed at %s, repair said %q; the functions were\n%s\nand are\n%s", points[i], said, strings.Join(home, "\n"), strings.Join(now, "\n"))
				}
				if out := a.OK(t, "ls /run/berth.vfs; grep /run/berth /proc/mounts || true"); out != "" {
					t.Fatalf("killed at %s; left behind: %s", points[i], out)
				}
			}
		})
	}
}

// vfPoints returns the fault points from the first to the last one that concerns a virtual function.
func vfPoints(all []string) []string {
	first, last := -1, -1
	for i, p := range all {
		if strings.Contains(p, "sriov") || strings.Contains(p, "VF") {
			if first < 0 {
				first = i
			}
			last = i
		}
	}
	if first < 0 {
		panic(fmt.Sprint("no point has to do with a virtual function: ", all))
	}
	return all[first : last+1]
}
