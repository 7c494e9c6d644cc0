package slurmconf

import (
	compare "cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"berth/internal/site/slurm/settings"
	"berth/internal/spec/vnode"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

func read(t *testing.T, path string) *settings.Settings {
	t.Helper()
	s, err := settings.Read(layout.New(""), path)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// parse reads settings from their text.
func parse(t *testing.T, text string) *settings.Settings {
	t.Helper()
	path := filepath.Join(t.TempDir(), "slurm.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return read(t, path)
}

// facts of hosts with 64 CPUs and 256 GiB, and a template for small nodes.
func facts(hosts ...string) map[string]Facts {
	all := map[string]Facts{}
	for _, h := range hosts {
		all[h] = Facts{CPUs: 64, Memory: 256 << 30, Slots: 30, Rack: "rack1", Template: &Template{CPUs: 2000, Memory: 4 << 30, Class: "batch", Networks: []string{"bridge"}}}
	}
	return all
}

func none() *There { return &There{keys: map[string]string{}} }

// TestGolden: the files of a site. Those for 22.05 are given to that release's slurmctld by TestSlurmctld. Of 26.05, slurm.conf(5) was
// read (26.05.3), and its list of changes; no slurmctld of 26.05 has read these files. Between the two, the files are those of 22.05
// without PrivateData=cloud: no other release was tried either.
func TestGolden(t *testing.T) {
	s := read(t, "testdata/slurm.yaml")
	for _, v := range []Version{Oldest, Newest} {
		f := facts("st01", "st02.example.org", "st03")
		f["st04"] = Facts{Missing: "it is away"}
		c, err := Make(s, f, v, none())
		if err != nil {
			t.Fatal(err)
		}
		if want := 2*20 + 2 + 120; c.Hosts != 4 || c.Nodes != want {
			t.Errorf("%d hosts, %d nodes, want %d", c.Hosts, c.Nodes, want)
		}
		for _, file := range c.Files {
			testkit.Golden(t, filepath.Join("testdata", v.String(), file.Name), file.Text)
		}
		want := []Note{
			{"st04", "nobody says how many CPUs its nodes have: 1 was taken"},
			{"st04", "nobody says how much memory its nodes have: 1GiB was taken"},
		}
		if v == Oldest {
			want = slices.Insert(want, 0, Note{Text: "Slurm 22.05 weighs only nodes that are there, and takes others by their names, host after host: fill: few goes by the hosts' names, not by their order in slurm.yaml"})
		}
		if diff := cmp.Diff(want, c.Notes); diff != "" || len(c.Conflicts) > 0 {
			t.Errorf("%s\n%v", diff, c.Conflicts)
		}
	}
}

// TestVersions: what slurmctld -V prints, and which releases are too old.
func TestVersions(t *testing.T) {
	for text, want := range map[string]Version{
		"22.05": {22, 5}, "slurm-wlm 22.05.8": {22, 5}, "slurm 26.05.3\n": {26, 5}, "slurm 24.11.0-0rc1": {24, 11},
	} {
		if v, err := ParseVersion(text); err != nil || v != want {
			t.Errorf("%q: %v, %v", text, v, err)
		}
	}
	for text, want := range map[string]refuse.Kind{"": refuse.Invalid, "22": refuse.Invalid, "2205": refuse.Invalid, "192.0.2.1": refuse.Invalid, "slurm 20.11.4": refuse.Cannot} {
		if v, err := ParseVersion(text); refuse.KindOf(err) != want {
			t.Errorf("%q: %v, %v", text, v, err)
		}
	}
	c, err := Make(parse(t, "hosts: [{hosts: [a], slots: 1, cpus: 1, memory: 1GiB}]"), nil, Version{27, 5}, none())
	if err != nil || len(c.Notes) != 2 || !strings.Contains(c.Notes[0].Text, "newer than 26.05") {
		t.Errorf("%+v, %v", c, err)
	}
}

// expand reads a list of nodes as Slurm does: names with one pair of brackets.
func expand(t *rapid.T, list string) (all []string) {
	for list != "" {
		name, rest := list, ""
		if i := strings.IndexAny(list, "[,"); i >= 0 && list[i] == ',' {
			name, rest = list[:i], list[i+1:]
		} else if i >= 0 {
			ranges, after, ok := strings.Cut(list[i+1:], "]")
			if !ok {
				t.Fatalf("no end of brackets: %s", list)
			}
			for r := range strings.SplitSeq(ranges, ",") {
				low, high, two := strings.Cut(r, "-")
				if !two {
					high = low
				}
				var first, last int
				if _, err := fmt.Sscanf(low+" "+high, "%d %d", &first, &last); err != nil || len(low) != len(high) {
					t.Fatalf("%s: %v", r, err)
				}
				for n := first; n <= last; n++ {
					all = append(all, fmt.Sprintf("%s%0*d", list[:i], len(low), n))
				}
			}
			list = strings.TrimPrefix(after, ",")
			continue
		}
		all, list = append(all, name), rest
	}
	return all
}

// TestEverySlotOnce: whatever hosts and slots there are, each slot is one node of Slurm in the lines of nodes, and one in those of
// groups; its host is found again from its name, and the order of weights is that of fill.
func TestEverySlotOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &settings.Settings{Fill: rapid.SampledFrom([]string{settings.Few, settings.Spread}).Draw(t, "fill"), Programs: "/p"}
		want := map[string]string{}
		hosts := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z][a-z0-9-]{0,3}[a-z0-9](\.x)?`), 1, 8, settings.Prefix).Draw(t, "hosts")
		for i, h := range hosts {
			g := settings.Group{Name: fmt.Sprintf("g%d", i), Hosts: []string{h}, Slots: rapid.IntRange(1, 1200).Draw(t, "slots"), CPUs: 1, Memory: 1 << 30}
			s.Hosts = append(s.Hosts, g)
			for n := 1; n <= g.Slots; n++ {
				want[settings.NodeName(h, n)] = h
			}
		}
		s.Partitions = []settings.Partition{{Name: "p"}}
		c, err := Make(s, nil, Oldest, none())
		if err != nil {
			t.Fatal(err)
		}
		seen, grouped, weights := map[string]bool{}, map[string]bool{}, map[string]int{}
		for line := range strings.Lines(c.Files[0].Text) {
			words := strings.Fields(line)
			if len(words) == 0 {
				continue
			}
			key, value, _ := strings.Cut(words[0], "=")
			switch key {
			case "NodeName":
				var weight int
				if _, err := fmt.Sscanf(words[slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "Weight=") })], "Weight=%d", &weight); err != nil {
					t.Fatal(err)
				}
				for _, n := range expand(t, value) {
					if seen[n] {
						t.Fatalf("%s is there twice", n)
					}
					seen[n], weights[n] = true, weight
				}
			case "NodeSet":
				for _, n := range expand(t, strings.TrimPrefix(words[1], "Nodes=")) {
					if grouped[n] {
						t.Fatalf("%s is in two groups", n)
					}
					grouped[n] = true
				}
			}
		}
		var order []string
		for n, host := range want {
			order = append(order, n)
			if h, _, err := s.Find(n); err != nil || h != host || !seen[n] || !grouped[n] {
				t.Fatalf("%s: of %s, %v; in lines %v, in a group %v", n, h, err, seen[n], grouped[n])
			}
		}
		slices.SortFunc(order, func(a, b string) int {
			_, slotA, _ := settings.SplitNode(a)
			_, slotB, _ := settings.SplitNode(b)
			byHost := compare.Compare(slices.Index(hosts, want[a]), slices.Index(hosts, want[b]))
			if s.Fill == settings.Spread {
				return compare.Or(compare.Compare(slotA, slotB), byHost)
			}
			return compare.Or(byHost, compare.Compare(slotA, slotB))
		})
		for i, n := range order {
			if weights[n] != firstWeight+i {
				t.Fatalf("%s is the %d. and weighs %d", n, i, weights[n])
			}
		}
		if len(seen) != len(want) || len(grouped) != len(want) || c.Nodes != len(want) {
			t.Fatalf("%d nodes in lines, %d in groups, %d told, want %d", len(seen), len(grouped), c.Nodes, len(want))
		}
	})
}

// TestSizes: what the settings say is taken, else what the template has, else a part of the host.
func TestSizes(t *testing.T) {
	of := func(text string, f Facts) string {
		t.Helper()
		c, err := Make(parse(t, text), map[string]Facts{"a": f}, Newest, none())
		if err != nil {
			return err.Error()
		}
		out := ""
		for line := range strings.Lines(c.Files[0].Text) {
			if rest, ok := strings.CutPrefix(line, "NodeName=a-01 "); ok { // the others are like it
				out += rest
			}
		}
		for _, n := range c.Notes {
			out += n.Host + ": " + n.Text + "\n"
		}
		return out
	}
	host := Facts{CPUs: 16, Memory: 64 << 30, Slots: 4, Template: &Template{}}
	whole := host
	whole.Template = &Template{CPUs: 1500, Memory: vnode.Bytes(2 << 30), Scratch: 5 << 30, Functions: 2, Class: "storage", Networks: []string{"vf", "bridge", "vf"}}
	odd := host
	odd.Rack, odd.Template = "row 1", nil
	for _, c := range []struct {
		text  string
		facts Facts
		want  string
	}{
		{"hosts: [{hosts: [a]}]", host, "CPUs=4 Sockets=4 CoresPerSocket=1 ThreadsPerCore=1 RealMemory=14745 TmpDisk=0 Gres=\"\" Feature=a,hosts,worker,normal Weight=100 State=CLOUD\n"},
		{"hosts: [{hosts: [a], slots: 1}]", whole, "CPUs=1 Sockets=1 CoresPerSocket=1 ThreadsPerCore=1 RealMemory=2048 TmpDisk=5120 Gres=scratch:5120M,vf:2 Feature=a,hosts,worker,storage,vf,bridge Weight=100 State=CLOUD\n"},
		{"hosts: [{hosts: [a], slots: 2, cpus: 3, memory: 40GiB, scratch: 1GiB, functions: 1}]", whole, "CPUs=3 Sockets=3 CoresPerSocket=1 ThreadsPerCore=1 RealMemory=40960 TmpDisk=1024 Gres=scratch:1024M,vf:1 Feature=a,hosts,worker,storage,vf,bridge Weight=100 State=CLOUD\na: 2 nodes with 40GiB are more than its memory of 64GiB\n"},
		{"hosts: [{hosts: [a], cpus: 1, memory: 1GiB}]", odd, "CPUs=1 Sockets=1 CoresPerSocket=1 ThreadsPerCore=1 RealMemory=1024 TmpDisk=0 Gres=\"\" Feature=a,hosts,worker Weight=100 State=CLOUD\na: it has no template worker: classes, networks and sizes of its nodes are not known\na: \"row 1\" cannot be a feature: Slurm takes letters, digits, '_', '-' and dots\n"},
		{"hosts: [{hosts: [a], cpus: 1, memory: 1GiB}]", Facts{Missing: "it is away"}, "nobody says how many nodes host a takes: slots is not in the settings, and its agent was not heard: it is away; write slots: N into slurm.yaml, or into berthd.yaml of the host"},
		{"hosts: [{hosts: [a]}]", Facts{CPUs: 1}, "nobody says how many nodes host a takes: slots is neither in the settings nor in its agent's file; write slots: N into slurm.yaml, or into berthd.yaml of the host"},
	} {
		if diff := cmp.Diff(c.want, of(c.text, c.facts)); diff != "" {
			t.Errorf("%s: %s", c.text, diff)
		}
	}
}

// TestTooMany: more nodes than Slurm has are refused, also where agents tell how many a host takes.
func TestTooMany(t *testing.T) {
	s := parse(t, "hosts: [{hosts: [a]}]")
	if _, err := Make(s, map[string]Facts{"a": {Slots: 65534, CPUs: 1, Memory: 1 << 40}}, Oldest, none()); refuse.KindOf(err) != refuse.Invalid {
		t.Errorf("%v", err)
	}
}

// BenchmarkMake makes the files of 100 hosts with 20 slots each (make bench-slurm-config).
func BenchmarkMake(b *testing.B) {
	for _, fill := range []string{settings.Few, settings.Spread} {
		b.Run(fill, func(b *testing.B) {
			s := &settings.Settings{Fill: fill, Hosts: []settings.Group{{Name: "hosts", Slots: 20}}, Partitions: []settings.Partition{{Name: "batch", Default: true}}}
			for i := range 100 {
				s.Hosts[0].Hosts = append(s.Hosts[0].Hosts, fmt.Sprintf("st%03d", i+1))
			}
			f := facts(s.Hosts[0].Hosts...)
			for b.Loop() {
				c, err := Make(s, f, Oldest, none())
				if err != nil || c.Nodes != 2000 {
					b.Fatal(c, err)
				}
			}
		})
	}
}
