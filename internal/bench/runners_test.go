package bench

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestDiskCommand(t *testing.T) {
	target := Target{Kind: "file", Path: "/a:b/f", Size: 1 << 20}
	for _, c := range []struct {
		name       string
		job        diskRun
		has, hasNo []string
	}{
		{
			"one thread",
			diskRun{diskJob{Pattern: "write", Block: 4096}, []Target{target}},
			[]string{"--ioengine=psync", "--iodepth=1", "--numjobs=1", "--time_based", "--ramp_time=50ms", "--allow_file_create=0", `--filename=/a\:b/f`},
			[]string{"--readonly", "--unlink=1"},
		},
		{"deep", diskRun{diskJob{Pattern: "randrw", Block: 512, Depth: 8}, []Target{target}}, []string{"--ioengine=libaio", "--iodepth=8"}, []string{"--readonly"}},
		{"reads", diskRun{diskJob{Pattern: "randread", Block: 512, Threads: 9}, []Target{target}}, []string{"--readonly", "--numjobs=9"}, nil},
		{
			"a new file",
			diskRun{diskJob{Pattern: "write", Block: 512, Fresh: true}, []Target{target}},
			[]string{`--filename=/a\:b/f.new`, "--unlink=1", "--runtime=200ms"},
			[]string{"--time_based", "--allow_file_create=0"},
		},
		{
			"a volume",
			diskRun{diskJob{Pattern: "write", Block: 512, Fresh: true}, []Target{{Kind: "device", Path: "/dev/x", Size: 1 << 20}}},
			[]string{"--filename=/dev/x", "--allow_file_create=0", "--runtime=200ms"},
			[]string{"--time_based", "--unlink=1", "--create_on_open=1"},
		},
		{"two disks", diskRun{diskJob{Pattern: "read", Block: 512}, []Target{target, {Path: "/c"}}}, []string{"--name=t0", "--name=t1", "--filename=/c"}, nil},
	} {
		got := c.job.command(200*time.Millisecond, 50*time.Millisecond)
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
	fio := `note
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
		{"fio", fio, func(s string) (map[string]float64, error) { return readFio([]byte(s)) }, map[string]float64{
			"iops": 10.5, "bytes_per_second": 5376, "lat_mean_us": 2, "lat_p50_us": 1, "lat_p90_us": 2, "lat_p99_us": 3, "lat_p999_us": 4,
		}},
		{"fio failed", strings.Replace(fio, `"error":0`, `"error":28`, 1), func(s string) (map[string]float64, error) { return readFio([]byte(s)) }, nil},
		{"fio did nothing", strings.Replace(fio, `"total_ios":3`, `"total_ios":0`, 1), func(s string) (map[string]float64, error) { return readFio([]byte(s)) }, nil},
		{"fio was silent", "", func(s string) (map[string]float64, error) { return readFio([]byte(s)) }, nil},
		{"stress-ng", stress, readStress, map[string]float64{"ops_per_second": 3189.5}},
		{"stress-ng without a rate", "stress-ng: info: [1] cpu\n", readStress, nil},
		{"stress-ng without time", "stress-ng: metrc: [1] cpu 5 0.00 0 0 0 0\n", readStress, nil},
		{"db12", "2 50.5 25.25 25.2 25.25\n25.0 25.5\n", readDB12, map[string]float64{"db12": 50.5}},
		{"db12 without a result", "usage: db12\n", readDB12, nil},
		{"db12 was silent", "", readDB12, nil},
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
	f.Add(`{"start":{"format":"berth-bench-journal/1"}}` + "\n" + `{"trial":{"experiment":"x"}}` + "\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, read := range []func(string) (map[string]float64, error){
			func(s string) (map[string]float64, error) { return readFio([]byte(s)) }, readStress, readDB12,
		} {
			if values, err := read(text); err == nil && len(values) == 0 {
				t.Error("neither values nor an error")
			}
		}
		_, _ = readSteady([]byte(text))
		if lines, err := readJournal([]byte(text)); err == nil {
			j := journal{lines: lines}
			_, s, _ := j.study()
			s.MarginPct = 5
			s.Judge()
		}
	})
}

func TestSane(t *testing.T) {
	inf, _ := readDB12("1 inf\n")
	for _, c := range []struct {
		values map[string]float64
		ok     bool
	}{{map[string]float64{"a": 1}, true}, {map[string]float64{"a": 0}, true}, {map[string]float64{"a": -1}, false}, {inf, false}} {
		if err := sane(c.values); (err == nil) != c.ok {
			t.Errorf("%v: %v", c.values, err)
		}
	}
}

// What the kernel tells of clocks, heat and temperatures, and what it does not.
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
	if got := clock(sys); got != 2000 {
		t.Errorf("%v MHz", got)
	}
	if got := throttles(sys); got != 7 {
		t.Errorf("throttled %d times", got)
	}
	if got := hottest(filepath.Join(sys, "class/thermal/thermal_zone*/temp")); got != 52.5 {
		t.Errorf("%v degrees", got)
	}
	none := t.TempDir()
	if clock(none) != 0 || throttles(none) != 0 || hottest(filepath.Join(none, "*")) != 0 {
		t.Error("something is read where nothing is")
	}
}

// A busy trial's CPU time is its own, an idle one's is nobody's.
func TestOwnTimeIsNotOthers(t *testing.T) {
	w := lookAround()
	if _, err := Host(t.Context(), []string{"sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"}); err != nil {
		t.Fatal(err)
	}
	if own := ownTime() - w.own; own < 10*time.Millisecond {
		t.Errorf("the command is not counted as the trial's own: %v", own)
	}
	if c := w.end(""); c.OtherPct != nil && (*c.OtherPct < 0 || *c.OtherPct > 100) || c.StealPct != nil && *c.StealPct < 0 {
		t.Errorf("%+v", c)
	}
}

// The rule by which trials are flagged looks at conditions only.
func TestDisturbedRule(t *testing.T) {
	e, at := Experiment{}, func(pct float64) *float64 { return &pct }
	add := func(c Conditions) {
		e.Trials = append(e.Trials, StudyTrial{Head: Head{Row: "r", Arm: hostArm, Round: len(e.Trials) + 1}, Values: map[string]float64{"x": 1}, Conditions: c})
	}
	for range 20 {
		add(Conditions{CPUMHz: 3000, OtherPct: at(30)}) // a peer that is always there
	}
	want := [][]string{nil, {"steal"}, {"throttled"}, {"slow-clock"}, {"other-load"}, {"steal", "other-load"}}
	for _, c := range []Conditions{
		{CPUMHz: 2800, StealPct: at(1.9), OtherPct: at(39.9)},
		{StealPct: at(2.1), OtherPct: at(30)},
		{Throttled: 1, OtherPct: at(30)},
		{CPUMHz: 2600, OtherPct: at(30)},
		{OtherPct: at(41)},
		{StealPct: at(50), OtherPct: at(99)},
	} {
		add(c)
	}
	e.disturb()
	for i, tr := range e.Trials {
		var expect []string
		if i >= 20 {
			expect = want[i-20]
		}
		if d := cmp.Diff(expect, tr.Disturbed); d != "" {
			t.Errorf("%+v: %s", tr.Conditions, d)
		}
	}
}
