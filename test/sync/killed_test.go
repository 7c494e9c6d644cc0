package sync

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/test/built"
	"berth/test/sample"
	"berth/test/testkit"
)

// TestAgentKilled kills the agent of a file server at each point at which it changes the kernel or its records, while it begins to serve
// a file system, takes over a changed entry of its file, has a node come and go, and leaves its site: the next agent completes that, and
// nothing is left.
func TestAgentKilled(t *testing.T) {
	const instances = "server: xrootd, way: instances, port: 1094, user: xrootd"
	type entry struct{ name, keys string }
	for i, c := range sample.Some(sample.Of(t), 1, entry{"sftp", "server: sftp"}, entry{"other", "server: other, interface: "},
		entry{"samba", "server: samba, way: gate, port: 4450"}, entry{"instances", instances}, entry{"changed", instances}) {
		t.Run(c.name, func(t *testing.T) {
			if c.keys == instances {
				needs(t, xrootd.programs...)
			}
			s := newSite(t, fmt.Sprint("198.51.", 111+i))
			if err := built.Agent(t.Context(), s.dir, "berthfault"); err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(c.keys, ": ") {
				c.keys += s.link
			}
			if c.keys == instances {
				s.apart()
				c.keys += s.instancesIn("/run/netns/" + s.link)
			}
			s.configure(fmt.Sprintf("filesystems: [{name: shared, path: %s, %s}]\n", s.served, c.keys))
			nothing := func(at string) {
				t.Helper()
				_, groups := os.Stat(s.group(".."))
				_, table := os.Stat(s.layout.Run + "/sync/shared")
				if left := s.run("tc", "qdisc", "show", "dev", s.link); groups == nil || table == nil || s.ifb() != "" || strings.Contains(left, "htb") || strings.Contains(left, "clsact") {
					t.Errorf("killed at %s, and left by another: groups %v, table %v, ifb %q, %s", at, groups, table, s.ifb(), left)
				}
				if left := s.pins() + s.processes(); left != "" {
					t.Errorf("killed at %s, and left by another: %s", at, left)
				}
			}
			lives := s.lives
			if c.name == "changed" { // by the word that names an instance
				was := fmt.Sprintf("filesystems: [{name: shared, path: %s, %s}]\n", s.served, c.keys)
				lives = func(env string) bool {
					s.before(was)
					s.configure(strings.Replace(was, "'{node}'", "'changed-{node}'", 1))
					return s.lives(env)
				}
			}
			if lives("BERTH_FAULT_LOG=" + s.dir + "/points") {
				t.Fatal("the agent ended by itself")
			}
			nothing("no point")
			n, step, kills := 1, 1, 0
			if half := sample.Some(sample.Of(t), 1, 0, 1); strings.HasPrefix(c.keys, instances) && len(half) == 1 { // it has twice as many points as others
				n, step = 1+half[0], 2
			}
			for ; lives(fmt.Sprint("BERTH_FAULT=", n)); n += step { // the last passes no more points
				nothing(s.pointOf(n))
				kills++
			}
			if t.Logf("killed at %d points", kills); kills < 5 {
				t.Errorf("killed at %d points", kills)
			}
		})
	}
}

// before has an agent serve a node by an entry of its file, and end.
func (s *site) before(filesystems string) {
	s.t.Helper()
	s.configure(filesystems)
	agent := s.agentWith()
	s.eventually("the node has an instance", 30*time.Second, s.there())
	agent.stop()
}

// there applies the node, and reports whether its limit is there, and its instance if it has one, by the entry of the agent's file.
func (s *site) there() func() bool {
	s.t.Helper()
	text := fmt.Sprintf("name: n\nimage: host\ncommand: [sleep, infinity]\nnetwork: [{mode: bridge, parent: %s, address: [%s.2/24]}]\n"+
		"io: [{name: s, filesystem: shared, read: {rate: 10MB/s}}]\n", s.link, s.net)
	spec := s.write("n.yaml", text)
	conf, err := os.ReadFile(s.root + "/berthd.yaml")
	testkit.Must(s.t, err)
	word := "xrootd"
	if strings.Contains(string(conf), "changed-") {
		word = "changed-n"
	}
	return func() bool {
		if exec.Command(s.dir+"/berth", "--root", s.root, "apply", "-f", spec).Run() != nil {
			return false
		}
		h, ok := s.held("n")
		return ok && len(h.Limits) == 1 && h.Limits[0].Holds && h.Failed == "" && (h.Way != "instances" || strings.Contains(s.processes(), word))
	}
}

// pointOf names a point.
func (s *site) pointOf(n int) string {
	text, _ := os.ReadFile(s.dir + "/points")
	for line := range strings.Lines(string(text)) {
		if number, name, _ := strings.Cut(strings.TrimSpace(line), " "); number == fmt.Sprint(n) {
			return name
		}
	}
	return fmt.Sprint("point ", n)
}

// running is an agent.
type running struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

func (s *site) agentWith(env ...string) running {
	s.t.Helper()
	r := running{exec.Command(s.dir+"/berthd", "--root", s.root), make(chan struct{})}
	r.cmd.Env = append(os.Environ(), env...)
	r.cmd.Stdout, r.cmd.Stderr = &s.said, &s.said
	if err := r.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() { _ = r.cmd.Wait(); close(r.ended) }()
	s.t.Cleanup(r.stop)
	return r
}

func (r running) stop() {
	_ = r.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	<-r.ended
}

// lives plays the life of a file system with an environment for the first agent, and with another agent when that one is killed, and
// reports whether it was.
func (s *site) lives(env string) (killed bool) {
	s.t.Helper()
	agent := s.agentWith(env)
	goesOn := func() { // with another agent
		select {
		case <-agent.ended:
			killed, agent = true, s.agentWith()
		default:
		}
	}
	berth := func(args ...string) bool {
		return exec.Command(s.dir+"/berth", append([]string{"--root", s.root}, args...)...).Run() == nil
	}
	there := s.there()
	s.eventually("the node is there, and its limit", 30*time.Second, func() bool {
		goesOn()
		return there()
	})
	s.eventually("the node is gone, and what was held", 30*time.Second, func() bool {
		goesOn()
		if berth("show", "n") && !berth("rm", "--force", "n") {
			return false
		}
		_, ok := s.held("n")
		return !ok
	})
	goesOn()
	agent.stop()
	leave := exec.Command(s.dir+"/berthd", "--root", s.root, "--leave")
	leave.Env = append(os.Environ(), env)
	if out, err := leave.CombinedOutput(); err != nil {
		if killed = leave.ProcessState.Sys().(syscall.WaitStatus).Signaled(); !killed {
			s.t.Errorf("berthd --leave: %v: %s", err, out)
		}
		s.run(s.dir+"/berthd", "--root", s.root, "--leave")
	}
	return killed
}
