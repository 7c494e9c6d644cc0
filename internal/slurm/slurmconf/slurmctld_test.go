package slurmconf

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/slurm/control"
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
			dir, err := os.MkdirTemp("", "slurmctld") // short: a socket's path has at most 107 bytes
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := os.RemoveAll(dir); err != nil {
					t.Error(err)
				}
			})
			// With its process 1 all processes of these namespaces end.
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSlurmctld$", "-test.v", "-test.timeout=3m")
			cmd.Env = append(os.Environ(), inside+"="+name+":"+dir)
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
	if os.Geteuid() != 0 {
		t.Skip("needs root, for namespaces")
	}
	out, err := exec.CommandContext(t.Context(), "slurmctld", "-V").Output()
	if err != nil {
		t.Fatal(err)
	}
	if v, err := ParseVersion(string(out)); err != nil || v != Oldest {
		t.Skipf("needs Slurm %s, whose answers it knows: here is %s", Oldest, strings.TrimSpace(string(out)))
	}
}

// cluster is a slurmctld in namespaces of its own.
type cluster struct {
	t    *testing.T
	dir  string
	conf string
}

func (c *cluster) run(args ...string) string {
	c.t.Helper()
	cmd := exec.CommandContext(c.t.Context(), args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "SLURM_CONF="+c.conf)
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Fatalf("%s: %v: %s\n%s", args, err, out, c.log("slurmctld"))
	}
	return string(out)
}

func (c *cluster) log(of string) string {
	text, _ := os.ReadFile(filepath.Join(c.dir, of+".log"))
	return string(text)
}

// start starts a daemon, which ends with the test.
func (c *cluster) start(name string, args ...string) {
	c.t.Helper()
	log, err := os.Create(filepath.Join(c.dir, name+".log"))
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.CommandContext(context.Background(), name, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			c.t.Errorf("%s: %v\n%s", name, err, c.log(name))
		}
	})
}

func (c *cluster) wait(what string, ok func() bool) {
	c.t.Helper()
	// Slurmctld looks for nodes to resume, and for those that answer, every ten seconds or less often: a call each 100 ms is enough.
	if !testkit.Happens(func() bool { time.Sleep(100 * time.Millisecond); return ok() }) {
		c.t.Fatalf("did not happen: %s\n%s", what, c.log("slurmctld"))
	}
}

// runSlurmctld is the test inside the namespaces.
func runSlurmctld(t *testing.T, which string) {
	name, dir, _ := strings.Cut(which, ":")
	site := slurmctldCases()[name]
	c := &cluster{t: t, dir: dir, conf: filepath.Join(dir, "etc", "slurm.conf")}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		t.Fatal(err)
	}
	c.run("ip", "link", "set", "lo", "up")
	c.run("ip", "link", "add", "br0", "type", "bridge") // names are looked up only where there is an address besides the loopback's
	c.run("ip", "address", "add", "192.0.2.1/24", "dev", "br0")
	c.run("ip", "link", "set", "br0", "up")
	c.files(site.hosts)

	c.start("munged", "--foreground", "--force", "--key-file="+dir+"/munge.key", "--socket="+dir+"/munge.sock", "--pid-file="+dir+"/munge.pid",
		"--log-file="+dir+"/munge.log", "--seed-file="+dir+"/munge.seed")
	c.wait("munged", func() bool { _, err := os.Stat(dir + "/munge.sock"); return err == nil })
	c.start("slurmctld", "-D", "-v", "-f", c.conf)
	c.wait("scontrol ping", func() bool {
		cmd := exec.CommandContext(t.Context(), "scontrol", "ping")
		cmd.Env = append(os.Environ(), "SLURM_CONF="+c.conf)
		out, _ := cmd.Output()
		return bytes.Contains(out, []byte("is UP"))
	})
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
	if bad := regexp.MustCompile(`(?mi)^.*(parse error|power_save|specified more than once|duplicat|invalid (node|part|feature|gres|slurm)|unable to (create|parse|find)|gres/).*$`).FindString(c.log("slurmctld")); bad != "" {
		t.Errorf("slurmctld complains: %s", bad)
	}
}

