package report

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"berth/internal/bench/result"
	"berth/test/testkit"
)

// withMachines is a study whose arms are host, container and machine, with figures that are made up.
func withMachines(t *testing.T, emulated string) *Report {
	t.Helper()
	s := &result.Study{Format: result.Format, MarginPct: 5, Seed: 1, Machine: result.Machine{CPU: "A CPU of made-up figures", Cores: 2, Kernel: "6.18.5"}, Tools: []result.Tool{}}
	noise := rand.New(rand.NewPCG(1, 1))
	add := func(e result.Experiment, host float64, slower map[string]float64) {
		e.Arms = []result.Arm{
			{Name: result.Host, Title: "host"},
			{Name: result.Null, Title: "host, again"},
			{Name: result.Node, Title: "container node", Node: json.RawMessage(`{"name":"c"}`)},
			{Name: result.VirtualMachine, Title: "virtual machine", Node: json.RawMessage(`{"name":"m","kind":"machine"}`), Emulated: emulated},
		}
		e.Design = result.Design{Pairs: 12, RunMillis: 1000}
		for round := 1; round <= e.Design.Pairs; round++ {
			for _, r := range e.Rows {
				for _, a := range e.Arms {
					v, values := host*math.Exp(.01*noise.NormFloat64()), map[string]float64{}
					if by := slower[a.Name]; by > 0 {
						v /= by
					}
					for _, m := range e.Measures {
						if values[m.Name] = v; m.LessIsBetter {
							values[m.Name] = 1e6 / v
						}
					}
					n := len(e.Trials) + 1
					e.Trials = append(e.Trials, result.Trial{Head: result.Head{Seq: n, Row: r.Name, Round: round, Arm: a.Name}, Session: 1, Values: values})
				}
			}
		}
		s.Experiments = append(s.Experiments, e)
	}
	one, two := 1.0, 2.0
	add(result.Experiment{
		About: result.About{Name: "fio-b", Title: "sequential writes by block size", Setting: "one thread", Axis: result.Axis{Label: "block size", Unit: "B"}, Measures: []result.Measure{
			{Name: "iops", Title: "requests", Unit: "1/s", Compared: true}, {Name: "lat_mean_us", Title: "mean latency", Unit: "us", LessIsBetter: true},
		}},
		Rows: []result.Row{
			{Name: "4 KiB", Published: []result.Figure{{Measure: "iops", Host: 90000, Node: 89000, PenaltyPct: 1.1, What: "LXC, 2015", Arm: result.Node}}},
			{Name: "a row with a name that is long", Published: []result.Figure{
				{Measure: "iops", Host: 90000, Node: 89000, PenaltyPct: 1.1, What: "LXC, 2015", Arm: result.Node},
				{Measure: "iops", PenaltyPct: 36, What: "KVM, 2011", Arm: result.VirtualMachine},
			}},
		},
	}, 123456, map[string]float64{result.VirtualMachine: 30})
	add(result.Experiment{
		About: result.About{Name: "cpu", Title: "CPU by stress-ng", Setting: "products of matrices", Axis: result.Axis{Label: "instances"}, Measures: []result.Measure{
			{Name: "ops_per_second", Title: "work", Unit: "1/s", Compared: true},
		}},
		Rows: []result.Row{
			{Name: "1 instance", Value: &one, Published: []result.Figure{{Measure: "ops_per_second", PenaltyPct: 2.5, What: "KVM, 2011", Arm: result.VirtualMachine}}},
			{Name: "2 instances", Value: &two},
		},
		Notes: []string{"published of machines (KVM; another machine, no intervals): 2.5 % of a CPU's work lost"},
	}, 4000, map[string]float64{result.VirtualMachine: 12})
	s.Judge()
	r, err := Of(s, "report")
	testkit.Must(t, err)
	return r
}

