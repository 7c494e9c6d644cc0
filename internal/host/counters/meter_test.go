package counters

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/host"
)

// tree writes files below a temporary folder of the test.
func tree(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// v2Group returns the counters of a group as a 6.12 kernel writes them, with iocost's debug statistics on.
func v2Group() map[string]string {
	return map[string]string{
		"cpu.stat":        "usage_usec 1500\nuser_usec 1000\nnr_throttled 3\nthrottled_usec 250\n",
		"memory.current":  "4096\n",
		"memory.max":      "1073741824\n",
		"memory.events":   "low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\noom_group_kill 0\n",
		"pids.current":    "7\n",
		"cpu.pressure":    "some avg10=1.00 avg60=0.00 avg300=0.00 total=100\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=40\n",
		"memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
		"io.pressure":     "some avg10=0.00 avg60=0.00 avg300=0.00 total=77\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=70\n",
		"io.stat": "259:0 rbytes=8192 wbytes=4096 rios=2 wios=1 dbytes=0 dios=0 cost.usage=12 cost.wait=34 cost.indebt=0\n" +
			"7:1 \n254:0 rbytes=1 wbytes=0 rios=1 wios=0 dbytes=0 dios=0\n",
	}
}

func TestMeterV2(t *testing.T) {
	files := map[string]string{}
	for name, text := range v2Group() {
		files["berth/wn/"+name] = text
	}
	files["berth/wn/node/cpu.stat"] = "usage_usec 1400\nthrottled_usec 260\n" // its period began later than the node's
	h := host.Cgroups{V2: tree(t, files), V2Controllers: []string{"cpu", "io", "memory", "pids"}}
	got, ok := NewMeter(h, false).Read("berth/wn")
	want := Counters{
		CPU: 1500 * time.Microsecond, Throttled: 260 * time.Microsecond, Memory: 4096, MemoryMax: 1 << 30, OOMKills: 1, PIDs: 7,
		Pressure: Pressure{
			CPU: Stall{100 * time.Microsecond, 40 * time.Microsecond},
			IO:  Stall{77 * time.Microsecond, 70 * time.Microsecond},
		},
		Disks: []DiskCount{
			{259, 0, 8192, 4096, 2, 1, 34 * time.Microsecond},
			{254, 0, 1, 0, 1, 0, Unknown},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" || !ok {
		t.Errorf("ok %v, %s", ok, diff)
	}
	if c, ok := NewMeter(h, false).Read("berth/nobody"); ok || c.Disks != nil {
		t.Errorf("a group that is not there was read: %+v", c)
	}
}

func TestMeterV1(t *testing.T) {
	g := "/berth/wn/"
	dir := tree(t, map[string]string{
		"cpuacct" + g + "cpuacct.usage":                           "5000\n",
		"cpu" + g + "cpu.stat":                                    "nr_periods 4\nnr_throttled 2\nthrottled_time 123\n",
		"memory" + g + "memory.usage_in_bytes":                    "4096\n",
		"memory" + g + "memory.limit_in_bytes":                    "9223372036854771712\n",
		"memory" + g + "memory.oom_control":                       "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
		"blkio" + g + "blkio.throttle.io_service_bytes_recursive": "254:0 Read 8192\n254:0 Write 4096\n254:0 Sync 12288\n254:0 Total 12288\nTotal 12288\n",
		"blkio" + g + "blkio.throttle.io_serviced_recursive":      "254:0 Read 2\n254:0 Write 1\nTotal 3\n",
		"blkio" + g + "blkio.bfq.io_service_bytes_recursive":      "7:0 Read 512\n254:0 Read 0\nTotal 512\n",
		"blkio" + g + "blkio.bfq.io_serviced_recursive":           "7:0 Read 1\nTotal 1\n",
		"unified" + g + "io.pressure":                             "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n",
	})
	v1 := map[string]string{}
	for _, c := range []string{"cpuacct", "cpu", "memory", "blkio"} {
		v1[c] = filepath.Join(dir, c)
	}
	h := host.Cgroups{V1: v1, V2: filepath.Join(dir, "unified")}
	got, ok := NewMeter(h, true).Read("berth/wn")
	want := Counters{
		CPU: 5000, Throttled: 123, Memory: 4096, MemoryMax: Unknown, OOMKills: 3, PIDs: Unknown,
		Pressure: Pressure{CPU: noStall(), Memory: noStall(), IO: Stall{5 * time.Microsecond, Unknown}},
		Disks:    []DiskCount{{254, 0, 8192, 4096, 2, 1, Unknown}, {7, 0, 512, 0, 1, 0, Unknown}},
	}
	if diff := cmp.Diff(want, got); diff != "" || !ok {
		t.Errorf("ok %v, %s", ok, diff)
	}
}

// TestMeterOfRoot reads this host's own counters, whichever it has.
func TestMeterOfRoot(t *testing.T) {
	h, err := host.ReadCgroups("/proc")
	if err != nil {
		t.Fatal(err)
	}
	c, ok := NewMeter(h, true).Read(".")
	if !ok || c.CPU <= 0 {
		t.Errorf("ok %v, %+v", ok, c)
	}
	if p := NewMeter(h, false).HostPressure("/proc/pressure"); p.CPU.Some == 0 {
		t.Errorf("pressure of the host: %+v", p)
	}
}

// BenchmarkMeter reads 1,000 groups of plain files. The kernel's own cost is not included (see TestTopOfManyGroups).
func BenchmarkMeter(b *testing.B) {
	files := map[string]string{}
	for i := range 1000 {
		for name, text := range v2Group() {
			files[fmt.Sprintf("berth/wn-%d/%s", i, name)] = text
		}
	}
	m := NewMeter(host.Cgroups{V2: tree(b, files), V2Controllers: []string{"cpu", "io", "memory", "pids"}}, false)
	for b.Loop() {
		for i := range 1000 {
			m.Read(fmt.Sprintf("berth/wn-%d", i))
		}
	}
}

func FuzzMeter(f *testing.F) {
	for _, text := range v2Group() {
		f.Add([]byte(text))
	}
	f.Add([]byte("254:0 Read 8192\nTotal 1\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		files := map[string]string{}
		for name := range v2Group() {
			files["g/"+name] = string(text)
		}
		dir := tree(t, files)
		c, _ := NewMeter(host.Cgroups{V2: dir, V2Controllers: []string{"cpu", "io", "memory", "pids"}}, false).Read("g")
		for _, d := range c.Disks {
			if d.ReadBytes < Unknown || d.WriteBytes < Unknown {
				t.Errorf("%+v", d)
			}
		}
	})
}
