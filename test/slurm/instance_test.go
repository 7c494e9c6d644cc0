package slurm

import (
	"encoding/json"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth/test/testkit"
)

// asAlice runs a program as the user whom the host does not have, with a folder of hers.
func (s *site) asAlice(args ...string) (string, error) {
	const script = `mount --bind "$1" /etc/passwd; export HOME="$2"; shift 2; exec setpriv --reuid 1500 --regid 1500 --clear-groups "$@"`
	return s.try("unshare", append([]string{"--mount", "--propagation=private", "/bin/sh", "-ec", script, "sh", s.path("conf/node/passwd"), s.path("work/alice")}, args...)...)
}

// TestInstance: a user has a node by one command, logs in by ssh, nobody else does, and the node is given back.
func TestInstance(t *testing.T) {
	for _, program := range []string{"ssh", "sshd", "ssh-keygen", "setpriv"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s", program)
		}
	}
	s := newSite(t, 1, "    - {source: CONF/passwd, target: /etc/passwd, read_only: true}\n")
	s.run("install", "-d", "-m", "700", "-o", "1500", "-g", "1500", s.path("work/alice"), s.path("work/alice/.ssh"))
	must := func(args ...string) string {
		t.Helper()
		out, err := s.asAlice(args...)
		if err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
		return out
	}
	berth := func(args ...string) string {
		t.Helper()
		return must(append([]string{s.berth, "instance"}, args...)...)
	}
	for _, key := range []string{"id_ed25519", "other"} {
		must("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", s.path("work/alice/.ssh/"+key))
	}
	if out, err := s.asAlice(s.berth, "instance", "up", "--template", "none"); err == nil || !strings.Contains(out, "no node of the pool has it") {
		t.Errorf("with a template that nobody has: %v: %s", err, out)
	}
	began := time.Now()
	out := berth("up", "--time", "10m", "--json")
	var up struct {
		Job     int
		Node    string
		Address string
		SSH     []string
	}
	if err := json.Unmarshal([]byte(out[max(0, strings.Index(out, "{")):]), &up); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Logf("up after %v: %s", time.Since(began).Round(10*time.Millisecond), strings.Join(up.SSH, " "))
	if got := must(append(up.SSH, "id -u; hostname; id -u root; grep ^CapEff /proc/self/status")...); got != "1500\nst01-01\n0\nCapEff:\t0000000000000000" {
		t.Errorf("in the instance: %q", got)
	}
	if out, err := s.asAlice(append([]string{"ssh", "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-i", s.path("work/alice/.ssh/other")}, up.SSH[1:]...)...); err == nil {
		t.Errorf("another key logs in: %s", out)
	}
	root := append([]string{}, up.SSH...)
	root[len(root)-1] = "root@" + up.Address
	if out, err := s.asAlice(append(root, "true")...); err == nil {
		t.Errorf("root logs in: %s", out)
	}
	if got := s.run("sinfo", "-h", "-N", "-o", "%T"); !strings.HasPrefix(got, "allocated") {
		t.Errorf("sinfo says %q while the instance is up", got)
	}
	// Others give jobs the name of an instance: they hide nobody's.
	s.submitAs(1501, "true\n", "--hold", "--job-name=berth-instance")
	s.submitAs(1501, "true\n", "--hold", "--job-name=berth-instance", "--array=1-3")
	s.submitAs(1501, "#SBATCH hetjob\ntrue\n", "--hold", "--job-name=berth-instance")
	for _, args := range [][]string{{"ls"}, {"ls", "--all"}} {
		out := berth(args...)
		if !strings.Contains(out, "running") || !strings.Contains(out, up.Address) {
			t.Errorf("berth instance %s:\n%s", args, out)
		}
	}
	if out, err := s.tryAs(65534, s.berth, "instance", "down", strconv.Itoa(up.Job)); err == nil {
		t.Errorf("another user ends it: %s", out)
	}
	berth("down", strconv.Itoa(up.Job))
	s.until("the node is given back", func() bool { return len(s.nodes()) == 0 })
	if out := berth("ls"); strings.Contains(out, "running") {
		t.Errorf("berth instance ls after down:\n%s", out)
	}
	berth("up", "--time", "1m")
	s.within(4*testkit.Bound(), "its time is over and the node is given back", func() bool { return len(s.nodes()) == 0 }) // slurmctld looks each 30 s
	if out := berth("ls"); strings.Contains(out, "running") {
		t.Errorf("berth instance ls after its time:\n%s", out)
	}
}

// TestSalloc: salloc gives a user a fresh node, srun runs there as this user, whom the node knows by the site's file of users, and it is given back.
func TestSalloc(t *testing.T) {
	s := newSite(t, 1, "    - {source: CONF/passwd, target: /etc/passwd, read_only: true}\n")
	s.run("install", "-d", "-m", "700", "-o", "1500", "-g", "1500", s.path("work/alice"))
	out, err := s.asAlice("salloc", "--quiet", "--nodes=1", "sh", "-c", "sinfo -h -N -o %T; srun sh -c 'hostname; id -u; id -un; cd; pwd'")
	if want := "allocated\nst01-01\n1500\nalice\n" + s.path("work/alice"); err != nil || out != want {
		t.Errorf("salloc printed %q, not %q: %v", out, want, err)
	}
	s.until("the node is given back", func() bool { return len(s.nodes()) == 0 })
}
