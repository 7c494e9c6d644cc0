package settings

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"berth/internal/spec/vnode"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
)

// TestMistakes: each mistake is said with its place.
func TestMistakes(t *testing.T) {
	const one = "hosts: [{hosts: [a]}]\n"
	for text, want := range map[string]string{
		"":                              `f:1:1: no settings in this file: at least hosts`,
		"hots: a":                       `f:1:1: hots: unknown key; did you mean hosts?`,
		"fill: few":                     `f:1:1: hosts: missing: the hosts that nodes are made on`,
		one + "fill: full":              `f:2:7: fill: "full" is not allowed: few or spread`,
		one + "addresses: ask":          `f:2:12: addresses: "ask" is not allowed: told or dns`,
		one + "cluster: Site One":       `f:2:10: cluster: "Site One" is no name of a cluster: lower-case letters, digits, '_', '-' and dots`,
		one + "controller: {host: ctl}": `f:1:1: cluster: missing: a slurm.conf names its cluster, and with controller one is made`,
		one + "cluster: c\ncontroller: {address: 192.0.2.1}":      `f:3:13: controller.host: missing: the name of slurmctld's host`,
		one + "cluster: c\ncontroller: {host: ctl, address: a b}": `f:3:34: controller.address: "a b" is no address`,
		one + "user: Slurm":                                                      `f:2:7: user: "Slurm" is not a name: lower-case letters, digits, '.', '_', '@' and '-' between them, at most 63`,
		one + "template: a/b":                                                    `f:2:11: template: "a/b" is not a name: lower-case letters, digits and '-', a letter or digit first and last, at most 48`,
		one + "programs: lib":                                                    `f:2:11: programs: "lib" is no path from the root of the file system, without spaces and signs of slurm.conf`,
		one + "api: {certs: ../x}":                                               `f:2:14: api.certs: "../x" is no path from the root of the file system, without spaces and signs of slurm.conf`,
		one + "programs: \"/a\\nResumeProgram=/b\"":                              `f:2:11: programs: "/a\nResumeProgram=/b" is no path from the root of the file system, without spaces and signs of slurm.conf`,
		one + "warm: 0":                                                          `f:2:7: warm: 0 is not allowed: for no limit leave the key out`,
		one + "power: {idle: 20h}":                                               `f:2:15: power.idle: 20h is not allowed: whole seconds, at most 18h`,
		one + "power: {resume_timeout: 1500ms}":                                  `f:2:25: power.resume_timeout: 1.5s is not allowed: whole seconds, at most 18h`,
		"hosts: [{hosts: []}]":                                                   `f:1:9: hosts[0]: hosts is missing: the names of its hosts`,
		"hosts: [{hosts: [A]}]":                                                  `f:1:18: hosts[0].hosts[0]: "A" is no name of a host: lower-case letters, digits, '-' and dots, the first part at most 42`,
		"hosts:\n- {hosts: [a, b]}\n- {hosts: [b]}":                              `f:3:12: hosts[1].hosts[0]: b is at hosts[0].hosts[1] already`,
		"hosts: [{hosts: [a.x, a.y]}]":                                           `f:1:23: hosts[0].hosts[1]: nodes of a.y and a.x would have the same names: a-01`,
		"hosts: [{hosts: [a], slots: 10001}]":                                    `f:1:29: hosts[0].slots: 10001 is not allowed: 1 to 10000`,
		"hosts: [{hosts: [a], memory: 1KiB}]":                                    `f:1:30: hosts[0].memory: 1KiB is too little: Slurm counts in MiB`,
		"hosts: [{hosts: [a], features: [\"a&b\"]}]":                             `f:1:33: hosts[0].features[0]: "a&b" is not a word: letters, digits, '_', '-' and dots, at most 63`,
		"hosts: [{hosts: [a], features: [x, x]}]":                                `f:1:36: hosts[0].features[1]: x is there twice`,
		"hosts: [{hosts: [a], users: [g, h]}]":                                   `f:1:9: hosts[0]: name is missing: a group with several groups of users has one of its own`,
		"hosts: [{hosts: [a], name: g}, {hosts: [b], users: [g]}]":               `f:1:32: hosts[1]: another group is called g: give this one a name`,
		"hosts: [{hosts: [a], users: [batch]}]":                                  `f:1:9: hosts[0]: give the group a name, or name partitions: batch is the partition of the hosts that are for all`,
		"hosts: [{hosts: [a], name: a-01}]":                                      `f:1:8: hosts: a group is called a-01, as a node of a: Slurm could not tell them apart`,
		one + "leave: [\"a b\"]":                                                 `f:2:9: leave[0]: "a b" is not a word: letters, digits, '_', '-' and dots, at most 63`,
		one + "partitions: [{default: true}]":                                    `f:2:14: partitions[0]: name is missing`,
		one + "partitions: [{name: Default}]":                                    `f:2:21: partitions[0].name: "Default" is no name of a partition: letters, digits, '_', '-' and dots, and not DEFAULT, which is Slurm's own word`,
		one + "partitions: [{name: p}, {name: p}]":                               `f:2:32: partitions[1].name: another partition is called p`,
		one + "partitions: [{name: p, default: true}, {name: q, default: true}]": `f:2:59: partitions[1].default: another partition is the default already`,
		one + "partitions: [{name: p, groups: [x]}]":                             `f:2:33: partitions[0].groups[0]: "x" is no group of hosts: no group has a name`,
		one + "partitions: [{name: p, max_time: 24}]":                            `f:2:34: partitions[0].max_time: "24" is not a limit of time: whole minutes, hours or days (90m, 24h, 7d), Slurm's 7-00:00:00, or unlimited`,
		"hosts: [{hosts: [a], users: [g]}]\npartitions: [{name: p, users: [h]}]": `f:2:31: partitions[0].users: the hosts of g are for g alone, not for h`,
		"hosts: [{hosts: [a], users: [g]}, {hosts: [b], users: [h]}]\npartitions: [{name: p}]": `f:2:14: partitions[0]: its hosts are for different users (g for g; h for h), and a partition has one list of them: give it groups, or users that all its hosts are for`,
		"hosts: [{hosts: [a], users: [g]}, {hosts: [b]}]\npartitions: [{name: p}]":             `f:2:14: partitions[0]: its hosts are for different users (g for g; b for all), and a partition has one list of them: give it groups, or users that all its hosts are for`,
		one + "---\nfill: few": `f:3:1: a second document: the file of settings is one`,
	} {
		_, err := Parse("f", []byte(text))
		if err == nil || err.Error() != want || refuse.KindOf(err) != refuse.Invalid {
			t.Errorf("%q:\n got %v\nwant %s", text, err, want)
		}
	}
}