// files makes Slurm's folder as berth slurm config does, and adds to the site's own slurm.conf where this test's sockets and files are.
func (c *cluster) files(hosts string) {
	t := c.t
	t.Helper()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	host, _, _ = strings.Cut(host, ".")
	slurm, err := user.Lookup("slurm")
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.Atoi(slurm.Uid)
	for _, d := range []string{"", "etc", "state", "lib"} {
		if err := os.MkdirAll(filepath.Join(c.dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(c.dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(c.dir+"/state", uid, -1); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(c.dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("munge.key", strings.Repeat("0123456789abcdef", 8), 0o400)
	for _, p := range []string{"resume", "suspend", "fail", "prolog", "epilog"} { // they note whom slurmctld starts, as whom, and with what
		write("lib/slurm-"+p, "#!/bin/sh\necho \"$(id -un) ${0##*/} $*\" >>"+c.dir+"/state/started\n", 0o755)
	}
	if strings.Contains(hosts, "user: root") {
		write("lib/slurm-resume", "#!/bin/sh\nexport SLURM_CONF="+c.conf+"\nscontrol update nodename=$1 nodeaddr=192.0.2.1\n"+
			"slurmd -b -D -N $1 -f "+c.conf+" >"+c.dir+"/slurmd.log 2>&1 &\n", 0o755)
	}
	s := parse(t, fmt.Sprintf("cluster: site1\ncontroller: {host: %s, address: 192.0.2.1, state: %s/state}\nprograms: %s/lib\n%s\n", host, c.dir, c.dir, hosts))
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
		if file.Name == "slurm.conf" {
			file.Text = fmt.Sprintf("AuthInfo=socket=%[1]s/munge.sock\nSlurmctldPidFile=%[1]s/state/pid\nSlurmdPidFile=%[1]s/slurmd.%%n.pid\n", c.dir) +
				strings.ReplaceAll(file.Text, "/var/spool/slurmd.", c.dir+"/slurmd.")
		}
		write("etc/"+file.Name, file.Text, 0o644)
	}
}

// nodes looks at what slurmctld has of nodes and partitions.
func (c *cluster) nodes(name string, count int) {
	t := c.t
	t.Helper()
	lines := strings.Split(strings.TrimSpace(c.run("scontrol", "--oneliner", "show", "nodes")), "\n")
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
		return strings.ReplaceAll(c.run("scontrol", "--oneliner", "show", "partition", p), "\n", " ")
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
func (c *cluster) job() {
	out := c.dir + "/out"
	c.run("sbatch", "--gres=scratch:10G,vf:1", "--tmp=10G", "--mem=3G", "--constraint=bridge&rack1", "--output="+out, "--wrap=echo $SLURM_JOB_NODELIST on $SLURMD_NODENAME")
	c.wait("the job's output", func() bool {
		text, _ := os.ReadFile(out)
		return string(text) == "a-01 on a-01\n"
	})
	if state := c.run("scontrol", "--oneliner", "show", "node", "a-01"); !strings.Contains(state, "NodeAddr=192.0.2.1 ") || strings.Contains(state, "INVAL") {
		c.t.Errorf("the node: %s\n%s", state, c.log("slurmd"))
	}
}

// addresses has slurmctld told of the addresses of very many nodes at the same time: each has its own, and few programs did it.
func (c *cluster) addresses() {
	t := c.t
	t.Setenv("SLURM_CONF", c.conf)
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
	told := regexp.MustCompile(`REQUEST_UPDATE_NODE +\( *\d+\) +count:(\d+)`).FindStringSubmatch(c.run("sdiag"))
	if told == nil || len(told[1]) > 2 {
		t.Errorf("slurmctld was told of %d nodes by %v calls", len(names), told)
	}
	t.Logf("slurmctld was told of %d nodes by %s calls in %s", len(names), told[1], took.Round(time.Millisecond))
}

// stranger submits a job to hosts that are for others: slurmctld refuses it.
func (c *cluster) stranger() {
	const nobody = 65534
	for partition, ok := range map[string]bool{"batch": true, "daemon": false} {
		cmd := exec.CommandContext(c.t.Context(), "sbatch", "--partition="+partition, "--output=/dev/null", "--wrap=true")
		cmd.Env, cmd.Dir = append(os.Environ(), "SLURM_CONF="+c.conf), "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		out, err := cmd.CombinedOutput()
		if (err == nil) != ok || !ok && !bytes.Contains(out, []byte("group not permitted to use this partition")) {
			c.t.Errorf("a job of somebody else in partition %s: %v: %s", partition, err, out)
		}
	}
}

// jobs submits jobs of a node each, and compares the nodes that slurmctld wants to have made for them.
func (c *cluster) jobs(want []string) {
	t := c.t
	t.Helper()
	var nodes []string
	for range want {
		id, _, _ := strings.Cut(strings.TrimSpace(c.run("sbatch", "--parsable", "--output=/dev/null", "--wrap=true")), ";")
		c.wait("a node for job "+id, func() bool {
			node := strings.TrimSpace(c.run("squeue", "--noheader", "--jobs="+id, "--format=%N"))
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
	c.wait("slurm-resume with all nodes", func() bool {
		var asked []string
		text, _ := os.ReadFile(c.dir + "/state/started")
		for line := range strings.Lines(string(text)) {
			if list, ok := strings.CutPrefix(strings.TrimSpace(line), "slurm slurm-resume "); ok {
				asked = append(asked, strings.Fields(c.run("scontrol", "show", "hostnames", list))...)
			}
		}
		slices.Sort(asked)
		return slices.Equal(asked, want) && bytes.Contains(text, []byte("slurm slurm-prolog"))
	})
}
