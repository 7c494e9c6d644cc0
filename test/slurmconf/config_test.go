// Package slurmconf tests berth slurm config with real agents.
package slurmconf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/site/certs"
	"berth/internal/site/store/storetest"
	"berth/internal/spec/roles"
	"berth/test/built"
	"berth/test/env"
	"berth/test/testkit"
)

// worker is the template of the hosts.
const worker = `description: a worker of Slurm
node:
  class: batch
  image: host
  command: [/bin/sleep, infinity]
  cpu: {max: 2}
  memory: {max: 4GiB}
  network: [{mode: bridge}]
  scratch: [{target: /tmp, size: 20GiB}, {target: /data, size: 5GiB}]
`

// site is two hosts with agents that know each other, and an operator for Slurm.
type site struct {
	env.Berth
	address map[string]string // of the agents
}

func start(t *testing.T) *site {
	t.Helper()
	if testing.Short() {
		t.Skip("no agents with -short")
	}
	testkit.NeedsRoot(t)
	s := &site{Berth: env.New(t, ""), address: map[string]string{}}
	testkit.Must(t, built.Site(t.Context(), s.Dir()), built.Agent(t.Context(), s.Dir()))
	signer, err := certs.Init(filepath.Join(s.Dir(), "ca"))
	testkit.Must(t, err)
	ports := testkit.Free(t, 3)
	stored := ports[0]
	ip, _, _ := strings.Cut(stored, ":")
	for name, store := range map[string]string{
		"st01":             "{embedded: {listen: \"" + stored + "\"}}",
		"st02.example.org": "{endpoints: [\"https://" + stored + "\"]}",
	} {
		root := filepath.Join(s.Dir(), name)
		testkit.Must(t, os.MkdirAll(filepath.Join(root, "templates"), 0o755))
		if name == "st01" {
			testkit.Must(t, os.WriteFile(filepath.Join(root, "templates", "worker.yaml"), []byte(worker), 0o644))
		}
		env.Certify(t, signer, filepath.Join(root, "certs"), name, roles.Host, ip)
		s.address[name], ports = ports[1], ports[1:]
		testkit.Must(t, os.WriteFile(filepath.Join(root, "berthd.yaml"), fmt.Appendf(nil,
			"host: %s\naddress: %q\nlisten: [%q]\nrack: rack7\nslots: 20\nstore: %s\n", name, s.address[name], s.address[name], store), 0o600))
		storetest.Start(t, nil, filepath.Join(s.Dir(), "berthd"), "--root", root)
	}
	env.Certify(t, signer, filepath.Join(s.Dir(), "slurm"), "slurm", roles.Operator)
	return s
}

// berth runs a command line, and returns its exit code and what it wrote.
func (s *site) berth(t *testing.T, args ...string) (code int, out, errors string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), s.Program, args...)
	cmd.Env = append(os.Environ(), "HOME="+s.Dir()) // not the certificate of the user who runs the test
	out, errors, code = env.Try(cmd)
	return code, out, errors
}

// settings writes a file of settings, which asks the agent of st01.
func (s *site) settings(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "slurm.yaml")
	testkit.Must(t, os.WriteFile(path, fmt.Appendf(nil, "api: {agent: %q, certs: %s/slurm}\nprograms: /p\n%s", s.address["st01"], s.Dir(), text), 0o600))
	return path
}

