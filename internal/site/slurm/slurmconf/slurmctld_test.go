package slurmconf

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/site/slurm/control"
	"berth/test/controller"
	"berth/test/testkit"
)

// inside says to a process of this test that it is the first one of its own namespaces, and which case it runs.
const inside = "BERTH_TEST_SLURMCTLD"

// slurmctldCases are sites that the slurmctld of this machine is given.
func slurmctldCases() map[string]struct {
	hosts string   // of slurm.yaml
	nodes int      // in all
	asked []string // the nodes that three jobs have it ask for
} {
	return map[string]struct {
		hosts string
		nodes int
		asked []string
	}{
		// This release weighs only nodes that are there, and takes others by their names: Make says so.
		"few":    {"fill: few\nwarm: 1\nhosts: [{name: two, hosts: [b-1.example.org, a], slots: 2, scratch: 20GiB, functions: 1, features: [ssd]}, {hosts: [c], slots: 120, cpus: 4, memory: 8GiB, users: [daemon]}]", 124, []string{"a-01", "a-02", "b-1-01"}},
		"spread": {"fill: spread\nhosts: [{name: two, hosts: [a, b-1.example.org], slots: 2}, {hosts: [c], slots: 120, users: [daemon]}]", 124, []string{"a-01", "a-02", "b-1-01"}},
		// slurmctld runs as root here, because the test's slurm-resume starts a slurmd.
		"job":  {"user: root\nhosts: [{hosts: [a], slots: 1, cpus: 1, scratch: 20GiB, functions: 1}]", 1, nil},
		"many": {"fill: spread\nhosts: [{hosts: [" + strings.Join(manyHosts(), ", ") + "], slots: 20}]", 2000, []string{"st001-01", "st001-02", "st001-03"}},
	}
}

func manyHosts() (all []string) {
	for i := range 100 {
		all = append(all, fmt.Sprintf("st%03d", i+1))
	}
	return all
}

// TestSlurmctld gives the files to a real slurmctld: it has all nodes and partitions as they should be, and starts ResumeProgram with the
// nodes that fill says.
func TestSlurmctld(t *testing.T) {
	if name := os.Getenv(inside); name != "" {
		runSlurmctld(t, name)
		return
	}
	if testing.Short() {
		t.Skip("needs a longer run: real slurmctlds")
	}
	needSlurm(t)
	for name := range slurmctldCases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := testkit.Dir(t, "") // short: a socket's path has at most 107 bytes
			// With its process 1 all processes of these namespaces end.
			cmd := testkit.Again(t, "TestSlurmctld", inside+"="+name+":"+dir)
			cmd.Args = append(cmd.Args, "-test.v", "-test.timeout=3m")
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if !bytes.Contains(out, []byte("PASS: TestSlurmctld")) {
				t.Fatalf("it did not run: %s", out)
			}
			if told := regexp.MustCompile(`slurmctld was told .*`).Find(out); told != nil {
				t.Logf("%s", told)
			}
		})
	}
}

func needSlurm(t *testing.T) {
	t.Helper()
	for _, program := range []string{"slurmctld", "slurmd", "scontrol", "sbatch", "munged", "ip"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs the packages slurm-wlm, munge and iproute2: there is no %s", program)
		}
	}
	testkit.NeedsRoot(t)
	out, err := exec.CommandContext(t.Context(), "slurmctld", "-V").Output()
	if err != nil {
		t.Fatal(err)
	}
	if v, err := ParseVersion(string(out)); err != nil || v != Oldest {
		t.Skipf("needs Slurm %s, whose answers it knows: here is %s", Oldest, strings.TrimSpace(string(out)))
	}
}

// cluster is a slurmctld in namespaces of its own.
type cluster struct{ *controller.Controller }

// runSlurmctld is the test inside the namespaces.
func runSlurmctld(t *testing.T, which string) {
	name, dir, _ := strings.Cut(which, ":")
	site := slurmctldCases()[name]
	c := cluster{controller.New(t, dir)}
	c.files(site.hosts)
	c.Begin()
	c.nodes(name, site.nodes)
	if name == "many" {
		c.addresses()
	}
	if name == "job" {
		c.job()
	} else {
		c.jobs(site.asked)
	}
	if name == "few" {
		c.stranger()
	}
	if bad := regexp.MustCompile(`(?mi)^.*(parse error|power_save|specified more than once|duplicat|invalid (node|part|feature|gres|slurm)|unable to (create|parse|find)|gres/).*$`).FindString(c.Log("slurmctld")); bad != "" {
		t.Errorf("slurmctld complains: %s", bad)
	}
}

