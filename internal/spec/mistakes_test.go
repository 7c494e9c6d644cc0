package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/spec/vnode"
)

// mistakes are values that somebody may write by mistake, as JSON, which is YAML too.
var mistakes = []string{
	`"gar bage!"`, `"a\u0001b"`, `""`, `null`, `true`, `-5`, `0`, `3`, `99999999999`, `"2MiB"`, `[]`, `["a"]`, `{"a": 1}`,
	`"/../x"`, `"192.0.2.300/24"`, `"192.0.2.0/24"`, `"198.51.100.7/24"`, `"203.0.113.1"`, `"2001:db8::zz/64"`, `"none"`, `"host"`,
}

// sound is a valid spec that uses most keys. It has two of an entry where a mistake in one could cause a problem in the
// other.
const sound = `{"name": "n", "image": "dir:/srv/root", "hostname": "n.example.org", "class": "batch", "command": ["/sbin/init"],
 "user": "app:web", "env": {"LANG": "C.UTF-8", "EMPTY": ""}, "workdir": "/srv", "env_from": "/etc/app/secrets", "no_new_privileges": false,
 "users": [{"from": 1500, "count": 1, "as": "same", "of": "uid"}, {"from": 100000, "count": 70000, "as": "private"}],
 "labels": {"team": "storage"}, "stop": {"signal": "QUIT", "grace": "30s"}, "health": {"command": ["check", "it"], "every": "10s", "timeout": "5s", "retries": 3, "start_period": "1m", "restart": true}, "tmpfs": [{"target": "/run/app", "size": "1MiB", "mode": "0750"}, {"target": "/var/app"}],
 "sysctls": {"kernel.shmmax": "1", "net.core.somaxconn": "4096"},
 "restart": "always", "cpu": {"weight": 100, "max": 1.5, "set": "0-1", "numa": 0},
 "memory": {"max": "4GiB", "high": "3GiB", "low": "1GiB", "min": "512MiB", "swap": "0"}, "hugepages": {"2MiB": "512MiB"},
 "pids": 4096, "oom_score_adj": 5, "rlimits": {"nofile": 20000, "core": 0},
 "io": [{"name": "data", "device": "/dev/sdb", "weight": 100, "engine": "iocost",
   "model": "rbps=1 rseqiops=1 rrandiops=1 wbps=1 wseqiops=1 wrandiops=1", "read": {"rate": "200MB/s", "iops": 5000}},
  {"name": "var", "path": "/var/tmp", "write": {"rate": "1MB/s"}}, {"name": "eos", "filesystem": "shared"}],
 "network": [{"name": "eth0", "mode": "macvlan", "parent": "enp4s0f0", "mac": "auto", "address": ["192.0.2.10/24", "2001:db8::10/64"],
   "gateway": "192.0.2.1", "routes": [{"to": "198.51.100.0/24", "via": "192.0.2.2"}, {"to": "203.0.113.0/24", "via": "192.0.2.3"},
   {"to": "2001:db8:1::/48", "via": "2001:db8::9"}], "mtu": 9000, "vlan": 120, "rate": {"tx": "1Gbit/s", "rx": "1Gbit/s"}},
  {"name": "eth1", "mode": "bridge", "mac": "02:00:5e:10:00:01", "dhcp": true, "routes": [{"to": "10.0.0.0/8", "via": "198.51.100.1"}]}],
 "devices": ["/dev/fuse", {"path": "/dev/sdc", "as": "/dev/sdx", "access": "rwm", "unsafe": true}, {"path": "/dev/disk/by-path/a-*"}],
 "mounts": [{"source": "/eos", "target": "/eos", "gateway": "bind", "read_only": true, "map": "identity"}, {"source": "/srv", "target": "/srv"}],
 "scratch": [{"target": "/tmp", "size": "20GiB", "pool": "vg0"}], "delta": {"size": "4GiB", "in": "disk"}, "user_namespace": true}`

// soundMachine is a valid spec of a machine.
const soundMachine = `{"name": "m", "kind": "machine", "image": "file:/srv/a.erofs", "command": ["/bin/sh"], "delta": {"in": "memory", "size": "64MiB"},
 "memory": {"max": "2GiB"}, "pids": 200, "network": [{"mode": "none"}],
 "machine": {"cpus": 2, "memory": "1GiB", "kernel": "/boot/vmlinuz", "cmdline": "mitigations=off", "accel": "auto"}}`

// TestOneMistakeGivesOneProblem replaces each value of a valid spec with each mistake, removes each key, and misspells
// each key. Each time there is at most one problem.
func TestOneMistakeGivesOneProblem(t *testing.T) {
	t.Parallel()
	oneMistake(t, sound, 2000)
	oneMistake(t, soundMachine, 200)
}

func oneMistake(t *testing.T, sound string, least int) {
	t.Helper()
	if _, err := Parse("sound", []byte(sound)); err != nil {
		t.Fatal(err)
	}
	tried, wrong := 0, 0
	try := func(what string, doc any) {
		text, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		_, err = Parse("f", text)
		tried++
		if all, ok := errors.AsType[Problems](err); ok {
			wrong++
			if len(all) > 1 {
				t.Errorf("%s:\n%v", what, all)
			}
		}
	}
	var doc any
	if err := json.Unmarshal([]byte(sound), &doc); err != nil {
		t.Fatal(err)
	}
	visit("", doc, func(field string, set func(any), rename func(string)) {
		for _, m := range mistakes {
			var v any
			if err := json.Unmarshal([]byte(m), &v); err != nil {
				t.Fatal(err)
			}
			set(v)
			try(field+" = "+m, doc)
		}
		if rename != nil {
			rename("")
			try("without "+field, doc)
			key := field[strings.LastIndexByte(field, '.')+1:]
			rename(key + "x")
			try("misspelt "+field, doc)
		}
	})
	if tried < least || wrong < tried/2 {
		t.Errorf("%d mistakes tried, %d found: does the test do what it says?", tried, wrong)
	}
}

// visit calls f for every value below v. set replaces the value; rename renames its key, or removes it (""). visit
// restores the old value after f.
func visit(field string, v any, f func(field string, set func(any), rename func(string))) {
	switch v := v.(type) {
	case map[string]any:
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		for _, k := range keys {
			old, now := v[k], k
			put := func(name string, value any) {
				delete(v, now)
				if now = name; name != "" {
					v[name] = value
				}
			}
			f(strings.TrimPrefix(field+"."+k, "."), func(value any) { put(k, value) }, func(name string) { put(name, old) })
			put(k, old)
			visit(strings.TrimPrefix(field+"."+k, "."), old, f)
		}
	case []any:
		for i := range v {
			old := v[i]
			f(fmt.Sprintf("%s[%d]", field, i), func(value any) { v[i] = value }, nil)
			v[i] = old
			visit(fmt.Sprintf("%s[%d]", field, i), old, f)
		}
	}
}

// TestEveryKeyIsTried checks that the spec of the test above uses every top-level key.
func TestEveryKeyIsTried(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("testdata", "schema.golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	var s struct {
		Properties map[string]any `json:"properties"`
	}
	if err := json.Unmarshal(text, &s); err != nil || len(s.Properties) == 0 {
		t.Fatal(err, s)
	}
	for key := range s.Properties {
		if !strings.Contains(sound+soundMachine, `"`+key+`":`) && key != "autostart" {
			t.Errorf("%s is not tried", key)
		}
	}
	var n vnode.Node
	if err := json.Unmarshal([]byte(sound), &n); err == nil && n.Name == "" {
		t.Error("not a node")
	}
}