// TestConfig types berth slurm config on a site with two agents: what they tell is taken, what the settings say is stronger, and what
// is there is not overwritten unseen.
func TestConfig(t *testing.T) {
	s := start(t)
	both := s.settings(t, "cluster: c\ncontroller: {host: ctl}\nhosts:\n- {hosts: [st01]}\n- {name: big, hosts: [st02.example.org], slots: 1, cpus: 8, memory: 16GiB, features: [ssd]}\n")
	dir := filepath.Join(t.TempDir(), "etc")
	config := func(path string, more ...string) (int, string, string) {
		t.Helper()
		return s.berth(t, append([]string{"slurm", "config", "--settings", path, "--slurm-version", "26.05", "--dir", dir}, more...)...)
	}
	var code int
	var out, said string
	testkit.Happens(func() bool { // if they do not, what follows says what is there
		code, out, said = config(both)
		return code == 0 && !strings.Contains(said, "told nothing")
	})
	for _, line := range []string{
		"NodeName=st01-20 CPUs=2 Sockets=2 CoresPerSocket=1 ThreadsPerCore=1 RealMemory=4096 TmpDisk=25600 Gres=scratch:25600M Feature=st01,rack7,hosts,worker,batch,bridge Weight=119 State=CLOUD\n",
		"NodeName=st02-01 CPUs=8 Sockets=8 CoresPerSocket=1 ThreadsPerCore=1 RealMemory=16384 TmpDisk=0 Gres=\"\" Feature=st02.example.org,rack7,big,worker,ssd Weight=120 State=CLOUD\n",
		"NodeSet=hosts Nodes=st01-[01-20]\n", "ResumeProgram=/p/slurm-resume\n", "# " + dir + "/slurm.conf\n",
	} {
		if code != 0 || !strings.Contains(out, line) {
			t.Fatalf("exit code %d, %s: no %s in\n%s", code, said, line, out)
		}
	}
	if want := "berth: host st02.example.org: it has no template worker: classes, networks and sizes of its nodes are not known\n"; said != want && !strings.Contains(said, want) {
		t.Errorf("said %s", said)
	}
	began := time.Now()
	config(both)
	t.Logf("two agents asked, 21 nodes: %s", time.Since(began).Round(time.Millisecond))
	if code, out, said = config(both, "--check"); code != 6 || out != dir+"/berth.conf: new\n"+dir+"/berth-gres.conf: new\n"+dir+"/gres.conf: new\n"+dir+"/slurm.conf: new\n" {
		t.Errorf("--check: %d %s %s", code, out, said)
	}
	if code, out, said = s.berth(t, "slurm", "config", "--settings", both, "--slurm-version", "26.05", "--output", dir); code != 0 || strings.Count(out, ": made\n") != 4 {
		t.Errorf("--output: %d %s %s", code, out, said)
	}
	if code, out, said = config(both, "--check"); code != 0 || !strings.Contains(out, "slurm.conf: kept\n") {
		t.Errorf("--check of what was written: %d %s %s", code, out, said)
	}
	other := s.settings(t, "hosts: [{hosts: [st01], slots: 2}]\n")
	if code, out, said = config(other, "--diff"); code != 0 || !strings.Contains(out, "\n-NodeName=st02-01 ") || !strings.Contains(out, "\n-NodeSet=hosts Nodes=st01-[01-20]\n") || strings.Contains(out, "ClusterName") {
		t.Errorf("--diff: %d %s %s", code, out, said)
	}
	s.refusals(t, dir, config)

	// slurmctld starts links, whose names say which command they are.
	link := filepath.Join(t.TempDir(), "slurm-config")
	testkit.Must(t, os.Symlink(filepath.Join(s.Dir(), "berth-site"), link))
	if text, err := exec.CommandContext(t.Context(), link, "--schema").CombinedOutput(); err != nil || !bytes.Contains(text, []byte(`"partitions"`)) {
		t.Errorf("slurm-config --schema: %v: %s", err, text)
	}
}

