package bench

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var updateSample = flag.Bool("update-sample", false, "write testdata/study-sample.json again")

const samplePath = "testdata/study-sample.json"

// sampleStudy is a study of made-up figures, for the tests of what prints one.
func sampleStudy(t testing.TB) *Study {
	t.Helper()
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := &Study{
		Format: StudyFormat, Started: start, Ended: start.Add(20 * time.Minute), Berth: "0.5", Seed: 7, MarginPct: 5, Budget: 1200,
		Machine:  Machine{Kernel: "6.18.5", CPU: "A CPU of made-up figures", Cores: 8, Governor: "performance"},
		Tools:    []Tool{{"fio", "fio-3.33"}, {"iperf3", "iperf 3.12"}},
		Sessions: []Session{{Number: 1, Started: start, Ended: start.Add(20 * time.Minute), Resumed: 1}},
		Notes:    []string{"sriov is left out: this host has no network card with virtual functions"},
	}
	r := rand.New(rand.NewPCG(1, 2))
	s.Experiments = []Experiment{sampleDisk(r, start), sampleNet(r, start), sampleStart(r, start), {
		About:   About{Name: "cpu-db12", Title: "CPU by DB12", Question: "How much CPU does a node lose?", Axis: Axis{Label: "instances"}},
		Skipped: "DB12 is not installed (pip install db12)",
	}}
	s.Judge()
	return s
}

// sampleTrials makes trials: base gives a row's value in the reference, factor how many times that an arm has.
func sampleTrials(e *Experiment, r *rand.Rand, start time.Time, pairs int, noise float64, value func(row int, m Measure) float64, factor func(row int, arm string) float64) {
	seq := 0
	for round := range pairs + 1 {
		for row := range e.Rows {
			level := math.Exp(noise / 2 * r.NormFloat64())
			for _, arm := range r.Perm(len(e.Arms)) {
				seq++
				speed := level * factor(row, e.Arms[arm].Name) * math.Exp(noise*r.NormFloat64())
				tr := StudyTrial{
					Head: Head{
						Seq: seq, Row: e.Rows[row].Name, Round: round, Arm: e.Arms[arm].Name,
						Start: start.Add(time.Duration(seq) * time.Second), WallMS: 900,
					},
					Session: 1, Values: map[string]float64{},
					Conditions: Conditions{CPUMHz: 2900 + math.Round(20*r.Float64()), OtherPct: new(math.Round(30*r.Float64()) / 10), StealPct: new(0.0)},
				}
				if seq%41 == 0 {
					tr.Conditions.StealPct = new(6.5)
				}
				for _, m := range e.Measures {
					v := value(row, m)
					if m.LessIsBetter {
						v /= speed
					} else {
						v *= speed
					}
					tr.Values[m.Name] = float64(int(v*1000)) / 1000
				}
				if seq == 90 {
					tr.Values, tr.Error = nil, "run fio: exit status 1: fio: io_u error on file: No space left on device"
				}
				e.Trials = append(e.Trials, tr)
			}
		}
	}
}

func sampleDisk(r *rand.Rand, start time.Time) Experiment {
	e := Experiment{
		About: About{
			Name: "fio-d", Title: "random read by block size", Question: "How much throughput does a node lose in random reads of many threads?",
			Source: "SR-IOV with Linux Containers, CERN openlab / Intel, 2015, table 1", Setting: "512 threads, queue depth 1, direct I/O",
			Axis: Axis{Label: "block size", Unit: "B", Log: true}, Measures: diskMeasures(),
		},
		Arms:    []ArmInfo{{Name: hostArm, Title: "host"}, {Name: nullArm, Title: "host again"}, {Name: nodeArm, Title: "container node", Node: json.RawMessage(`{"name":"bench","image":{"kind":"host"}}`)}},
		Targets: []DiskUsed{{Target{Kind: "file", Path: "/srv/.berth-bench.data", Size: 1 << 30, Written: true, DirectIO: 512}, Disk{Device: "nvme0n1", Model: "MADE-UP 400GB", Rotational: "0", WriteCache: "write through", Scheduler: "none", FileSystem: "xfs", Mount: "/srv", MountOpts: "rw,noatime"}}},
		Design:  Design{Pairs: 16, WantedPairs: 21, PilotPairs: 3, CouldPct: 5.8, Short: true, RunMillis: 1000, WarmMillis: 300, Steady: &Steady{Criterion: "iops_slope:1%", Attained: true, Seconds: 12}},
		Notes:   []string{"read 512 is left out: direct requests come in multiples of 4096 bytes here"},
	}
	host := []float64{497015, 469362, 389633, 206444, 103754, 44451, 14289, 2837}
	for i, iops := range host {
		block := float64(int(1024) << i)
		pub, _ := published(newRow(RandomRead, int64(block), 512))
		e.Rows = append(e.Rows, StudyRow{
			Name: "read " + fmt.Sprint(1<<i) + "K x512", Value: &block, Command: []string{"fio", "--rw=randread", "--bs=" + fmt.Sprint(int(block))},
			Published: []Figure{{Measure: "iops", Host: pub.HostIOPS, Node: pub.NodeIOPS, PenaltyPct: pub.PenaltyPct, What: "LXC, Intel DC P3700, 2015"}},
		})
		_ = iops
	}
	e.Rows[7].Flags = []Flag{SchedulerBound}
	value := func(row int, m Measure) float64 {
		switch m.Name {
		case "iops":
			return host[row]
		case "bytes_per_second":
			return host[row] * *e.Rows[row].Value
		case "lat_p50_us":
			return 0.9e6 * 512 / host[row]
		case "lat_p99_us":
			return 3e6 * 512 / host[row]
		case "lat_p999_us":
			return 6e6 * 512 / host[row]
		}
		return 1e6 * 512 / host[row]
	}
	sampleTrials(&e, r, start, e.Design.Pairs, 0.03, value, func(row int, arm string) float64 {
		if arm == nodeArm {
			return []float64{1, 1, 0.99, 1, 0.97, 0.72, 0.85, 1.09}[row]
		}
		return 1
	})
	return e
}

