// Package slurm tests nodes on demand with a real Slurm: jobs have nodes made and removed, whatever fails meanwhile.
package slurm

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/sys/layout"
	"berth/test/built"
	"berth/test/testkit"
)

// site is a cluster of the test's own: a bridge with a DHCP server, munged, slurmctld, and agents whose nodes slurmctld has made.
type site struct {
	*testing.T
	whole    *testing.T // of which T may be a part
	dir      string     // of all
	hosts    []*host
	layout   layout.Layout // of the first one
	berth    string
	bridge   string
	subnet   string // three numbers of its addresses
	slots    int    // of each host
	mounts   []string
	strict   bool   // slurmctld looks whether nodes have what they should, among that scratch space
	hasty    bool   // slurmctld soon gives up nodes that do not answer: only where that is looked at, because a busy machine is slow
	store    string // endpoint of an etcd; "": the host has its own
	user     string // SlurmUser
	services map[string]*exec.Cmd
}

// newSite makes a cluster with nodes on one host. mounts are more mounts of the template, lines of YAML with CONF for the folder of its files.
func newSite(t *testing.T, slots int, mounts ...string) *site {
	t.Helper()
	needs(t)
	return (&site{T: t, slots: slots, mounts: mounts}).begin("st01")
}

// needs skips a test where there is no Slurm.
func needs(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("no nodes with -short")
	}
	testkit.NeedsRoot(t)
	for program, from := range map[string]string{"slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "munged": "munge", "dnsmasq": "dnsmasq-base"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed: apt-get install %s", program, from)
		}
	}
}

// sites counts the clusters of this process: their names differ.
var sites atomic.Int32