// Host, container and machine stand beside each other; where the machine's CPU is emulated, the first line of each form says what its
// figures are good for.
func TestMachinesGolden(t *testing.T) {
	r := withMachines(t, "QEMU, QEMU TCG CPU version 2.5+")
	testkit.Golden(t, "testdata/machines.txt", write(t, r.Text))
	testkit.Golden(t, "testdata/machines.csv", write(t, r.CSV))
	page := strings.Replace(write(t, r.HTML), pageStyle, "STYLE", 1)
	testkit.Golden(t, "testdata/machines.html", regexp.MustCompile(`base64,[A-Za-z0-9+/=]+`).ReplaceAllString(page, "base64,DATA"))
	checkForms(t, r)
	if !strings.Contains(string(r.Raw), `"emulated": "QEMU, QEMU TCG CPU version 2.5+"`) {
		t.Error("the JSON does not say that the arm's CPU is emulated")
	}
	first, _, _ := strings.Cut(write(t, r.Text), "\n")
	if !strings.HasPrefix(first, "MACHINES SHOW FUNCTION, NOT COST") {
		t.Errorf("the first line is %q", first)
	}
	_, body, _ := strings.Cut(page, "<body>")
	if !strings.Contains(strings.SplitN(body, "</p>", 2)[0], "MACHINES SHOW FUNCTION, NOT COST") {
		t.Error("the page does not begin so")
	}
}

// A machine on a CPU of its own is an arm like the others: nothing warns of its figures.
func TestMachinesOnRealCPUs(t *testing.T) {
	r := withMachines(t, "")
	for name, form := range map[string]string{"text": write(t, r.Text), "page": write(t, r.HTML)} {
		if strings.Contains(form, "FUNCTION") {
			t.Errorf("the %s warns of figures that are real", name)
		}
	}
}

// However many arms there are, a line of text has at most 80 columns.
func TestMachinesBesideMoreArms(t *testing.T) {
	for more := range 4 {
		r := withMachines(t, "QEMU")
		for i := range r.Study.Experiments {
			e := &r.Study.Experiments[i]
			for n := range more {
				name := fmt.Sprintf("a-very-long-name-%d", n)
				e.Arms = append(e.Arms, result.Arm{Name: name, Title: name})
				for _, t := range e.Trials {
					if t.Arm == result.Node {
						t.Arm = name
						e.Trials = append(e.Trials, t)
					}
				}
			}
		}
		r.Study.Judge()
		checkForms(t, r)
	}
}

// The comparison of two runs warns of an emulated CPU as each of them does.
func TestMachinesOfTwoRuns(t *testing.T) {
	for _, c := range []struct {
		a, b string
		warn bool
	}{{"QEMU", "", true}, {"", "QEMU", true}, {"", "", false}} {
		r, err := Of(result.Compare(withMachines(t, c.a).Study, withMachines(t, c.b).Study, "a.json", "b.json"), "compare")
		testkit.Must(t, err)
		checkForms(t, r)
		all := write(t, r.Text)
		first, _, _ := strings.Cut(all, "\n")
		if strings.HasPrefix(first, "MACHINES SHOW FUNCTION, NOT COST") != c.warn || strings.Contains(all, "of an emulated CPU") != c.warn || strings.Contains(write(t, r.CSV), "emulated-cpu") != c.warn {
			t.Errorf("%+v:\n%s", c, all)
		}
	}
}

// What other programs used is not known of a machine's trials, and that of the others is told all the same.
func TestConditionsBesideMachines(t *testing.T) {
	pct := func(v float64) *float64 { return &v }
	e := &result.Experiment{Trials: []result.Trial{
		{Head: result.Head{Round: 1, Arm: result.Host}, Conditions: &result.Conditions{StealPct: pct(1), OtherPct: pct(3)}},
		{Head: result.Head{Round: 1, Arm: result.VirtualMachine}, Conditions: &result.Conditions{StealPct: pct(2)}},
	}}
	if got, want := conditions(e), "by the hypervisor 2.00 %, by other programs 3.00 %"; !strings.Contains(got, want) {
		t.Errorf("%q is not in %q", want, got)
	}
}
