package template

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/spec/vnode"
)

// TestRights edits a template. An edit of what gives rights is told by its key; one of limits is none.
func TestRights(t *testing.T) {
	const of = `description: a job
parameters:
  cpus: {sets: cpu.max, type: number, max: 2}
  user: {sets: env.USER, type: string, pattern: "[a-z]+", default: nobody}
  team: {sets: labels.team, type: string}
  args: {sets: args, type: list, words: 2}
node:
  image: oci:debian
  command: [/srv/run]
  env: {A: "1"}
  env_from: /etc/secret
  cpu: {max: 4}
  memory: {max: 1GiB}
  mounts: [{source: /srv, target: /srv, read_only: true}]
  devices: [/dev/kvm]
  network: [{mode: nat, rate: {tx: 1Gbit/s}}]
  io: [{name: data, path: /srv, read: {rate: 1MB/s}}]
  health: {command: [/bin/true], every: 10s}
  labels: {of: a}
`
	before := parsed(t, of).Rights()
	for edit, want := range map[string][]string{
		"a job=>another job": {}, "max: 2=>max: 1": {}, "type: string}\n  args=>type: string, length: 3}\n  args": {}, "default: nobody=>default: root": {},
		"max: 4=>max: 8": {}, "1GiB=>2GiB": {}, "1Gbit/s=>2Gbit/s": {}, "1MB/s=>2MB/s": {}, "every: 10s=>every: 20s": {}, "of: a=>of: b": {},
		"io: [=>restart: always\n  autostart: true\n  pids: 10\n  rlimits: {nofile: 99}\n  tmpfs: [{target: /tmp}]\n  stop: {grace: 1s}\n  io: [": {},
		"[a-z]+=>.*": {"parameter user"}, "words: 2=>words: 3": {"parameter args"}, "  user:=>  who:": {"parameter user", "parameter who"},
		"oci:debian=>oci:debian:12": {"image"}, "[/srv/run]=>[/srv/run, -x]": {"command"}, `"1"=>"2"`: {"env"}, "/etc/secret=>/etc/other": {"env_from"},
		"  env_from: /etc/secret\n=>": {"env_from"}, ", read_only: true=>": {"mounts"}, "/dev/kvm=>/dev/fuse": {"devices"}, "mode: nat=>mode: nat, spoof: true": {"network"},
		"/bin/true=>/bin/false": {"health"}, "io: [=>user: nobody\n  no_new_privileges: false\n  io: [": {"no_new_privileges", "user"},
		"io: [=>hostname: h\n  users: [{from: 5000, count: 1, as: same}]\n  sysctls: {net.core.somaxconn: 9}\n  io: [": {"hostname", "sysctls", "users"},
		"io: [=>user_namespace: false\n  io: [": {"user_namespace"},
	} {
		from, to, _ := strings.Cut(edit, "=>")
		if strings.Count(of, from) != 1 {
			t.Fatalf("%q is there %d times", from, strings.Count(of, from))
		}
		got := Differ(before, parsed(t, strings.Replace(of, from, to, 1)).Rights())
		if diff := cmp.Diff(want, got); diff != "" && len(want)+len(got) > 0 {
			t.Errorf("%s:\n%s", edit, diff)
		}
	}
}

// TestEachKeyOfRights: each key of a spec was thought of: it gives rights, or it does not.
func TestEachKeyOfRights(t *testing.T) {
	rights := []string{
		"image", "hostname", "command", "user", "env", "env_from", "workdir", "health", "network", "devices", "mounts", "sysctls", "users",
		"no_new_privileges", "user_namespace", "kind", "machine",
	}
	var all []string
	for f := range reflect.TypeFor[vnode.Node]().Fields() {
		all = append(all, vnode.FieldKey(f))
	}
	known := slices.Concat(rights, noRights())
	slices.Sort(all)
	slices.Sort(known)
	if diff := cmp.Diff(known, all); diff != "" {
		t.Errorf("give each key of a spec to one of both lists:\n%s", diff)
	}
	if all := rightsOf(&vnode.Node{Name: "x", Env: vnode.Env{}, Command: []string{}}); len(all) > 0 { // else a berth that knows a new key blocks all nodes
		t.Errorf("of an empty node: %v", all)
	}
}
