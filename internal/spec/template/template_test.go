package template

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"berth/internal/spec"
	"berth/internal/spec/roles"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// job is a template with one parameter of each type. Its node has all that no parameter may reach.
const job = `description: a batch job
parameters:
  cpus:   {sets: cpu.max, type: number, min: 0.5, max: 4, default: 1, description: CPUs}
  memory: {sets: memory.max, type: size, min: 128MiB, default: 1GiB}
  swap:   {sets: memory.swap, type: size}
  tasks:  {sets: pids, type: integer, min: 16, max: 1000}
  files:  {sets: rlimits.nofile, type: integer}
  read:   {sets: io.data.read.rate, type: rate, min: 1MB/s}
  iops:   {sets: io.data.read.iops, type: integer, max: 5000}
  net:    {sets: net.eth0.tx, type: bitrate}
  image:  {sets: image, type: choice, of: ["oci:debian", "oci:rocky"], default: "oci:debian"}
  queue:  {sets: labels.queue, type: choice, of: [short, long], default: short}
  user:   {sets: env.JOB_USER, type: string, pattern: "[a-z]{1,16}", default: nobody}
  title:  {sets: env.TITLE, type: string, pattern: ".*", length: 40, default: none}
  rank:   {sets: env.RANK, type: integer, min: -1, max: 1023, default: -1}
  script: {sets: "command[1]", type: string, pattern: "/srv/jobs/[a-z0-9]+"}
  args:   {sets: args, type: list, pattern: "[ -~]*", length: 20, words: 3}
node:
  image: oci:debian
  command: [/usr/bin/env, /srv/jobs/none]
  env: {LANG: C.UTF-8}
  env_from: /etc/berth/job.env
  labels: {kind: job}
  cpu: {max: 4}
  memory: {max: 8GiB, swap: 1GiB}
  rlimits: {nofile: 4096}
  io: [{name: data, path: /srv, read: {rate: 100MB/s, iops: 5000}}]
  network: [{mode: nat, rate: {tx: 1Gbit/s}}]
  devices: [/dev/fuse]
  mounts: [{source: /srv/jobs, target: /srv/jobs, read_only: true}]
  users: [{from: 100000, count: 1000, as: same}]
  no_new_privileges: true
`

