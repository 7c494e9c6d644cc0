//go:build growth

package slurmgrowth

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/layout"
	"berth/internal/slurm/settings"
	"berth/internal/slurm/slurmconf"
	"berth/test/testkit"
)

const (
	slots = 10    // of a host
	ports = 20000 // the first slurmd's
	asked = 19999 // where ResumeProgram and SuspendProgram ask
	plain = "65534"
)

// cluster is a slurmctld in namespaces of its own, with what makes its nodes.
type cluster struct {
	t     *testing.T
	dir   string
	conf  string
	pids  map[string]int
	fakes *fakes
}

func newCluster(t *testing.T, dir string) *cluster {
	c := &cluster{t: t, dir: dir, conf: dir + "/etc/slurm.conf", pids: map[string]int{}}
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
	c.files()
	c.fakes = serve(t, c)
	c.start("munged", "munged", "--foreground", "--force", "--key-file="+dir+"/munge.key", "--socket="+dir+"/munge.sock", "--pid-file="+dir+"/munge.pid",
		"--log-file="+dir+"/munge.log", "--seed-file="+dir+"/munge.seed")
	c.wait("munged", func() bool { _, err := os.Stat(dir + "/munge.sock"); return err == nil })
	c.start("slurmctld", "slurmctld", "-D", "-v", "-f", c.conf)
	c.wait("scontrol ping", func() bool {
		out, _ := c.command("scontrol", "ping").Output()
		return bytes.Contains(out, []byte("is UP"))
	})
	return c
}

func (c *cluster) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(c.t.Context(), args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "SLURM_CONF="+c.conf)
	return cmd
}

func (c *cluster) run(args ...string) string {
	c.t.Helper()
	out, err := c.command(args...).CombinedOutput()
	if err != nil {
		c.t.Fatalf("%s: %v: %s\n%s", args, err, out, tail(c.log("slurmctld"), 4000))
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
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.pids[name] = cmd.Process.Pid
	c.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil && name != "perf" {
			c.t.Errorf("%s: %v\n%s", name, err, tail(c.log(name), 4000))
		}
	})
}

// wait waits for up to four times what other tests do: 500 slurmds may share two busy processors.
func (c *cluster) wait(what string, ok func() bool) {
	c.t.Helper()
	for end := time.Now().Add(4 * testkit.Bound()); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if ok() {
			return
		}
	}
	c.t.Fatalf("not within %s: %s", 4*testkit.Bound(), what)
}