func sampleNet(r *rand.Rand, start time.Time) Experiment {
	e := Experiment{
		About: About{
			Name: "net-openlab", Title: "network throughput, CPU cost and latency", Question: "What does a node's network cost?",
			Source: "SR-IOV with Linux Containers, CERN openlab / Intel, 2015", Setting: "one TCP stream",
			Axis: Axis{Label: "direction"}, Measures: netMeasures(),
		},
		Arms:   []ArmInfo{{Name: hostArm, Title: "host"}, {Name: nullArm, Title: "host again"}, {Name: "bridge", Title: "node, bridge"}, {Name: "macvlan", Title: "node, macvlan"}},
		Design: Design{Pairs: 6, RunMillis: 1000, WarmMillis: 1000, Published: "20 s after 3 s"},
		Rows:   []StudyRow{{Name: toPeer}, {Name: fromPeer}, {Name: roundTrip}},
		Notes:  []string{"the peer is a node on this machine: no wire was measured"},
	}
	for i := range 2 {
		e.Rows[i].Published = []Figure{{Measure: "bits_per_second", Host: 9.40e9, Node: 9.43e9, PenaltyPct: penalty(math.Log(9.43 / 9.40)), Arm: "sriov", What: "LXC with SR-IOV, Intel 82599ES, 2015"}}
	}
	sampleTrials(&e, r, start, e.Design.Pairs, 0.02, func(_ int, m Measure) float64 {
		return map[string]float64{"bits_per_second": 21e9, "cpu_s_per_gb": 0.41, "p50_us": 17, "p99_us": 44}[m.Name]
	}, func(_ int, arm string) float64 {
		return map[string]float64{"bridge": 0.9, "macvlan": 1.01}[arm] + map[string]float64{hostArm: 1, nullArm: 1}[arm]
	})
	for i := range e.Trials { // as a real one: each row has measures of its own
		t := &e.Trials[i]
		for _, m := range []string{"bits_per_second", "cpu_s_per_gb", "p50_us", "p99_us"} {
			if (t.Row == roundTrip) != (m == "p50_us" || m == "p99_us") {
				delete(t.Values, m)
			}
		}
	}
	return e
}

func sampleStart(r *rand.Rand, start time.Time) Experiment {
	e := Experiment{
		About: About{
			Name: "start", Title: "start of a node", Question: "How long does it take to run a command in a node and remove it?",
			Setting: "/bin/true in a root of busybox", Axis: Axis{Label: "action"},
			Measures: []Measure{{Name: "wall_ms", Title: "time", Unit: "ms", LessIsBetter: true, Compared: true}},
		},
		Arms:   []ArmInfo{{Name: "runc", Title: "runc"}, {Name: nullArm, Title: "runc again"}, {Name: "crun", Title: "crun"}, {Name: "berth", Title: "berth"}},
		Design: Design{Pairs: 30, WantedPairs: 24, PilotPairs: 3, CouldPct: 4.4},
		Rows:   []StudyRow{{Name: "run and remove", Command: []string{"…", "run"}}},
	}
	sampleTrials(&e, r, start, e.Design.Pairs, 0.05, func(int, Measure) float64 { return 24 }, func(_ int, arm string) float64 {
		return map[string]float64{"runc": 1, nullArm: 1, "crun": 1.9, "berth": 0.7}[arm]
	})
	return e
}

// The sample in testdata is what the program makes, and its rows come from its trials.
func TestStudySample(t *testing.T) {
	s := sampleStudy(t)
	var b bytes.Buffer
	if err := s.JSON(&b); err != nil {
		t.Fatal(err)
	}
	if *updateSample {
		if err := os.WriteFile(samplePath, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(samplePath)
	if err != nil {
		t.Fatal(err)
	}
	var read Study
	if err := json.Unmarshal(have, &read); err != nil {
		t.Fatal(err)
	}
	again := read
	again.Experiments = slices.Clone(read.Experiments)
	for i := range again.Experiments {
		again.Experiments[i].Rows = slices.Clone(read.Experiments[i].Rows)
	}
	again.Judge()
	for i, e := range read.Experiments {
		if d := cmp.Diff(e.Rows, again.Experiments[i].Rows); d != "" {
			t.Errorf("%s: the rows are not those of the trials (-file +computed; go test -update-sample?):\n%s", e.Name, d)
		}
	}
}