func read(t *testing.T, text string) *Settings {
	t.Helper()
	l := layout.New(t.TempDir())
	file := filepath.Join(t.TempDir(), "f.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Read(l, file)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestDefaults: the names of the hosts are enough.
func TestDefaults(t *testing.T) {
	s := read(t, "hosts: [{hosts: [a, b]}]")
	s.API.Certs, s.Programs = filepath.Base(s.API.Certs), filepath.Base(s.Programs) // of folders that the test made
	want := &Settings{
		User: "slurm", Template: "worker", Programs: "berth", API: API{Agent: "a", Certs: "slurm"}, Fill: Few, Addresses: Told,
		Power: Power{Idle: vnode.Duration(5 * time.Minute), ResumeTimeout: vnode.Duration(2 * time.Minute), SuspendTimeout: vnode.Duration(time.Minute)},
		Hosts: []Group{{Name: "hosts", Hosts: []string{"a", "b"}, Template: "worker"}}, Partitions: []Partition{{Name: "batch", Default: true, Groups: []string{"hosts"}}},
	}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Error(diff)
	}
	if _, err := Read(layout.New(t.TempDir()), "/nowhere/slurm.yaml"); refuse.KindOf(err) != refuse.NotFound {
		t.Errorf("no file: %v", err)
	}
}

// TestPartitions: hosts that are for some users alone get a partition of these users; others share one.
func TestPartitions(t *testing.T) {
	s := read(t, `hosts:
- {hosts: [a]}
- {hosts: [b], users: [physics]}
- {hosts: [c]}
- {hosts: [d], name: hosts, users: [chem, bio]}
`)
	want := []Partition{
		{Name: "batch", Default: true, Groups: []string{"hosts2", "hosts3"}},
		{Name: "physics", Groups: []string{"physics"}, Users: []string{"physics"}},
		{Name: "hosts", Groups: []string{"hosts"}, Users: []string{"chem", "bio"}},
	}
	if diff := cmp.Diff(want, s.Partitions); diff != "" {
		t.Error(diff)
	}
	s = read(t, "hosts: [{hosts: [a], users: [g]}, {hosts: [b], name: two, users: [g]}, {hosts: [c]}]\npartitions: [{name: p, groups: [g, two], max_time: 36h}, {name: q, users: [g], max_time: 7d}]")
	want = []Partition{{Name: "p", Groups: []string{"g", "two"}, Users: []string{"g"}, MaxTime: "1-12:00:00"}, {Name: "q", Users: []string{"g"}, MaxTime: "7-00:00:00"}}
	if diff := cmp.Diff(want, s.Partitions); diff != "" {
		t.Error(diff)
	}
}

func TestLimit(t *testing.T) {
	for text, want := range map[string]Limit{"90m": "0-01:30:00", "7-00:00:00": "7-00:00:00", "1-12": "1-12", "30:00": "30:00", "Unlimited": "UNLIMITED", "0d": "", "1s": "", "": "", "-5m": "", "5": "", "1-2-3": ""} {
		var l Limit
		if err := l.UnmarshalText([]byte(text)); (err == nil) != (want != "") || l != want {
			t.Errorf("%q: %q, %v", text, l, err)
		}
	}
}

// TestNodeNames: each slot of each host has a name of its own, from which host and slot are found again.
func TestNodeNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		host := rapid.StringMatching(`[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?(\.[a-z]{1,3}){0,2}`).Draw(t, "host")
		slot := rapid.IntRange(1, 10_000).Draw(t, "slot")
		node := NodeName(host, slot)
		if err := vnode.CheckName(node); err != nil {
			t.Fatal(err)
		}
		if prefix, got, ok := SplitNode(node); !ok || prefix != Prefix(host) || got != slot {
			t.Fatalf("%s: %s %d %v", node, prefix, got, ok)
		}
		s := &Settings{Hosts: []Group{{Hosts: []string{"other-01", host}, Slots: slot}}}
		if h, g, err := s.Find(node); err != nil || h != host || g != &s.Hosts[0] {
			t.Fatalf("%s: %s %v", node, h, err)
		}
		if _, _, err := s.Find(NodeName(host, slot+1)); refuse.KindOf(err) != refuse.NotFound {
			t.Fatalf("a slot too many: %v", err)
		}
	})
	for _, bad := range []string{"", "-", "a", "a-", "-01", "a-0", "a-00", "a-1", "a-001", "a-01x", "a-+1", "a.b-01"} {
		if prefix, slot, ok := SplitNode(bad); ok && !strings.Contains(prefix, ".") {
			t.Errorf("%q: %s %d", bad, prefix, slot)
		}
	}
}