// files makes Slurm's folder as berth slurm config does. What is added is where this test's sockets and files are, and a port for each node,
// since all are on one host.
func (c *cluster) files() {
	t := c.t
	host, err := os.Hostname()
	must(t, err)
	host, _, _ = strings.Cut(host, ".")
	slurm, err := user.Lookup("slurm")
	must(t, err)
	uid, err := strconv.Atoi(slurm.Uid)
	must(t, err)
	for _, d := range []string{"", "etc", "state", "lib", "spool", "log", "ran"} {
		must(t, os.MkdirAll(filepath.Join(c.dir, d), 0o755))
		must(t, os.Chmod(filepath.Join(c.dir, d), 0o755))
	}
	must(t, os.Chown(c.dir+"/state", uid, -1))
	must(t, os.Chmod(c.dir+"/ran", 0o777))
	must(t, unix.Mkfifo(c.dir+"/hold", 0o644))
	write := func(name, text string, mode os.FileMode) {
		must(t, os.WriteFile(filepath.Join(c.dir, name), []byte(text), mode))
	}
	write("munge.key", strings.Repeat("0123456789abcdef", 8), 0o400)
	for _, p := range []string{"resume", "suspend", "fail"} { // they return when the test has done it
		write("lib/slurm-"+p, fmt.Sprintf("#!/bin/bash\nexec 3<>/dev/tcp/127.0.0.1/%d\necho \"%s $1\" >&3\nread -r answer <&3\n[ \"$answer\" = done ]\n", asked, p), 0o755)
	}
	for _, p := range []string{"prolog", "epilog"} {
		write("lib/slurm-"+p, "#!/bin/sh\nexit 0\n", 0o755)
	}
	// A job says where it runs, and waits until the test opens the FIFO.
	write("job", fmt.Sprintf("#!/bin/sh\necho $SLURMD_NODENAME >%s/ran/$SLURM_JOB_ID\n[ -e %[1]s/go ] || : <%[1]s/hold\n", c.dir), 0o755)

	var hosts []string
	facts := map[string]slurmconf.Facts{}
	for i := range (*nodes + slots - 1) / slots {
		h := fmt.Sprintf("st%03d", i+1)
		hosts = append(hosts, h)
		facts[h] = slurmconf.Facts{CPUs: 64, Memory: 256 << 30, Slots: slots, Rack: "rack1", Template: &slurmconf.Template{CPUs: 1000, Memory: 1 << 30, Class: "batch"}}
	}
	yaml := fmt.Sprintf("cluster: site1\ncontroller: {host: %s, address: 192.0.2.1, state: %s/state}\nprograms: %[2]s/lib\n", strings.ToLower(host), c.dir) +
		"power: {idle: 10s, resume_timeout: 5m, suspend_timeout: 20s}\nhosts: [{hosts: [" + strings.Join(hosts, ", ") + "]}]\n"
	write("slurm.yaml", yaml, 0o600)
	s, err := settings.Read(layout.New(""), c.dir+"/slurm.yaml")
	must(t, err)
	there, err := slurmconf.ReadThere(c.dir + "/none")
	must(t, err)
	made, err := slurmconf.Make(s, facts, slurmconf.Oldest, there)
	must(t, err)
	for _, file := range made.Files {
		text := file.Text
		if file.Name == "slurm.conf" {
			text = fmt.Sprintf("AuthInfo=socket=%s/munge.sock\nSlurmctldPidFile=%[1]s/state/pid\nSlurmdPidFile=%[1]s/spool/%%n.pid\n", c.dir) +
				strings.ReplaceAll(text, "/var/spool/slurmd.%n", c.dir+"/spool/%n")
		}
		port := ports - 1
		text = regexp.MustCompile(`(?m)^NodeName=\S+ CPUs=.*$`).ReplaceAllStringFunc(text, func(line string) string {
			port++
			return fmt.Sprintf("%s Port=%d", line, port)
		})
		if *tree > 0 {
			text = strings.ReplaceAll(text, "TreeWidth=65533", fmt.Sprintf("TreeWidth=%d", *tree))
		}
		write("etc/"+file.Name, text, 0o644)
	}
}

// submit submits jobs as a plain user, one after the other.
func (c *cluster) submit(n int) {
	loop := fmt.Sprintf("for i in $(seq %d); do sbatch --parsable --chdir=/ --exclusive --nodes=1 --output=/dev/null %s/job || exit 1; done", n, c.dir)
	c.run("setpriv", "--reuid", plain, "--regid", plain, "--clear-groups", "sh", "-ec", loop)
}

func (c *cluster) running() int {
	all, _ := os.ReadDir(c.dir + "/ran")
	return len(all)
}

// release ends the jobs: each waits for a writer of the FIFO.
func (c *cluster) release() {
	f, err := os.OpenFile(c.dir+"/hold", os.O_WRONLY, 0)
	must(c.t, err)
	must(c.t, f.Close())
}

// ran is how many nodes had jobs.
func (c *cluster) ran() int {
	all := map[string]bool{}
	files, _ := filepath.Glob(c.dir + "/ran/*")
	for _, f := range files {
		text, _ := os.ReadFile(f)
		all[string(text)] = true
	}
	return len(all)
}

// fakes are nodes: a slurmd each.
type fakes struct {
	c        *cluster
	mu       sync.Mutex
	alive    map[string]*exec.Cmd
	begun    int
	gone     int
	cpu      time.Duration // of those that have ended
	calls    map[string][]int
	problems []string
}

