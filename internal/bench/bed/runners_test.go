package bed

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/bench/fio"
	"berth/internal/bench/result"
	"berth/internal/bench/side"
)

func TestDiskCommand(t *testing.T) {
	target := result.Target{Kind: "file", Path: "/a:b/f", Size: 1 << 20}
	for _, c := range []struct {
		name       string
		job        DiskRun
		has, hasNo []string
	}{
		{
			"one thread",
			DiskRun{Job{Pattern: "write", Block: 4096}, []result.Target{target}},
			[]string{"--ioengine=psync", "--iodepth=1", "--numjobs=1", "--time_based", "--ramp_time=50ms", "--allow_file_create=0", `--filename=/a\:b/f`},
			[]string{"--readonly", "--unlink=1"},
		},
		{"deep", DiskRun{Job{Pattern: "randrw", Block: 512, Depth: 8}, []result.Target{target}}, []string{"--ioengine=libaio", "--iodepth=8"}, []string{"--readonly"}},
		{"reads", DiskRun{Job{Pattern: "randread", Block: 512, Threads: 9}, []result.Target{target}}, []string{"--readonly", "--numjobs=9"}, nil},
		{
			"a new file",
			DiskRun{Job{Pattern: "write", Block: 512, Fresh: true}, []result.Target{target}},
			[]string{`--filename=/a\:b/f.new`, "--unlink=1", "--runtime=200ms"},
			[]string{"--time_based", "--allow_file_create=0"},
		},
		{
			"a volume",
			DiskRun{Job{Pattern: "write", Block: 512, Fresh: true}, []result.Target{{Kind: "device", Path: "/dev/x", Size: 1 << 20}}},
			[]string{"--filename=/dev/x", "--allow_file_create=0", "--runtime=200ms"},
			[]string{"--time_based", "--unlink=1", "--create_on_open=1"},
		},
		{"two disks", DiskRun{Job{Pattern: "read", Block: 512}, []result.Target{target, {Path: "/c"}}}, []string{"--name=t0", "--name=t1", "--filename=/c"}, nil},
	} {
		got := c.job.Command(200*time.Millisecond, 50*time.Millisecond)
		for _, want := range c.has {
			if !slices.Contains(got, want) {
				t.Errorf("%s: no %s in %v", c.name, want, got)
			}
		}
		for _, no := range c.hasNo {
			if slices.Contains(got, no) {
				t.Errorf("%s: %s in %v", c.name, no, got)
			}
		}
	}
}

func TestReadResults(t *testing.T) {
	said := `note
{"jobs":[{"error":0,"mixed":{"iops":10.5,"bw_bytes":5376,"total_ios":3,"runtime":300,"lat_ns":{"mean":2000},
"clat_ns":{"percentile":{"50.000000":1000,"90.000000":2000,"99.000000":3000,"99.900000":4000}}}}]}`
	stress := `stress-ng: info:  [5027] setting to a 1 second run per stressor
stress-ng: info:  [5027] dispatching hogs: 2 cpu
stress-ng: metrc: [5027] stressor       bogo ops real time  usr time  sys time   bogo ops/s     bogo ops/s
stress-ng: metrc: [5027]                           (secs)    (secs)    (secs)   (real time) (usr+sys time)
stress-ng: metrc: [5027] cpu                6379      2.00      1.66      0.02      3189.50        3798.46
stress-ng: info:  [5027] successful run completed in 1.00s
`
	for _, c := range []struct {
		name, out string
		read      func(string) (map[string]float64, error)
		want      map[string]float64 // nil: an error
	}{
		{"fio", said, func(s string) (map[string]float64, error) { return fio.Read([]byte(s)) }, map[string]float64{
			"iops": 10.5, "bytes_per_second": 5376, "lat_mean_us": 2, "lat_p50_us": 1, "lat_p90_us": 2, "lat_p99_us": 3, "lat_p999_us": 4,
		}},
		{"fio failed", strings.Replace(said, `"error":0`, `"error":28`, 1), func(s string) (map[string]float64, error) { return fio.Read([]byte(s)) }, nil},
		{"fio did nothing", strings.Replace(said, `"total_ios":3`, `"total_ios":0`, 1), func(s string) (map[string]float64, error) { return fio.Read([]byte(s)) }, nil},
		{"fio was silent", "", func(s string) (map[string]float64, error) { return fio.Read([]byte(s)) }, nil},
		{"stress-ng", stress, readStress, map[string]float64{"ops_per_second": 3189.5}},
		{"stress-ng without a rate", "stress-ng: info: [1] cpu\n", readStress, nil},
		{"stress-ng without time", "stress-ng: metrc: [1] cpu 5 0.00 0 0 0 0\n", readStress, nil},
		{"db12", "2 50.5 25.25 25.2 25.25\n25.0 25.5\n", ReadDB12, map[string]float64{"db12": 50.5}},
		{"db12 without a result", "usage: db12\n", ReadDB12, nil},
		{"db12 was silent", "", ReadDB12, nil},
	} {
		got, err := c.read(c.out)
		if d := cmp.Diff(c.want, got); d != "" || (err != nil) != (c.want == nil) {
			t.Errorf("%s: %v %s", c.name, err, d)
		}
	}
}