func parsed(t testing.TB, text string) *Template {
	t.Helper()
	j, err := Parse("/etc/berth/templates/job.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func TestMake(t *testing.T) {
	n, err := parsed(t, job).Make("slurm", "job-17", map[string]any{
		"cpus": "1.5", "memory": "512MiB", "swap": 0, "tasks": float64(64), "read": "10MB/s", "net": "100Mbit/s", "image": "oci:rocky",
		"title": `a "title": {x: &y *z !!t} # no`, "script": "/srv/jobs/a1", "args": []any{"--n", float64(3), "$(x) `y`; z"}, "queue": "long",
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := spec.Marshal(n)
	if err != nil {
		t.Fatal(err)
	}
	want := `name: job-17
image: oci:rocky
command: [/usr/bin/env, /srv/jobs/a1, "--n", "3", "$(x) ` + "`y`" + `; z"]
env: {JOB_USER: nobody, LANG: C.UTF-8, RANK: "-1", TITLE: "a \"title\": {x: &y *z !!t} # no"}
env_from: /etc/berth/job.env
labels: {berth.owner: slurm, berth.template: job, kind: job, queue: long}
cpu: {max: 1.5}
memory: {max: 512MiB, swap: 0}
pids: 64
rlimits: {nofile: 4096}
io:
  - name: data
    path: /srv
    read: {rate: 10MB/s, iops: 5000}
network:
  - mode: nat
    rate: {tx: 100Mbit/s}
devices:
  - /dev/fuse
mounts:
  - source: /srv/jobs
    target: /srv/jobs
    read_only: true
users:
  - from: 100000
    count: 1000
    as: same
no_new_privileges: true
`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
}

// TestMakeAgain checks that one node leaves nothing in the template for the next.
func TestMakeAgain(t *testing.T) {
	j := parsed(t, job)
	first, err := j.Make("ann", "a", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.Make("bob", "b", map[string]any{"user": "bob", "args": []any{"x"}, "cpus": 4, "files": 10, "queue": "long"}); err != nil {
		t.Fatal(err)
	}
	again, err := j.Make("ann", "a", nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, again); diff != "" {
		t.Error(diff)
	}
}

// TestMistakes checks the place and the words of each kind of mistake in a template.
func TestMistakes(t *testing.T) {
	const node = "node: {image: host, command: [/bin/sleep, \"10\"], cpu: {max: 2}}\n"
	for _, c := range []struct{ text, want string }{
		{"", `1:1: no template in this file: at least node, with an image`},
		{"# nothing\n", `1:1: no template in this file: at least node, with an image`},
		{"node: {image: host}\n", `1:7: node.command: missing: image host has no command of its own, for example [/bin/sleep, infinity]`},
		{node + "---\n" + node, `3:1: a second document: a template is one`},
		{"nodes: {}\n" + node, `1:1: nodes: unknown key; did you mean node?`},
		{"node: {name: x, image: host, command: [/bin/true]}\n", `1:14: node.name: not allowed: whoever makes a node names it`},
		{"node: {image: host, command: [/bin/true], labels: {berth.owner: ann}}\n", `1:52: node.labels.berth.owner: not allowed: labels that begin with berth. are Berth's own`},
		{"node: {image: host, command: [/bin/true], cpus: 3}\n", `1:43: node.cpus: unknown key; did you mean cpu?`},
		{"parameters: {Cpus: {sets: cpu.max, type: number}}\n" + node, `1:14: parameters.Cpus: "Cpus" is not the name of a parameter: lower-case letters, digits, '_' and '-' between them, at most 48`},
		{"parameters: {c: {sets: cpu.max, type: nomber}}\n" + node, `1:39: parameters.c.type: "nomber" is not a type: number, integer, size, rate, bitrate, string, choice or list`},
		{"parameters: {c: {sets: cpu.max, typ: number}}\n" + node, `1:33: parameters.c.typ: unknown key; did you mean type?`},
		{"parameters: {c: {sets: cpu.max, type: size}}\n" + node, `1:24: parameters.c.sets: cpu.max takes the type number`},
		{"parameters: {c: {sets: cpu.max, type: number, max: 3}}\n" + node, `1:52: parameters.c.max: 3 is above the template's own 2: limits are only lowered`},
		{"parameters: {c: {sets: cpu.max, type: number, default: 3}}\n" + node, `1:56: parameters.c.default: 3 is above the template's own 2: limits are only lowered`},
		{"parameters: {c: {sets: cpu.max, type: number, min: 2, max: 1}}\n" + node, `1:60: parameters.c.max: 1 is below min 2`},
		{"parameters: {c: {sets: memory.max, type: size}}\n" + node, `1:14: parameters.c.max: missing: without a bound anything could be asked for`},
		{"parameters: {c: {sets: cpu.max, type: number, pattern: x}}\n" + node, `1:56: parameters.c.pattern: does not go with the type number`},
		{"parameters: {c: {sets: env.X, type: string, pattern: \"a)|(b\"}}\n" + node, "1:54: parameters.c.pattern: not a regular expression: error parsing regexp: unexpected ): `a)|(b`"},
		{"parameters: {c: {sets: env.X, type: string, max: 3}}\n" + node, `1:50: parameters.c.max: does not go with the type string`},
		{"parameters: {c: {sets: env.X, type: choice}}\n" + node, `1:14: parameters.c.of: missing: the values to choose from`},
		{"parameters: {c: {sets: image, type: string}}\n" + node, `1:24: parameters.c.sets: image takes the type choice: one of the images that you list`},
		{"parameters: {c: {sets: image, type: choice, of: [host, debian]}}\n" + node, `1:56: parameters.c.of[1]: "debian" is not an image: host, oci:NAME, oci-layout:DIR, dir:PATH or file:PATH`},
		{"parameters: {c: {sets: labels.berth.owner, type: string}}\n" + node, `1:24: parameters.c.sets: labels that begin with berth. are Berth's own`},
		{"parameters: {c: {sets: \"command[2]\", type: string}}\n" + node, `1:24: parameters.c.sets: the template's command has 2 words`},
		{"parameters: {c: {sets: rlimits.nofile, type: integer, max: 9}}\n" + node, `1:24: parameters.c.sets: rlimits.nofile is not in the template's node: its value there is the upper bound`},
		{"parameters: {c: {sets: io.data.read.rate, type: rate, max: 1MB/s}}\n" + node, `1:24: parameters.c.sets: io.data.read.rate is no limit of the template's node`},
		{"parameters: {a: {sets: cpu.max, type: number}, b: {sets: cpu.max, type: number}}\n" + node, `1:58: parameters.b.sets: cpu.max is set by parameter a, too`},
		{"parameters: {a: {sets: command, type: list}, b: {sets: args, type: list}}\n" + node, `1:56: parameters.b.sets: not beside parameter a, which sets the whole command`},
		{"parameters: {a: &x {sets: command, type: list}}\n" + node, `1:17: "&" is not allowed: a spec has no anchors, aliases and merge keys; write the value out, or in quotes if it is text`},
	} {
		_, err := Parse("t.yaml", []byte(c.text))
		want := "t.yaml:" + c.want
		if err == nil || err.Error() != want {
			t.Errorf("%s\ngot  %v\nwant %s", c.text, err, want)
		}
		if _, ok := errors.AsType[spec.Problems](err); !ok || refuse.KindOf(err) != refuse.Invalid {
			t.Errorf("%s\n%T is not Problems of kind Invalid", c.text, err)
		}
	}
}

// TestOnlyTheseFields tries each field of a spec, and things beside it, as what a parameter sets.
func TestOnlyTheseFields(t *testing.T) {
	for _, field := range []string{
		"", "name", "hostname", "class", "user", "env", "env_from", "workdir", "labels", "labels.", "labels.berth.x", "env.", "env.A=B",
		"stop.signal", "stop.grace", "health.command", "restart", "autostart", "cpu", "cpu.set", "cpu.numa", "cpu.idle", "memory",
		"memory.low", "memory.min", "oom_score_adj", "io", "io.data.path", "io.data.engine", "io.none.read.rate", "network", "net.eth0.mac",
		"network[0].mode", "net.eth0.address", "devices", "devices[0]", "devices.add", "device.add", "mounts", "mounts[0].source",
		"mounts[0].read_only", "tmpfs", "sysctls", "sysctls.net.core.somaxconn", "scratch", "scratch[0].size", "delta.size", "users",
		"users[0].from", "no_new_privileges", "user_namespace", "unsafe", "devices[0].unsafe", "rlimits.nproc", "hugepages.2MiB",
		"command[-1]", "command[01]", "command[9]", "command[", "args[0]", "image.kind", "IMAGE", "env_from.", "../image", "cpu.max ",
	} {
		for _, kind := range types() {
			j := parsed(t, job)
			p := &Parameter{Sets: field, Type: kind}
			switch {
			case kind == Choice:
				p.Of = []Text{"1"}
			case kind.ordered():
				p.Max = new(Text)
				*p.Max = map[Type]Text{Number: "1", Integer: "1", Size: "1KiB", Rate: "1kB/s", BitRate: "1kbit/s"}[kind]
			}
			if _, msg := p.wrong(&j.Node); msg == "" {
				t.Errorf("a parameter of type %s may set %q", kind, field)
			}
		}
	}
}

// TestFiles checks whose files are read.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "job.yaml")
	write := func() {
		_ = os.Remove(path)
		if err := os.WriteFile(path, []byte(job), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write()
	if j, err := Read(dir, "job"); err != nil || j.Name != "job" {
		t.Fatalf("%v", err)
	}
	if all, err := Names(dir); err != nil || cmp.Diff([]string{"job"}, all) != "" {
		t.Errorf("names %v, %v", all, err)
	}
	if all, err := Names(filepath.Join(dir, "none")); err != nil || len(all) != 0 {
		t.Errorf("names of no folder %v, %v", all, err)
	}
	for name, c := range map[string]struct {
		spoil func() error
		kind  refuse.Kind
	}{
		"group may write":  {func() error { return os.Chmod(path, 0o664) }, refuse.Cannot},
		"all may write":    {func() error { return os.Chmod(path, 0o646) }, refuse.Cannot},
		"another's":        {func() error { return os.Chown(path, 12345, 0) }, refuse.Cannot},
		"folder of all":    {func() error { return os.Chmod(dir, 0o777) }, refuse.Cannot},
		"a folder":         {func() error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o755)) }, refuse.Cannot},
		"a symbolic link":  {func() error { return errors.Join(os.Remove(path), os.Symlink("/etc/hostname", path)) }, refuse.Failed},
		"none":             {func() error { return os.Remove(path) }, refuse.NotFound},
		"another's folder": {func() error { return os.Chown(dir, 12345, 0) }, refuse.Cannot},
	} {
		if err := c.spoil(); err != nil {
			testkit.NeedsRoot(t) // to give files away
			t.Fatal(err)
		}
		if _, err := Read(dir, "job"); refuse.KindOf(err) != c.kind {
			t.Errorf("%s: %v", name, err)
		}
		if err := errors.Join(os.Chown(dir, os.Geteuid(), -1), os.Chmod(dir, 0o755)); err != nil {
			t.Fatal(err)
		}
		write()
	}
}

// TestWhatComesFromTheTemplate gives arbitrary values: what is made keeps all that parameters do not set, and no limit is raised.
func TestWhatComesFromTheTemplate(t *testing.T) {
	j := parsed(t, job)
	rapid.Check(t, func(t *rapid.T) {
		given := map[string]any{}
		for _, name := range sortedKeys(j.Parameters) {
			switch rapid.IntRange(0, 4).Draw(t, name) {
			case 0:
				given[name] = rapid.String().Draw(t, "text")
			case 1:
				given[name] = rapid.Float64().Draw(t, "number")
			case 2:
				given[name] = rapid.StringMatching(`[0-9]{1,3}(\.[0-9])?(|MiB|GiB|MB/s|Mbit/s)`).Draw(t, "amount")
			case 3:
				given[name] = rapid.SliceOf(rapid.String()).Draw(t, "words")
			}
		}
		n, err := j.Make("ann", "n", given)
		if err != nil {
			if refuse.KindOf(err) != refuse.Invalid {
				t.Fatalf("not refused but failed: %v", err)
			}
			return
		}
		checkKept(t, j, n)
	})
}

// checkKept fails if a node has what its template does not give it.
func checkKept(t interface{ Fatalf(string, ...any) }, j *Template, n *vnode.Node) {
	for _, key := range []string{"cpu.max", "memory.max", "memory.swap", "pids", "rlimits.nofile", "io.data.read.rate", "io.data.read.iops", "net.eth0.tx"} {
		kind, _ := limitType(key)
		now, err1 := kind.amount(bound(n, key))
		most, err2 := kind.amount(bound(&j.Node, key))
		if err1 != nil || err2 != nil || now.Cmp(most) > 0 {
			t.Fatalf("%s is %q, in the template %q", key, bound(n, key), bound(&j.Node, key))
		}
	}
	if n.Labels[roles.OwnerLabel] != "ann" || n.Labels[roles.TemplateLabel] != "job" {
		t.Fatalf("labels %v", n.Labels)
	}
	strip := func(n vnode.Node) vnode.Node {
		n.Name, n.Image, n.Command, n.Env, n.Labels, n.PIDs, n.RLimits = "", vnode.Image{}, nil, nil, nil, 0, nil
		n.CPU.Max, n.Memory.Max, n.Memory.Swap = 0, 0, nil
		n.IO = append([]vnode.IO{}, n.IO...)
		n.Network = append([]vnode.Network{}, n.Network...)
		n.IO[0].Read, n.Network[0].Rate = vnode.IORate{}, vnode.NetRate{}
		return n
	}
	if diff := cmp.Diff(strip(j.Node), strip(*n)); diff != "" {
		t.Fatalf("a parameter changed what comes from the template alone:\n%s", diff)
	}
	if got := n.Image.String(); got != "oci:debian" && got != "oci:rocky" {
		t.Fatalf("image %s", got)
	}
	if len(n.Env) != 5 || len(n.Labels) != 4 || n.Command[0] != "/usr/bin/env" || !strings.HasPrefix(n.Command[1], "/srv/jobs/") {
		t.Fatalf("env %v, labels %v, command %q", n.Env, n.Labels, n.Command)
	}
}

// FuzzParse reads arbitrary text as a template. What is a template makes a node or refuses to, with arbitrary values.
func FuzzParse(f *testing.F) {
	f.Add([]byte(job), "cpus", "2")
	f.Add([]byte("node: {image: host, command: [/bin/true]}\n"), "", "")
	f.Add([]byte("parameters: {a: {sets: args, type: list, pattern: \".*\"}}\nnode: {image: host, command: [/bin/true]}\n"), "a", "'\n- x: &y")
	f.Fuzz(func(t *testing.T, text []byte, key, value string) {
		j, err := Parse("t.yaml", text)
		if err != nil {
			if _, ok := errors.AsType[spec.Problems](err); !ok {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		n, err := j.Make("ann", "n", map[string]any{key: value})
		if err != nil {
			if refuse.KindOf(err) != refuse.Invalid {
				t.Fatalf("not refused but failed: %v", err)
			}
			return
		}
		if problems := vnode.Validate(n); len(problems) > 0 {
			t.Fatalf("%v", problems)
		}
		if n.Labels[roles.OwnerLabel] != "ann" || cmp.Diff(j.Node.Mounts, n.Mounts) != "" || cmp.Diff(j.Node.Devices, n.Devices) != "" || n.UserNS() != j.Node.UserNS() {
			t.Fatalf("%+v", n)
		}
	})
}

// TestNoOptions: without a pattern of the template's own no word begins with '-': it would be an option of the program.
func TestNoOptions(t *testing.T) {
	j := parsed(t, "parameters:\n  word: {sets: \"command[1]\", type: string}\n  args: {sets: args, type: list}\n  own: {sets: env.OWN, type: string, pattern: \"-.*\", default: \"-\"}\nnode:\n  image: oci:debian\n  command: [/usr/bin/env, x]\n")
	for _, given := range []map[string]any{{"word": "-x"}, {"word": "--"}, {"args": []any{"a", "-u"}}, {"args": "-"}} {
		if n, err := j.Make("ann", "n1", given); err == nil || !strings.Contains(err.Error(), "is not allowed") {
			t.Errorf("%v: %v, %v", given, n, err)
		}
	}
	for _, given := range []map[string]any{{"word": "a-x"}, {"word": ""}, {"args": []any{"a", "1-u."}}, {"own": "-x"}} {
		if _, err := j.Make("ann", "n1", given); err != nil {
			t.Errorf("%v: %v", given, err)
		}
	}
	const own = "parameters:\n  word: {sets: \"command[1]\", type: string, default: -v}\nnode:\n  image: oci:debian\n  command: [/usr/bin/env, x]\n"
	if _, err := Parse("f", []byte(own)); err == nil || !strings.Contains(err.Error(), `"-v" is not allowed: it must match`) {
		t.Errorf("a default that is an option: %v", err)
	}
}