// serve answers ResumeProgram and SuspendProgram.
func serve(t *testing.T, c *cluster) *fakes {
	f := &fakes{c: c, alive: map[string]*exec.Cmd{}, calls: map[string][]int{}}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", asked))
	must(t, err)
	t.Cleanup(func() {
		l.Close()
		f.mu.Lock()
		defer f.mu.Unlock()
		for name, cmd := range f.alive { // of a test that failed
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			t.Errorf("%s is still there", name)
		}
		for _, p := range f.problems {
			t.Error(p)
		}
	})
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go f.answer(conn)
		}
	}()
	return f
}

func (f *fakes) answer(conn io.ReadWriteCloser) {
	defer conn.Close()
	line, err := bufio.NewReader(conn).ReadString('\n')
	what, list, ok := strings.Cut(strings.TrimSpace(line), " ")
	if err != nil || !ok {
		return
	}
	text, err := f.c.command("scontrol", "show", "hostnames", list).Output()
	if err != nil {
		f.problem("hostnames of %s: %v", list, err)
	}
	names := strings.Fields(string(text))
	asked := time.Now()
	f.mu.Lock()
	f.calls[what] = append(f.calls[what], len(names))
	f.mu.Unlock()
	switch what {
	case "resume":
		var all sync.WaitGroup
		some := make(chan struct{}, 8)
		for _, name := range names {
			some <- struct{}{}
			all.Go(func() { f.begin(name, asked); <-some })
		}
		all.Wait()
	case "suspend":
		f.end(names)
	default:
		f.problem("slurmctld gave up: %s", line)
	}
	fmt.Fprintln(conn, "done")
}

func (f *fakes) problem(format string, a ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.problems = append(f.problems, fmt.Sprintf(format, a...))
}

// begin tells slurmctld a node's address, as Berth does, and starts its slurmd, in a later second than that in which the node was asked for. Each node has an address
// of its own.
func (f *fakes) begin(name string, asked time.Time) {
	host, slot, _ := strings.Cut(strings.TrimPrefix(name, "st"), "-")
	h, _ := strconv.Atoi(host)
	s, _ := strconv.Atoi(slot)
	if text, err := f.c.command("scontrol", "update", "NodeName="+name, fmt.Sprintf("NodeAddr=127.1.%d.%d", h, s), "NodeHostName="+name).CombinedOutput(); err != nil {
		f.problem("%s: %v: %s", name, err, text)
	}
	log, err := os.Create(filepath.Join(f.c.dir, "log", name))
	if err != nil {
		f.problem("%v", err)
		return
	}
	defer log.Close()
	time.Sleep(time.Until(asked.Truncate(time.Second).Add(time.Second)))
	cmd := exec.Command("nice", "-n", strconv.Itoa(*nice), "slurmd", "-b", "-D", "-N", name, "-f", f.c.conf)
	cmd.Stdout, cmd.Stderr = log, log
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.alive[name] != nil {
		f.problems = append(f.problems, name+" is there already")
		return
	}
	if err := cmd.Start(); err != nil {
		f.problems = append(f.problems, err.Error())
		return
	}
	f.alive[name] = cmd
	f.begun++
}

// end ends slurmds, and returns when all are gone, so that none is in the way of a node of the same name.
func (f *fakes) end(names []string) {
	var ending []*exec.Cmd
	f.mu.Lock()
	for _, name := range names {
		if cmd := f.alive[name]; cmd != nil {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			ending = append(ending, cmd)
			delete(f.alive, name)
		}
	}
	f.mu.Unlock()
	for _, cmd := range ending {
		if err := cmd.Wait(); err != nil {
			f.problem("slurmd: %v", err)
		}
		f.mu.Lock()
		f.gone++
		f.cpu += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		f.mu.Unlock()
	}
}

func (f *fakes) started() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.begun
}

func (f *fakes) ended() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.gone
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