// refusals are what keeps files from being written.
func (s *site) refusals(t *testing.T, dir string, config func(string, ...string) (int, string, string)) {
	t.Helper()
	here := s.settings(t, "hosts: [{hosts: [st01], slots: 2}]\n")
	own := filepath.Join(dir, "slurm.conf")
	testkit.Must(t, os.WriteFile(own, []byte("ClusterName=c\nTreeWidth=50\nSlurmctldParameters=enable_configless\nGresTypes=gpu # ours\nPartitionName=batch Nodes=x\ninclude berth.conf\n"), 0o600))
	before, err := os.ReadFile(filepath.Join(dir, "berth.conf"))
	testkit.Must(t, err)
	code, out, said := config(here, "--output", dir)
	if code != 3 || !strings.Contains(said, "slurm.conf says TreeWidth=50, and Berth's file 65533") || !strings.Contains(said, "slurm.conf has a partition of this name") {
		t.Errorf("conflicts: %d %s %s", code, out, said)
	}
	away := s.settings(t, "hosts: [{hosts: [st01, st09], slots: 2, cpus: 1, memory: 1GiB}]\n")
	if code, out, said = config(away, "--output", dir); code != 3 || !strings.Contains(said, "the agent of st09 told nothing") || !strings.Contains(said, "the site has no host of this name") {
		t.Errorf("an agent that is not there: %d %s %s", code, out, said)
	}
	if after, err := os.ReadFile(filepath.Join(dir, "berth.conf")); err != nil || !bytes.Equal(before, after) {
		t.Errorf("what was refused was written: %v", err)
	}
	left := s.settings(t, "leave: [TreeWidth]\nhosts: [{hosts: [st01], slots: 2}]\npartitions: [{name: p, max_time: 7d}]\n")
	if code, out, said = config(left, "--output", dir); code != 0 {
		t.Errorf("after the conflicts: %d %s %s", code, out, said)
	}
	after, err := os.ReadFile(filepath.Join(dir, "berth.conf"))
	testkit.Must(t, err)
	if !bytes.Contains(after, []byte("GresTypes=gpu,scratch\n")) || bytes.Contains(after, []byte("SlurmctldParameters")) || bytes.Contains(after, []byte("TreeWidth")) {
		t.Errorf("%s", after)
	}
	if code, out, said = config(left, "--json"); code != 0 {
		t.Errorf("--json: %d %s", code, said)
	}
	var doc struct {
		Nodes int
		Files []struct{ Name, State string }
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil || doc.Nodes != 2 || len(doc.Files) != 3 || doc.Files[0].State != "same" {
		t.Errorf("%v: %+v", err, doc)
	}
	for path, want := range map[string]int{s.settings(t, "hots: 1\n"): 2, "/nowhere.yaml": 4, s.settings(t, "hosts: [{hosts: [st09]}]\n"): 3} {
		if code, _, said := config(path); code != want {
			t.Errorf("%s: exit code %d, want %d: %s", path, code, want, said)
		}
	}
	if code, _, said := config(here, "--slurm-version", "20.11"); code != 3 {
		t.Errorf("an old Slurm: %d %s", code, said)
	}
}

// TestConfigIsFast makes the files for 100 hosts with 20 slots each, without agents, as a command: what make bench-slurm-config prints. Where
// the run measures, it fails above the second that is promised.
func TestConfigIsFast(t *testing.T) {
	s := &site{Berth: env.New(t, ""), address: map[string]string{"st01": "nowhere"}}
	testkit.Must(t, built.Site(t.Context(), s.Dir()))
	var hosts []string
	for i := range 100 {
		hosts = append(hosts, fmt.Sprintf("st%03d", i+1))
	}
	path := s.settings(t, "hosts: [{hosts: ["+strings.Join(hosts, ", ")+"], slots: 20, cpus: 2, memory: 4GiB, scratch: 20GiB}]\nfill: spread\n")
	var most time.Duration
	rounds := 1
	if testkit.Measures() {
		rounds = 5
	}
	for range rounds {
		began := time.Now()
		code, out, said := s.berth(t, "slurm", "config", "--offline", "--settings", path, "--slurm-version", "22.05", "--dir", s.Dir())
		took := time.Since(began)
		if code != 0 || strings.Count(out, "NodeName=st")-100 != 2000 { // a hundred lines of berth-gres.conf
			t.Fatalf("%d, %d nodes: %s", code, strings.Count(out, "NodeName=st"), said)
		}
		t.Logf("2000 nodes: %s", took.Round(time.Millisecond))
		most = max(most, took)
	}
	if testkit.Measures() && most > time.Second {
		t.Errorf("it took %s", most)
	}
}
