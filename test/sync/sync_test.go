// Package sync tests VNode Sync with real file servers: what nodes do on a shared file system is held on its file server.
package sync

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/site/iosync"
	"berth/internal/sys/layout"
	"berth/test/built"
	"berth/test/loop"
	"berth/test/testkit"
)

// site is one host that is a file server, and runs the nodes that use it: an agent with a disk, and a bridge to the nodes.
type site struct {
	t      *testing.T
	dir    string // of the programs
	root   string
	layout layout.Layout
	disk   string // the loop device
	served string // folder of the file system on it
	link   string // bridge between the server and the nodes
	net    string // first three numbers of its addresses
	name   string // of the host in its site
	conf   string // the agent's file, without host and file systems
	at     string // address at which its agent is reached; "": one of the loopback's
	netns  string // that its agent is in; "": the host's
	left   bool   // the host has left its site
	agent  *exec.Cmd
	said   testkit.Output
}

// needs skips a test where a program is missing.
func needs(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("needs %s", p)
		}
	}
}

func newSite(t *testing.T, net string) *site {
	t.Helper()
	return siteOn(t, net, func() string { return loop.ForTest(t, 1<<30) })
}

// siteOn is newSite on a disk that is made when nothing is missing.
func siteOn(t *testing.T, net string, disk func() string) *site {
	t.Helper()
	needs(t, "ip", "sshfs", "mkfs.ext4")
	testkit.NeedsRoot(t)
	if tree() == "" {
		t.Skip("needs cgroup v1 with blkio: on v2 the lab has file servers")
	}
	if err := sweepOnce(); err != nil {
		t.Error(err)
	}
	dir, err := os.MkdirTemp("/var/tmp", "berth-sync-")
	if err != nil {
		t.Fatal(err)
	}
	s := &site{
		t: t, dir: dir, root: dir + "/root", layout: layout.New(dir + "/root"), served: dir + "/served", net: net,
		link: fmt.Sprintf("b%d%s", os.Getpid(), net[strings.LastIndex(net, ".")+1:]), name: "a", conf: "local: true\n",
	}
	note, err := mine(dir, s.link)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer note.Close()
		if t.Failed() {
			t.Logf("berthd said:\n%s", s.said.String())
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	for _, d := range []string{s.root, s.served} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := built.Berth(t.Context(), dir+"/berth"); err != nil {
		t.Fatal(err)
	}
	if err := built.Agent(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if err := built.Sync(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if s.disk = os.Getenv(labDisk); s.disk == "" {
		s.disk = disk()
	}
	s.run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0", "-O", "^has_journal", s.disk)
	s.run("mount", "-o", "noatime", s.disk, s.served)
	t.Cleanup(func() { s.run("umount", s.served) })
	t.Cleanup(s.leave)
	// With a MAC of its own: see "A bridge without a MAC of its own" in docs/networking.md.
	last, err := strconv.Atoi(net[strings.LastIndex(net, ".")+1:])
	testkit.Must(t, err)
	s.run("ip", "link", "add", s.link, "address", fmt.Sprintf("02:00:5e:20:00:%02x", last), "type", "bridge")
	t.Cleanup(func() { s.run("ip", "link", "del", s.link) })
	s.run("ip", "address", "add", net+".1/24", "dev", s.link)
	s.run("ip", "link", "set", s.link, "up")
	return s
}

// leave takes the host out of its site: no groups of nodes stay.
func (s *site) leave() {
	s.t.Helper()
	if !s.left {
		s.left = true
		c := s.berthd("--leave")
		s.run(c.Path, c.Args[1:]...)
	}
}

// berthd is the program, in the network namespace of the agent.
func (s *site) berthd(args ...string) *exec.Cmd {
	words := append([]string{s.dir + "/berthd", "--root", s.root}, args...)
	if s.netns != "" {
		words = append([]string{"nsenter", "--net=/run/netns/" + s.netns, "--"}, words...)
	}
	return exec.Command(words[0], words[1:]...)
}

// run runs a program, which must succeed.
func (s *site) run(name string, args ...string) string {
	s.t.Helper()
	out, err := run(name, args...)
	if err != nil {
		s.t.Error(err)
	}
	return out
}

// berth runs the program berth.
func (s *site) berth(args ...string) string {
	s.t.Helper()
	return s.run(s.dir+"/berth", append([]string{"--root", s.root}, args...)...)
}

// configure writes the agent's file.
func (s *site) configure(filesystems string) {
	s.t.Helper()
	text := "host: " + s.name + "\n" + s.conf + filesystems
	if err := os.WriteFile(s.root+"/berthd.yaml", []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// start starts the agent, and waits until it answers.
func (s *site) start() {
	s.t.Helper()
	s.launch()
	s.answers()
}

// launch starts the agent.
func (s *site) launch() {
	s.t.Helper()
	s.agent = s.berthd()
	s.agent.Stdout, s.agent.Stderr = &s.said, &s.said
	if err := s.agent.Start(); err != nil {
		s.t.Fatal(err)
	}
	agent := s.agent
	s.t.Cleanup(func() {
		if agent.ProcessState == nil {
			s.end(agent, syscall.SIGTERM)
		}
	})
}

// answers waits until the agent answers.
func (s *site) answers() {
	s.t.Helper()
	s.eventually("berthd answers", 20*time.Second, func() bool {
		_, err := os.Stat(s.layout.SiteSocket())
		return err == nil && exec.Command(s.dir+"/berth", "--root", s.root, "host", "ls").Run() == nil || strings.Contains(s.said.String(), "berthd answers")
	})
}

func (s *site) end(agent *exec.Cmd, sig syscall.Signal) {
	s.t.Helper()
	if err := agent.Process.Signal(sig); err != nil {
		s.t.Error(err)
	}
	_ = agent.Process.Signal(syscall.SIGCONT) // a test may have stopped it; it may have ended
	_ = agent.Wait()
}

// eventually waits for something that follows from an event. How long that may take is only judged where the run measures.
func (s *site) eventually(what string, most time.Duration, is func() bool) time.Duration {
	s.t.Helper()
	if emulated {
		most *= 5
	}
	if !testkit.Measures() {
		most = max(most, testkit.Bound())
	}
	for begun := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		if is() {
			return time.Since(begun)
		}
		if time.Since(begun) > most {
			s.t.Fatalf("%s: not within %v", what, most)
		}
	}
}

// held is what berth sync ls says of a node.
func (s *site) held(node string) (iosync.Held, bool) {
	s.t.Helper()
	var all []iosync.Held
	if err := json.Unmarshal([]byte(s.berth("sync", "ls", "--json")), &all); err != nil {
		s.t.Fatal(err)
	}
	for _, h := range all {
		if h.Node == node {
			return h, true
		}
	}
	return iosync.Held{}, false
}

// number is the disk's number, as berthd publishes it.
func (s *site) number() string {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.layout.Run, "sync", "shared", "disk"))
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// diskDid is how many bytes the disk read (field 2) or wrote (6), for anybody.
func (s *site) diskDid(field int) uint64 {
	s.t.Helper()
	text, err := os.ReadFile("/sys/block/" + filepath.Base(s.disk) + "/stat")
	if err != nil {
		s.t.Fatal(err)
	}
	n, err := strconv.ParseUint(strings.Fields(string(text))[field], 10, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return n * 512
}

// diskReads is how many bytes were read from the disk.
func (s *site) diskReads() uint64 { return s.diskDid(2) }

// settled waits until the disk has done what was asked of it: a group is charged when a request comes, the disk counts when it is done.
func (s *site) settled() {
	s.t.Helper()
	last := s.diskReads()
	s.eventually("the disk comes to rest", 10*time.Second, func() bool {
		time.Sleep(300 * time.Millisecond)
		now := s.diskReads()
		rests := now == last
		last = now
		return rests
	})
}

// file makes a file of the file system that is not in the page cache.
func (s *site) file(name string, size int64) string {
	s.t.Helper()
	path := filepath.Join(s.served, name)
	f, err := os.Create(path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer f.Close()
	block := bytes.Repeat([]byte("berth"), 1<<18)
	for at := int64(0); at < size; at += int64(len(block)) {
		if _, err := f.Write(block); err != nil {
			s.t.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		s.t.Fatal(err)
	}
	s.forget(f)
	return path
}

// forget takes a file out of the page cache.
func (s *site) forget(f *os.File) {
	s.t.Helper()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		s.t.Fatal(err)
	}
}

// cold takes a file of the file system out of the page cache.
func (s *site) cold(name string) {
	s.t.Helper()
	f, err := os.Open(filepath.Join(s.served, name))
	if err != nil {
		s.t.Fatal(err)
	}
	defer f.Close()
	s.forget(f)
}

// node makes a node at an address, with more keys.
func (s *site) node(name string, last int, more string) {
	s.t.Helper()
	text := fmt.Sprintf("name: %s\nimage: host\ncommand: [sleep, infinity]\nnetwork: [{mode: bridge, parent: %s, address: [%s.%d/24]}]\n%s",
		name, s.link, s.net, last, more)
	path := filepath.Join(s.dir, name+".yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.berth("apply", "-f", path)
	s.t.Cleanup(func() { _ = exec.Command(s.dir+"/berth", "--root", s.root, "rm", "--force", name).Run() }) // it may be gone
}