// TestSchema: the schema has the keys, and the lists' own.
func TestSchema(t *testing.T) {
	text, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	var s struct {
		Properties map[string]any
		Required   []string
	}
	if err := json.Unmarshal(text, &s); err != nil || s.Properties["hosts"] == nil || s.Properties["power"] == nil || !cmp.Equal(s.Required, []string{"hosts"}) {
		t.Errorf("%v: %s", err, text)
	}
}

// TestDocs: the examples of docs/slurm.md are settings, and its table has all keys.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/slurm.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := strings.Split(string(page), "```yaml\n")[1:]
	for _, e := range examples {
		text, _, _ := strings.Cut(e, "```")
		if _, err := Parse("docs/slurm.md", []byte(text)); err != nil {
			t.Errorf("%v in\n%s", err, text)
		}
	}
	if len(examples) == 0 {
		t.Error("no examples: is the page in its place?")
	}
	for _, of := range []reflect.Type{reflect.TypeFor[Settings](), reflect.TypeFor[Controller](), reflect.TypeFor[API](), reflect.TypeFor[Power](), reflect.TypeFor[Group](), reflect.TypeFor[Partition]()} {
		for f := range of.Fields() {
			key := vnode.FieldKey(f)
			if !strings.Contains(string(page), "`"+key+"`") && !strings.Contains(string(page), "`"+key+"[]`") {
				t.Errorf("docs/slurm.md does not tell of %s of %s", key, of.Name())
			}
		}
	}
}

// TestRanges: many hosts are one word.
func TestRanges(t *testing.T) {
	s := read(t, "hosts: [{hosts: [\"st[09-11].example.org\", x]}]\n")
	if got := strings.Join(s.Hosts[0].Hosts, " "); got != "st09.example.org st10.example.org st11.example.org x" {
		t.Errorf("hosts: %s", got)
	}
	if host, _, err := s.Find("st10-03"); err != nil || host != "st10.example.org" {
		t.Errorf("st10-03 is on %q: %v", host, err)
	}
	if s.API.Agent != "st09.example.org" {
		t.Errorf("agent %s is asked", s.API.Agent)
	}
	for text, want := range map[string]string{
		"hosts: [{hosts: [\"st[1-3\"]}]":                  `f:1:18: hosts[0].hosts[0]: list of nodes "st[1-3": a bracket is not closed`,
		"hosts: [{hosts: [\"st[1-3]\"]}, {hosts: [st2]}]": `f:1:40: hosts[1].hosts[0]: st2 is at hosts[0].hosts[0] already`,
	} {
		if _, err := Parse("f", []byte(text)); err == nil || err.Error() != want {
			t.Errorf("%q: %v", text, err)
		}
	}
}
