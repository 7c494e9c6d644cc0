//go:build growth

package slurmgrowth

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/site/slurm/settings"
	"berth/internal/site/slurm/slurmconf"
	"berth/internal/sys/layout"
	"berth/test/controller"
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
	*controller.Controller
	fakes *fakes
}

func newCluster(t *testing.T, dir string) *cluster {
	c := &cluster{Controller: controller.New(t, dir)}
	c.Wait = 4 * testkit.Bound() // 500 slurmds may share two busy processors
	c.files()
	c.fakes = serve(t, c)
	c.Begin()
	return c
}

// files makes Slurm's folder as berth slurm config does. What is added is where this test's sockets and files are, and a port for each node,
// since all are on one host.
func (c *cluster) files() {
	t := c.T
	for _, d := range []string{"log", "ran"} {
		testkit.Must(t, os.MkdirAll(filepath.Join(c.Dir, d), 0o755))
	}
	testkit.Must(t, os.Chmod(c.Dir+"/ran", 0o777))
	testkit.Must(t, unix.Mkfifo(c.Dir+"/hold", 0o644))
	for _, p := range []string{"resume", "suspend", "fail"} { // they return when the test has done it
		c.Write("lib/slurm-"+p, fmt.Sprintf("#!/bin/bash\nexec 3<>/dev/tcp/127.0.0.1/%d\necho \"%s $1\" >&3\nread -r answer <&3\n[ \"$answer\" = done ]\n", asked, p), 0o755)
	}
	for _, p := range []string{"prolog", "epilog"} {
		c.Write("lib/slurm-"+p, "#!/bin/sh\nexit 0\n", 0o755)
	}
	// A job says where it runs, and waits until the test opens the FIFO.
	c.Write("job", fmt.Sprintf("#!/bin/sh\necho $SLURMD_NODENAME >%s/ran/$SLURM_JOB_ID\n[ -e %[1]s/go ] || : <%[1]s/hold\n", c.Dir), 0o755)

	var hosts []string
	facts := map[string]slurmconf.Facts{}
	for i := range (*nodes + slots - 1) / slots {
		h := fmt.Sprintf("st%03d", i+1)
		hosts = append(hosts, h)
		facts[h] = slurmconf.Facts{CPUs: 64, Memory: 256 << 30, Slots: slots, Rack: "rack1", Template: &slurmconf.Template{CPUs: 1000, Memory: 1 << 30, Class: "batch"}}
	}
	yaml := fmt.Sprintf("cluster: site1\ncontroller: {host: %s, address: 192.0.2.1, state: %s/state}\nprograms: %[2]s/lib\n", c.Host(), c.Dir) +
		"power: {idle: 10s, resume_timeout: 5m, suspend_timeout: 20s}\nhosts: [{hosts: [" + strings.Join(hosts, ", ") + "]}]\n"
	c.Write("slurm.yaml", yaml, 0o600)
	s, err := settings.Read(layout.New(""), c.Dir+"/slurm.yaml")
	testkit.Must(t, err)
	there, err := slurmconf.ReadThere(c.Dir + "/none")
	testkit.Must(t, err)
	made, err := slurmconf.Make(s, facts, slurmconf.Oldest, there)
	testkit.Must(t, err)
	for _, file := range made.Files {
		text := file.Text
		port := ports - 1
		text = regexp.MustCompile(`(?m)^NodeName=\S+ CPUs=.*$`).ReplaceAllStringFunc(text, func(line string) string {
			port++
			return fmt.Sprintf("%s Port=%d", line, port)
		})
		if *tree > 0 {
			text = strings.ReplaceAll(text, "TreeWidth=65533", fmt.Sprintf("TreeWidth=%d", *tree))
		}
		c.File(file.Name, text)
	}
}

// submit submits jobs as a plain user, one after the other.
func (c *cluster) submit(n int) {
	loop := fmt.Sprintf("for i in $(seq %d); do sbatch --parsable --chdir=/ --exclusive --nodes=1 --output=/dev/null %s/job || exit 1; done", n, c.Dir)
	c.Run("setpriv", "--reuid", plain, "--regid", plain, "--clear-groups", "sh", "-ec", loop)
}

func (c *cluster) running() int {
	all, _ := os.ReadDir(c.Dir + "/ran")
	return len(all)
}

// release ends the jobs: each waits for a writer of the FIFO.
func (c *cluster) release() {
	f, err := os.OpenFile(c.Dir+"/hold", os.O_WRONLY, 0)
	testkit.Must(c.T, err)
	testkit.Must(c.T, f.Close())
}

// ran is how many nodes had jobs.
func (c *cluster) ran() int {
	all := map[string]bool{}
	files, _ := filepath.Glob(c.Dir + "/ran/*")
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
	testkit.Must(t, err)
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
	text, err := f.c.Command("scontrol", "show", "hostnames", list).Output()
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
	if text, err := f.c.Command("scontrol", "update", "NodeName="+name, fmt.Sprintf("NodeAddr=127.1.%d.%d", h, s), "NodeHostName="+name).CombinedOutput(); err != nil {
		f.problem("%s: %v: %s", name, err, text)
	}
	log, err := os.Create(filepath.Join(f.c.Dir, "log", name))
	if err != nil {
		f.problem("%v", err)
		return
	}
	defer log.Close()
	time.Sleep(time.Until(asked.Truncate(time.Second).Add(time.Second)))
	cmd := exec.Command("nice", "-n", strconv.Itoa(*nice), "slurmd", "-b", "-D", "-N", name, "-f", f.c.Conf)
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