func FuzzReadResults(f *testing.F) {
	f.Add(`{"jobs":[{"error":0,"mixed":{"iops":1,"total_ios":3}}]}`)
	f.Add("stress-ng: metrc: [1] cpu 5 1.00 0 0 0 0\n")
	f.Add("2 inf 1 1 1\n")
	f.Add(`{"jobs":[{"steadystate":{"attained":1}}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		for _, read := range []func(string) (map[string]float64, error){
			func(s string) (map[string]float64, error) { return fio.Read([]byte(s)) }, readStress, ReadDB12,
		} {
			if values, err := read(text); err == nil && len(values) == 0 {
				t.Error("neither values nor an error")
			}
		}
		_, _ = fio.ReadSteady([]byte(text))
	})
}

// TestConditionsOfAMachine checks which conditions are read from the kernel: clocks, heat and temperatures, and which are
// absent.
func TestConditionsOfAMachine(t *testing.T) {
	sys := t.TempDir()
	for path, text := range map[string]string{
		"devices/system/cpu/cpu0/cpufreq/scaling_cur_freq":             "3000000",
		"devices/system/cpu/cpu1/cpufreq/scaling_cur_freq":             "1000000",
		"devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "3",
		"devices/system/cpu/cpu1/thermal_throttle/core_throttle_count": "4",
		"class/thermal/thermal_zone0/temp":                             "41000",
		"class/thermal/thermal_zone1/temp":                             "52500",
		"class/thermal/thermal_zone2/temp":                             "no sensor",
	} {
		file := filepath.Join(sys, path)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := side.Clock(sys); got != 2000 {
		t.Errorf("%v MHz", got)
	}
	if got := side.Throttles(sys); got != 7 {
		t.Errorf("throttled %d times", got)
	}
	if got := side.Hottest(filepath.Join(sys, "class/thermal/thermal_zone*/temp")); got != 52.5 {
		t.Errorf("%v degrees", got)
	}
	none := t.TempDir()
	if side.Clock(none) != 0 || side.Throttles(none) != 0 || side.Hottest(filepath.Join(none, "*")) != 0 {
		t.Error("something is read where nothing is")
	}
}

// A busy trial's CPU time is its own, an idle one's is nobody's.
func TestOwnTimeIsNotOthers(t *testing.T) {
	w := side.LookAround()
	if _, err := side.Host(t.Context(), []string{"sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"}); err != nil {
		t.Fatal(err)
	}
	if own := side.OwnTime() - w.Own; own < 10*time.Millisecond {
		t.Errorf("the command is not counted as the trial's own: %v", own)
	}
	if c := w.End(""); c.OtherPct != nil && (*c.OtherPct < 0 || *c.OtherPct > 100) || c.StealPct != nil && *c.StealPct < 0 {
		t.Errorf("%+v", c)
	}
}