// files makes Slurm's folder as berth slurm config does, and adds to the site's own slurm.conf where this test's sockets and files are.
func (c cluster) files(hosts string) {
	t := c.T
	t.Helper()
	for _, p := range []string{"resume", "suspend", "fail", "prolog", "epilog"} { // they note whom slurmctld starts, as whom, and with what
		c.Write("lib/slurm-"+p, "#!/bin/sh\necho \"$(id -un) ${0##*/} $*\" >>"+c.Dir+"/state/started\n", 0o755)
	}
	if strings.Contains(hosts, "user: root") {
		c.Write("lib/slurm-resume", "#!/bin/sh\nexport SLURM_CONF="+c.Conf+"\nscontrol update nodename=$1 nodeaddr=192.0.2.1\n"+
			"slurmd -b -D -N $1 -f "+c.Conf+" >"+c.Dir+"/slurmd.log 2>&1 &\n", 0o755)
	}
	s := parse(t, fmt.Sprintf("cluster: site1\ncontroller: {host: %s, address: 192.0.2.1, state: %s/state}\nprograms: %s/lib\n%s\n", c.Host(), c.Dir, c.Dir, hosts))
	f := map[string]Facts{}
	for _, g := range s.Hosts {
		for _, h := range g.Hosts {
			f[h] = facts(h)[h]
		}
	}
	made, err := Make(s, f, Oldest, none())
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range made.Files {
		c.File(file.Name, file.Text)
	}
}

// nodes looks at what slurmctld has of nodes and partitions.
func (c cluster) nodes(name string, count int) {
	t := c.T
	t.Helper()
	lines := strings.Split(strings.TrimSpace(c.Run("scontrol", "--oneliner", "show", "nodes")), "\n")
	if len(lines) != count {
		t.Errorf("slurmctld has %d nodes, want %d", len(lines), count)
	}
	of := func(node string) string {
		i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "NodeName="+node+" ") })
		if i < 0 {
			t.Fatalf("slurmctld has no node %s: %s", node, lines[0])
		}
		return lines[i] + " "
	}
	has := func(text string, words ...string) {
		t.Helper()
		for _, w := range words {
			if !strings.Contains(text, w+" ") {
				t.Errorf("no %s in %s", w, text)
			}
		}
	}
	for _, l := range lines {
		has(l+" ", "State=IDLE+CLOUD+POWERED_DOWN")
	}
	part := func(p string) string {
		return strings.ReplaceAll(c.Run("scontrol", "--oneliner", "show", "partition", p), "\n", " ")
	}
	switch name {
	case "few":
		has(of("a-02"), "CPUTot=2", "RealMemory=4096", "TmpDisk=20480", "Gres=scratch:20G,vf:1", "AvailableFeatures=a,rack1,two,worker,batch,bridge,ssd", "Weight=103", "Partitions=batch")
		has(of("b-1-01"), "Gres=scratch:20G,vf:1", "AvailableFeatures=b-1.example.org,rack1,two,worker,batch,bridge,ssd", "Weight=100")
		has(of("c-120"), "CPUTot=4", "RealMemory=8192", "TmpDisk=0", "Gres=(null)", "Weight=223", "Partitions=daemon")
		has(part("batch"), "NodeSets=two", "TotalNodes=4", "Default=YES", "OverSubscribe=EXCLUSIVE", "MaxTime=UNLIMITED", "AllowGroups=ALL", "ResumeTimeout=120", "SuspendTimeout=60", "SuspendTime=300")
		has(part("daemon"), "AllowGroups=daemon", "Default=NO", "TotalNodes=120")
	case "spread":
		has(of("a-02"), "Weight=103")
		has(of("b-1-01"), "Weight=101")
		has(of("c-120"), "Weight=223")
	}
}

