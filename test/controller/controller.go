// Package controller runs a real slurmctld with its munged in namespaces of a test's own.
package controller

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/testkit"
)

// Controller is a slurmctld that has 192.0.2.1 in the network namespace of this process.
type Controller struct {
	T    *testing.T
	Dir  string         // of its files: etc, state, lib, and a log of each daemon
	Conf string         // slurm.conf
	PIDs map[string]int // of the daemons, by name
	Wait time.Duration  // for how long Until waits
}

// New makes the folders and the network. The process is the first one of mount, PID and network namespaces that nobody else uses.
func New(t *testing.T, dir string) *Controller {
	t.Helper()
	c := &Controller{T: t, Dir: dir, Conf: filepath.Join(dir, "etc", "slurm.conf"), PIDs: map[string]int{}, Wait: testkit.Bound()}
	testkit.Must(c.T, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	testkit.Must(c.T, unix.Mount("proc", "/proc", "proc", 0, ""))
	c.Run("ip", "link", "set", "lo", "up")
	c.Run("ip", "link", "add", "br0", "type", "bridge") // names are looked up only where there is an address besides the loopback's
	c.Run("ip", "address", "add", "192.0.2.1/24", "dev", "br0")
	c.Run("ip", "link", "set", "br0", "up")
	slurm, err := user.Lookup("slurm")
	testkit.Must(c.T, err)
	uid, err := strconv.Atoi(slurm.Uid)
	testkit.Must(c.T, err)
	for _, d := range []string{"", "etc", "state", "lib"} {
		testkit.Must(c.T, os.MkdirAll(filepath.Join(dir, d), 0o755))
		testkit.Must(c.T, os.Chmod(filepath.Join(dir, d), 0o755))
	}
	testkit.Must(c.T, os.Chown(dir+"/state", uid, -1))
	c.Write("munge.key", strings.Repeat("0123456789abcdef", 8), 0o400)
	return c
}

// Host returns the name of this host, as slurmctld wants it.
func (c *Controller) Host() string {
	c.T.Helper()
	host, err := os.Hostname()
	testkit.Must(c.T, err)
	host, _, _ = strings.Cut(host, ".")
	return strings.ToLower(host)
}

// File writes one of Slurm's files. To slurm.conf it adds where this test's sockets and files are.
func (c *Controller) File(name, text string) {
	c.T.Helper()
	if name == "slurm.conf" {
		text = fmt.Sprintf("AuthInfo=socket=%[1]s/munge.sock\nSlurmctldPidFile=%[1]s/state/pid\nSlurmdPidFile=%[1]s/slurmd.%%n.pid\n", c.Dir) +
			strings.ReplaceAll(text, "/var/spool/slurmd.", c.Dir+"/slurmd.")
	}
	c.Write("etc/"+name, text, 0o644)
}

// Write writes a file below Dir.
func (c *Controller) Write(name, text string, mode os.FileMode) {
	c.T.Helper()
	testkit.Must(c.T, os.WriteFile(filepath.Join(c.Dir, name), []byte(text), mode))
}

// Begin starts munged and slurmctld, and waits until it answers.
func (c *Controller) Begin() {
	c.T.Helper()
	dir := c.Dir
	c.Start("munged", "munged", "--foreground", "--force", "--key-file="+dir+"/munge.key", "--socket="+dir+"/munge.sock", "--pid-file="+dir+"/munge.pid",
		"--log-file="+dir+"/munge.log", "--seed-file="+dir+"/munge.seed")
	c.Until("munged", func() bool { _, err := os.Stat(dir + "/munge.sock"); return err == nil })
	c.Start("slurmctld", "slurmctld", "-D", "-v", "-f", c.Conf)
	c.Until("scontrol ping", func() bool {
		out, _ := c.Command("scontrol", "ping").Output()
		return bytes.Contains(out, []byte("is UP"))
	})
}

// Command makes a command of Slurm for this slurmctld.
func (c *Controller) Command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(c.T.Context(), args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "SLURM_CONF="+c.Conf)
	return cmd
}

// Run runs a command, which works, and returns what it printed.
func (c *Controller) Run(args ...string) string {
	c.T.Helper()
	out, err := c.Command(args...).CombinedOutput()
	if err != nil {
		c.T.Fatalf("%s: %v: %s\n%s", args, err, out, Tail(c.Log("slurmctld"), 4000))
	}
	return string(out)
}

// Log returns what a daemon has printed.
func (c *Controller) Log(of string) string {
	text, _ := os.ReadFile(filepath.Join(c.Dir, of+".log"))
	return string(text)
}

// Tail returns the last n bytes of a text.
func Tail(text string, n int) string { return text[max(0, len(text)-n):] }

// Start starts a daemon, which ends with the test.
func (c *Controller) Start(name string, args ...string) {
	c.T.Helper()
	log, err := os.Create(filepath.Join(c.Dir, name+".log"))
	testkit.Must(c.T, err)
	defer log.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	testkit.Must(c.T, cmd.Start())
	c.PIDs[name] = cmd.Process.Pid
	c.T.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil && name != "perf" {
			c.T.Errorf("%s: %v\n%s", name, err, Tail(c.Log(name), 4000))
		}
	})
}

// Until waits for what slurmctld does: it looks for nodes to resume, and for those that answer, every ten seconds or less often, so a call
// each 50 ms is enough.
func (c *Controller) Until(what string, ok func() bool) {
	c.T.Helper()
	for end := time.Now().Add(c.Wait); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if ok() {
			return
		}
	}
	c.T.Fatalf("not within %s: %s\n%s", c.Wait, what, Tail(c.Log("slurmctld"), 4000))
}
