package lab_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth/test/lab"
	"berth/test/shares"
)

// moved holds the bytes per second that a node read and wrote, by disk.
type moved map[string][2]float64

func (m moved) read(disk string) float64    { return m[disk][0] }
func (m moved) written(disk string) float64 { return m[disk][1] }

// counted holds the rates of each node in one window, by node.
type counted map[string]moved

// windows are the consecutive windows of one run of the nodes' commands.
type windows []counted

// late returns the percentage of the witness's waits that ended late.
func (w windows) late() float64 { return w[0]["witness"]["late"][0] }

// spare returns what the machine lacked meanwhile.
func (w windows) spare() spare { return spare{w.late(), w[0]["witness"]["others"][0]} }

// row returns how the nodes shared a disk, in each window.
func (w windows) row(names []string, disk string, weights []int) *shares.Row {
	r := &shares.Row{Kind: shares.Share, Started: time.Now().UTC(), Seconds: w[0]["witness"]["window"][0], Late: w.late()}
	for _, weight := range weights {
		r.Asked = append(r.Asked, 100*float64(weight)/float64(sum(weights)))
	}
	for _, one := range w {
		var got []float64
		for _, n := range names {
			got = append(got, one[n].read(disk))
		}
		r.Got = append(r.Got, got)
	}
	return r
}

// rate compares a node's rate on a disk with the rate that was asked for, and returns what is wrong.
func (w windows) rate(t *testing.T, name, node, disk string, what func(moved, string) float64, asked, within float64) (wrong []string) {
	t.Helper()
	r := &shares.Row{Kind: shares.Rate, Name: name, Asked: []float64{asked}, Started: time.Now().UTC(), Seconds: w[0]["witness"]["window"][0], Late: w.late()}
	for _, one := range w {
		r.Got = append(r.Got, []float64{what(one[node], disk)})
	}
	return kept(t, r, r.Within(within))
}

// count runs a command in each node and, when all run, reads the kernel's byte counters over n windows.
func count(t *testing.T, m *lab.VM, n int, each time.Duration, run map[string]string) windows {
	t.Helper()
	script, look := "", "now() { read up rest </proc/uptime; echo now $up; }; look() { now; "
	for n, cmd := range run {
		script += cmd + " >/dev/null 2>/tmp/err." + n + " & pids=\"$pids $!\"\n"
		look += "echo node " + n + "; cat /sys/fs/cgroup/berth/" + n + "/io.stat; "
	}
	m.Write(t, "/tmp/witness.sh", witness)
	others := lab.Others()
	r := m.RunFor(t, time.Duration(n)*each+3*time.Minute, "bash", "-ec", look+"now; }\n"+script+"sleep 2; bash /tmp/witness.sh & w=$!; look; for i in $(seq "+
		fmt.Sprint(n)+"); do sleep "+fmt.Sprint(each.Seconds())+"; look; done; kill $w; wait $w; cat /tmp/witness\n"+
		"for p in $pids; do kill -0 $p || { tail -n 3 /tmp/err.*; echo 'a load has ended' >&2; exit 1; }; done; for p in $pids; do kill $p; done; pkill -KILL -x 'fio|dd' || true\n"+
		"wait $pids || true") // fio with --rate sometimes does not end by SIGTERM
	if r.Code != 0 {
		t.Fatalf("count: exit code %d: %s%s", r.Code, r.Out, r.Err)
	}
	crowd, err := others()
	if err != nil {
		t.Fatal(err)
	}
	numbers := devices(t, m)
	// Each look reads the clock, the nodes' counters, and the clock again.
	var clock []float64
	var looks []counted
	node, late := "", 0.0
	for line := range strings.Lines(r.Out) {
		f := strings.Fields(line)
		switch {
		case len(f) < 2:
		case f[0] == "late":
			n, _ := strconv.ParseFloat(f[1], 64)
			all, _ := strconv.ParseFloat(f[2], 64)
			late = 100 * n / max(all, 1)
		case f[0] == "now":
			at, _ := strconv.ParseFloat(f[1], 64)
			if clock = append(clock, at); len(clock)%2 == 1 {
				looks = append(looks, counted{})
			}
		case f[0] == "node":
			node = f[1]
			looks[len(looks)-1][node] = moved{}
		default:
			for _, name := range numbers[f[0]] {
				looks[len(looks)-1][node][name] = bytesOf(f[1:])
			}
		}
	}
	var all windows
	for i := 1; i < len(looks); i++ {
		// The window runs from the middle of one look to the middle of the next.
		took := (clock[2*i]+clock[2*i+1])/2 - (clock[2*i-2]+clock[2*i-1])/2
		one := counted{"witness": moved{"late": {late}, "others": {crowd}, "window": {each.Seconds()}}}
		for n, disks := range looks[i] {
			one[n] = moved{}
			for disk, v := range disks {
				before := looks[i-1][n][disk]
				one[n][disk] = [2]float64{(v[0] - before[0]) / took, (v[1] - before[1]) / took}
			}
		}
		all = append(all, one)
	}
	if len(all) != n {
		t.Fatalf("%d windows of %d:\n%s", len(all), n, r.Out)
	}
	return all
}

// bytesOf returns rbytes and wbytes of a line of io.stat.
func bytesOf(fields []string) (v [2]float64) {
	for _, kv := range fields {
		key, value, _ := strings.Cut(kv, "=")
		if i := map[string]int{"rbytes": 1, "wbytes": 2}[key]; i > 0 {
			v[i-1], _ = strconv.ParseFloat(value, 64)
		}
	}
	return v
}

// devices maps the number (MAJ:MIN) of each disk or volume to the paths that these tests use for it.
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