// job runs a job on a node: a real slurmd registers with what the files say of it, and the job gets its part.
func (c cluster) job() {
	out := c.Dir + "/out"
	c.Run("sbatch", "--gres=scratch:10G,vf:1", "--tmp=10G", "--mem=3G", "--constraint=bridge&rack1", "--output="+out, "--wrap=echo $SLURM_JOB_NODELIST on $SLURMD_NODENAME")
	c.Until("the job's output", func() bool {
		text, _ := os.ReadFile(out)
		return string(text) == "a-01 on a-01\n"
	})
	if state := c.Run("scontrol", "--oneliner", "show", "node", "a-01"); !strings.Contains(state, "NodeAddr=192.0.2.1 ") || strings.Contains(state, "INVAL") {
		c.T.Errorf("the node: %s\n%s", state, c.Log("slurmd"))
	}
}

// addresses has slurmctld told of the addresses of very many nodes at the same time: each has its own, and few programs did it.
func (c cluster) addresses() {
	t := c.T
	t.Setenv("SLURM_CONF", c.Conf)
	slurm := control.Open()
	var names []string
	var all sync.WaitGroup
	began := time.Now()
	for i := range 400 {
		name := fmt.Sprintf("st%03d-%02d", i/4+1, i%4+10)
		names = append(names, name)
		all.Go(func() {
			if err := slurm.Address(t.Context(), name, fmt.Sprintf("192.0.2.%d", i%250+1)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	nodes, err := slurm.Nodes(t.Context(), names)
	if err != nil || len(nodes) != len(names) {
		t.Fatalf("%d nodes: %v", len(nodes), err)
	}
	for _, n := range nodes {
		if i := slices.Index(names, n.Name); n.Address != fmt.Sprintf("192.0.2.%d", i%250+1) {
			t.Errorf("node %s is at %s", n.Name, n.Address)
		}
	}
	told := regexp.MustCompile(`REQUEST_UPDATE_NODE +\( *\d+\) +count:(\d+)`).FindStringSubmatch(c.Run("sdiag"))
	if told == nil || len(told[1]) > 2 {
		t.Errorf("slurmctld was told of %d nodes by %v calls", len(names), told)
	}
	t.Logf("slurmctld was told of %d nodes by %s calls in %s", len(names), told[1], took.Round(time.Millisecond))
}

// stranger submits a job to hosts that are for others: slurmctld refuses it.
func (c cluster) stranger() {
	const nobody = 65534
	for partition, ok := range map[string]bool{"batch": true, "daemon": false} {
		cmd := c.Command("sbatch", "--partition="+partition, "--output=/dev/null", "--wrap=true")
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		out, err := cmd.CombinedOutput()
		if (err == nil) != ok || !ok && !bytes.Contains(out, []byte("group not permitted to use this partition")) {
			c.T.Errorf("a job of somebody else in partition %s: %v: %s", partition, err, out)
		}
	}
}

// jobs submits jobs of a node each, and compares the nodes that slurmctld wants to have made for them.
func (c cluster) jobs(want []string) {
	t := c.T
	t.Helper()
	var nodes []string
	for range want {
		id, _, _ := strings.Cut(strings.TrimSpace(c.Run("sbatch", "--parsable", "--output=/dev/null", "--wrap=true")), ";")
		c.Until("a node for job "+id, func() bool {
			node := strings.TrimSpace(c.Run("squeue", "--noheader", "--jobs="+id, "--format=%N"))
			if node != "" {
				nodes = append(nodes, node)
			}
			return node != ""
		})
	}
	if !slices.Equal(nodes, want) {
		t.Errorf("jobs got %v, want %v", nodes, want)
	}
	slices.Sort(want)
	c.Until("slurm-resume with all nodes", func() bool {
		var asked []string
		text, _ := os.ReadFile(c.Dir + "/state/started")
		for line := range strings.Lines(string(text)) {
			if list, ok := strings.CutPrefix(strings.TrimSpace(line), "slurm slurm-resume "); ok {
				asked = append(asked, strings.Fields(c.Run("scontrol", "show", "hostnames", list))...)
			}
		}
		slices.Sort(asked)
		return slices.Equal(asked, want) && bytes.Contains(text, []byte("slurm slurm-prolog"))
	})
}
