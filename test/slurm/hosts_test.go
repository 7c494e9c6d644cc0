package slurm

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"berth/internal/site/certs"
	"berth/internal/spec/roles"
	"berth/internal/sys/layout"
	"berth/test/testkit"
)

// host is a host that has nodes: a root of its own with an agent. All are this machine.
type host struct {
	name, root string
	layout     layout.Layout
	address    string // of the agent; names lead to it too, for what slurmctld starts
}

// worker is the template of the nodes: munged and slurmd in the host's own root, with this cluster's files.
const worker = `description: a worker of Slurm
parameters:
  cpus:   {sets: cpu.max, type: number, min: 0.1}
  memory: {sets: memory.max, type: size, min: 64MiB}
  tasks:  {sets: pids, type: integer, min: 64}
  queue:  {sets: labels.queue, type: choice, of: [none], default: none}
node:
  image: host
  command: [/bin/sh, /etc/slurm/node]
  cpu: {max: 1}
  memory: {max: 512MiB}
  pids: 512
  network: [{mode: bridge, parent: BRIDGE, dhcp: true}]
  tmpfs: [{target: /tmp, size: 64MiB}]
  mounts:
    - {source: CONF, target: /etc/slurm, read_only: true}
    - {source: WORK, target: WORK}
`

// inside is what a node runs.
const inside = `set -e
mkdir -p /run/munge /run/key /var/spool/slurmd
install -m 400 /etc/slurm/munge.key /run/key/key
chmod 755 /run/munge
munged --force --key-file=/run/key/key --socket=/run/munge/munge.socket.2 --pid-file=/run/key/pid --log-file=/run/key/log --seed-file=/run/key/seed
slurmd -b -D
`

func (s *site) settings() {
	s.Helper()
	signer, err := certs.Init(s.path("ca"))
	testkit.Must(s, err)
	operator, err := signer.IssueUser(s.Context(), "slurm", roles.Operator, certs.UserLife)
	testkit.Must(s, err)
	testkit.Must(s, certs.Install(s.path("operator"), operator))
	template := strings.NewReplacer("BRIDGE", s.bridge, "CONF", s.path("conf/node"), "WORK", s.path("work")).Replace(worker + strings.Join(s.mounts, ""))
	store, scratch, names := "", "", []string{}
	if s.store != "" {
		store = fmt.Sprintf("store: {endpoints: [%q]}\n", s.store)
	}
	if s.strict {
		scratch = ", scratch: 32MiB"
	}
	for _, h := range s.hosts {
		names = append(names, h.name)
	}
	for _, h := range s.hosts {
		testkit.Must(s, h.layout.Make())
		testkit.Must(s, os.MkdirAll(h.layout.Etc("templates"), 0o755))
		testkit.Must(s, os.WriteFile(h.layout.Etc("templates/worker.yaml"), []byte(template), 0o644))
		address, _, err := net.SplitHostPort(h.address)
		testkit.Must(s, err)
		b, err := signer.IssueHost(s.Context(), h.name, []string{address})
		testkit.Must(s, err)
		testkit.Must(s, certs.Install(h.layout.Etc("certs"), b))
		testkit.Must(s, os.WriteFile(h.layout.Etc("berthd.yaml"), fmt.Appendf(nil, "host: %s\nlisten: [%q]\naddress: %q\n%s", h.name, h.address, h.address, store), 0o644))
		testkit.Must(s, os.WriteFile(h.layout.Etc("slurm.yaml"), fmt.Appendf(nil,
			"programs: %s\napi: {agent: %q, certs: %s}\npower: {idle: 3s, resume_timeout: %ds, suspend_timeout: 5s}\nhosts: [{hosts: [%s], slots: %d%s}]\n",
			s.path("lib/berth"), s.hosts[0].address, s.path("operator"), s.timeouts().resume, strings.Join(names, ", "), s.slots, scratch), 0o644))
	}
	for _, name := range []string{"resume", "suspend", "fail", "prolog", "epilog"} {
		s.write("lib/berth/slurm-"+name, strings.NewReplacer("FILE", s.path("conf/slurm.conf"), "LOG", s.path("work/programs"), "KILL", s.path("work/kill."+name),
			"BERTH", filepath.Join(s.dir, "bin/berth-site")+" --root "+s.hosts[0].root+" slurm "+name, "NAME", name).Replace(started), 0o755)
	}
}

// started is what slurmctld starts: Berth's program, killed after a while if there is a file that says so.
const started = `#!/bin/sh
export SLURM_CONF=FILE
echo $(date +%s.%N) begin NAME $* >>LOG
if [ -e KILL ]; then
	after=$(cat KILL)
	rm KILL
	BERTH "$@" & sleep $after; kill -9 $!; echo killed >>LOG; exit 1
fi
BERTH "$@" >>LOG 2>&1
code=$?
echo $(date +%s.%N) end NAME $* $code >>LOG
exit $code
`

// program runs one of the programs as slurmctld does: as its own user, with a list of nodes.
func (s *site) program(name, list string) (string, error) {
	s.Helper()
	u, err := user.Lookup(s.user)
	testkit.Must(s, err)
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	testkit.Must(s, err)
	return s.tryAs(uint32(uid), s.path("lib/berth/slurm-"+name), list)
}

// timeouts are seconds after which slurmctld gives up a node that is not there yet, and one that does not answer any more.
func (s *site) timeouts() (t struct{ resume, slurmd int }) {
	t.resume, t.slurmd = 120, 60
	if s.hasty {
		t.resume, t.slurmd = 20, 9
	}
	return t
}

func (s *site) startAgent(h *host) {
	s.Helper()
	s.runAgent(h)
	s.Cleanup(func() {
		for _, name := range s.nodesOf(h) {
			s.on(h, "rm", "--force", name)
		}
	})
}

func (s *site) runAgent(h *host) {
	s.Helper()
	s.serve("berthd-"+h.name, s.path("bin/berthd"), "--root", h.root)
	s.until("the agent answers", func() bool {
		c, err := net.Dial("tcp", h.address)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// on runs a command of Berth's on a host.
func (s *site) on(h *host, args ...string) string {
	s.Helper()
	return s.run(s.berth, append([]string{"--root", h.root}, args...)...)
}

// of returns the host of a node.
func (s *site) of(node string) *host {
	s.Helper()
	for _, h := range s.hosts {
		if strings.HasPrefix(node, h.name+"-") {
			return h
		}
	}
	s.Fatalf("node %s is nowhere", node)
	return nil
}

// nodes lists the nodes that there are.
func (s *site) nodes() (all []string) {
	s.Helper()
	for _, h := range s.hosts {
		all = append(all, s.nodesOf(h)...)
	}
	return all
}

func (s *site) nodesOf(h *host) []string {
	s.Helper()
	var all []struct{ Name string }
	testkit.Must(s, json.Unmarshal([]byte(s.on(h, "ls", "--json")), &all))
	var names []string
	for _, n := range all {
		names = append(names, n.Name)
	}
	return names
}