// begin starts everything, with these hosts.
func (s *site) begin(hosts ...string) *site {
	t := s.T
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) { // nodes, whose users have no rights here, traverse it
		testkit.Must(t, os.Chmod(d, 0o755))
	}
	pid, n := os.Getpid(), int(sites.Add(1)) // some tests run at once
	s.whole, s.dir, s.berth, s.user, s.services = t, dir, filepath.Join(dir, "bin/berth"), "slurm", map[string]*exec.Cmd{}
	s.bridge, s.subnet = fmt.Sprintf("bsl%xn%d", pid, n), fmt.Sprintf("198.18.%d", (pid+89*n)%250)
	for i, name := range hosts {
		root := filepath.Join(dir, name)
		s.hosts = append(s.hosts, &host{name, root, layout.New(root), fmt.Sprintf("127.%d.%d.%d:7611", 1+pid%200, pid/200%250, 8*n%240+i+1)})
	}
	s.layout = s.hosts[0].layout
	for _, d := range []string{"bin", "conf", "lib/berth", "munge", "state", "work", "log"} {
		testkit.Must(t, os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	testkit.Must(t, os.Chmod(filepath.Join(dir, "work"), 0o1777))
	testkit.Must(t, built.Berth(t.Context(), s.berth))
	testkit.Must(t, built.Site(t.Context(), filepath.Join(dir, "bin")))
	testkit.Must(t, built.Agent(t.Context(), filepath.Join(dir, "bin")))
	t.Cleanup(s.tell)
	s.network()
	s.munge()
	s.settings()
	for _, h := range s.hosts {
		s.startAgent(h)
	}
	s.conf()
	s.startSlurm()
	return s
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

func (s *site) write(name, text string, mode os.FileMode) string {
	s.Helper()
	testkit.Must(s, os.WriteFile(s.path(name), []byte(text), mode))
	testkit.Must(s, os.Chmod(s.path(name), mode))
	return s.path(name)
}

func (s *site) run(name string, args ...string) string {
	s.Helper()
	out, err := s.try(name, args...)
	if err != nil {
		s.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return out
}

// try runs a program as those of Slurm are run: with this cluster's file.
func (s *site) try(name string, args ...string) (string, error) { return s.tryAs(0, name, args...) }

func (s *site) tryAs(uid uint32, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Bound())
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "SLURM_CONF="+s.path("conf/slurm.conf"))
	cmd.Dir = s.path("work")
	if uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// serve starts a program that ends with the test.
func (s *site) serve(name string, args ...string) {
	s.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	log, err := os.OpenFile(s.path("log/"+name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	testkit.Must(s, err)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "SLURM_CONF="+s.path("conf/slurm.conf"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	testkit.Must(s, cmd.Start())
	s.services[name] = cmd
	s.whole.Cleanup(func() { s.end(name, unix.SIGTERM) })
}

// end ends a service. One that does not end soon is killed.
func (s *site) end(name string, sig syscall.Signal) {
	cmd := s.services[name]
	if cmd == nil {
		return
	}
	delete(s.services, name)
	_ = cmd.Process.Signal(sig)
	late := time.AfterFunc(testkit.Bound(), func() { _ = cmd.Process.Kill() })
	_ = cmd.Wait()
	late.Stop()
}

func (s *site) network() {
	s.Helper()
	s.run("ip", "link", "add", s.bridge, "type", "bridge")
	s.Cleanup(func() { _, _ = s.try("ip", "link", "del", s.bridge) })
	s.run("ip", "addr", "add", s.subnet+".1/24", "dev", s.bridge)
	s.run("ip", "link", "set", s.bridge, "up")
	s.serve("dnsmasq", "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--user=root", "--port=0", "--interface="+s.bridge,
		"--except-interface=lo", "--bind-interfaces", "--dhcp-authoritative", "--no-ping", "--dhcp-leasefile="+s.path("state/leases"),
		"--dhcp-range="+s.subnet+".50,"+s.subnet+".99,255.255.255.0,12h")
}

func (s *site) munge() {
	s.Helper()
	s.write("conf/munge.key", strings.Repeat("a key of this test alone ", 8), 0o400)
	testkit.Must(s, os.Chmod(s.path("munge"), 0o755))
	s.serve("munged", "munged", "-F", "--force", "--key-file="+s.path("conf/munge.key"), "--socket="+s.socket(), "--pid-file="+s.path("munge/pid"),
		"--log-file="+s.path("munge/log"), "--seed-file="+s.path("munge/seed"))
	s.until("munged answers", func() bool { _, err := os.Stat(s.socket()); return err == nil })
}

func (s *site) socket() string { return s.path("munge/socket") }

// conf makes Slurm's files: those that Berth writes, and the site's own, with shorter times.
func (s *site) conf() {
	s.Helper()
	l, err := net.Listen("tcp", s.subnet+".1:0")
	testkit.Must(s, err)
	port := l.Addr().(*net.TCPAddr).Port
	testkit.Must(s, l.Close())
	text := fmt.Sprintf(`ClusterName=berthtest
SlurmctldHost=%s(%s.1)
SlurmctldPort=%d
SlurmUser=%s
AuthType=auth/munge
StateSaveLocation=%s
SlurmctldPidFile=%[5]s/slurmctld.pid
SlurmdSpoolDir=/var/spool/slurmd
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
MpiDefault=none
ReturnToService=1
SlurmdTimeout=%[6]d
MinJobAge=7200
SlurmctldParameters=power_save_interval=1
DebugFlags=Power,NO_CONF_HASH
SlurmctldDebug=debug
`, hostname(), s.subnet, port, s.user, s.path("state"), s.timeouts().slurmd)
	if !s.strict {
		text += "SlurmdParameters=config_overrides\n"
	}
	const last = "include berth.conf\n"
	testkit.Must(s, os.MkdirAll(s.path("conf/node"), 0o755))
	s.write("conf/slurm.conf", text+"AuthInfo=socket="+s.socket()+"\n"+last, 0o644)
	s.write("conf/node/slurm.conf", text+last, 0o644)
	s.until("the agents tell of all hosts", func() bool {
		out, err := s.try(s.berth, "--root", s.hosts[0].root, "slurm", "config", "--output", s.path("conf"))
		s.write("log/config", out, 0o644)
		return err == nil
	})
	made, err := filepath.Glob(s.path("conf/*.conf"))
	testkit.Must(s, err)
	for _, file := range made {
		if name := filepath.Base(file); name != "slurm.conf" {
			text, err := os.ReadFile(file)
			testkit.Must(s, err)
			s.write("conf/node/"+name, string(text), 0o644)
		}
	}
	s.run("chown", "-R", s.user, s.path("operator"))
	s.write("conf/node/node", inside, 0o644)
	key, err := os.ReadFile(s.path("conf/munge.key"))
	testkit.Must(s, err)
	s.write("conf/node/munge.key", string(key), 0o400)
	s.run("chown", s.user, s.path("state"))
}

func hostname() string {
	name, _ := os.Hostname() // it is that of this machine, or Slurm does not start
	return name
}

func (s *site) startSlurm() {
	s.Helper()
	passwd, err := os.ReadFile("/etc/passwd")
	testkit.Must(s, err)
	s.write("conf/node/passwd", string(passwd)+"alice:x:1500:1500::"+s.path("work/alice")+":/bin/sh\n"+ // users whom slurmctld alone knows: it tells slurmd
		hostileName+":x:1501:1501::/:/bin/sh\n", 0o644)
	names := "127.0.0.1 localhost\n" + s.subnet + ".1 " + hostname() + "\n"
	for _, h := range s.hosts {
		address, _, _ := strings.Cut(h.address, ":")
		names += address + " " + h.name + "\n"
	}
	s.write("conf/hosts", names, 0o644)
	s.serve("slurmctld", "unshare", "--mount", "--propagation=private", "/bin/sh", "-ec",
		`mount --bind "$1" /etc/passwd; mount --bind "$2" /etc/hosts; exec slurmctld -D -f "$3"`, "sh", s.path("conf/node/passwd"), s.path("conf/hosts"), s.path("conf/slurm.conf"))
	s.until("slurmctld answers", func() bool { _, err := s.try("scontrol", "ping"); return err == nil })
}

// hostileName is the name of user 1501: no shell, list or message must take it for more than a name.
const hostileName = `x$(touch${IFS}gained);'"|st01-01,root uid=0 -oProxyCommand=y`

// tell shows the logs of a test that failed.
func (s *site) tell() {
	if !s.Failed() {
		return
	}
	names := []string{"log/config", "log/slurmctld", "log/slurmdbd", "log/mariadbd", "work/programs"}
	for _, h := range s.hosts {
		names = append(names, "log/berthd-"+h.name)
	}
	for _, name := range names {
		text, err := os.ReadFile(s.path(name))
		if err != nil {
			continue
		}
		s.Logf("%s:\n%s", name, text[max(0, len(text)-6000):])
	}
}

// until waits for something that must come.
func (s *site) until(what string, is func() bool) {
	s.Helper()
	s.within(testkit.Bound(), what, is)
}

func (s *site) within(patience time.Duration, what string, is func() bool) {
	s.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			for _, args := range [][]string{{"show", "job"}, {"show", "node"}} {
				out, err := s.try("scontrol", args...)
				s.Logf("scontrol %s: %v\n%s", args, err, out)
			}
			for _, name := range s.nodes() {
				out, _ := s.try(s.berth, "--root", s.of(name).root, "logs", name)
				s.Logf("node %s: %s", name, out)
			}
			s.Fatalf("not so after %v: %s", patience, what)
		}
	}
}

// submit submits a job of user 1500 and returns its id.
func (s *site) submit(script string, args ...string) string {
	s.Helper()
	return s.submitAs(1500, script, args...)
}

func (s *site) submitAs(uid uint32, script string, args ...string) string {
	s.Helper()
	file := s.write("work/script", "#!/bin/sh\n"+script, 0o755)
	out, err := s.tryAs(uid, "sbatch", append(append([]string{"--parsable", "--output=" + s.path("work/%j.out")}, args...), file)...)
	if err != nil {
		s.Fatalf("sbatch: %v: %s", err, out)
	}
	return out
}

// job returns a field of a job.
func (s *site) job(id, field string) string {
	s.Helper()
	for word := range strings.FieldsSeq(s.run("scontrol", "show", "job", id)) {
		if value, ok := strings.CutPrefix(word, field+"="); ok {
			return value
		}
	}
	return ""
}

// log returns what the programs wrote that slurmctld started.
func (s *site) log() string {
	text, _ := os.ReadFile(s.path("work/programs"))
	return string(bytes.TrimSpace(text))
}
