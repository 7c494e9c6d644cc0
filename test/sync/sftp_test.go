package sync

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/test/testkit"
)

const shared = "filesystems: [{name: shared, path: %s, server: sftp}]\n"

// serve starts the file server: berth gateway serve, whose processes begin in the groups of nodes.
func (s *site) serve() { s.serveAt(s.net, "7022") }

// serveAt starts it at the address .1 of a network, for its nodes.
func (s *site) serveAt(net, port string) {
	s.t.Helper()
	s.eventually("the agent serves the file system", 5*time.Second, func() bool {
		_, err := os.Stat(filepath.Join(s.layout.Run, "sync", "shared", "generation"))
		return err == nil
	})
	c := exec.Command(s.dir+"/berth", "--root", s.root, "gateway", "serve", s.served, "--user", "nobody", "--allow", net+".0/24",
		"--listen", net+".1:"+port, "--sync", "shared")
	c.Stderr = &s.said
	out, err := c.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { s.end(c, syscall.SIGTERM) })
	if _, err := out.Read(make([]byte, 200)); err != nil { // "serving …"
		s.t.Fatal(err)
	}
}

// read reads a cold file in a node for a time, and returns bytes a second.
func (s *site) read(node, name string, d time.Duration) float64 {
	s.t.Helper()
	s.cold(name)
	before, began := s.diskReads(), time.Now()
	out := s.berth("exec", node, "--", "sh", "-c", "timeout "+d.String()+" dd if=/mnt/"+name+" of=/dev/null bs=256k 2>&1; true")
	took := time.Since(began).Seconds()
	got := float64(s.diskReads()-before) / took
	s.t.Logf("%s: %.1f MB/s from the disk in %.1f s (%s)", node, got/1e6, took, strings.TrimSpace(out))
	return got
}

// TestSFTP: a node reads through sftp-server at the rate that its io entry allows, and all of it is charged to it; a neighbour without a limit does not
// notice; the limit is changed live, and outlives the agent; nothing of it stays.
func TestSFTP(t *testing.T) {
	mostlyWaits(t)
	s := newSite(t, "198.51.101")
	s.configure(strings.Replace(shared, "%s", s.served, 1))
	s.start()
	s.file("slow", 150<<20)
	s.file("fast", large())
	s.serve()
	mounted := "mounts: [{source: '" + s.net + ".1:/', target: /mnt, gateway: sshfs-direct}]\n"
	s.node("slow", 2, mounted+"io: [{name: s, filesystem: shared, read: {rate: 10MB/s}}]\n")
	s.node("fast", 3, mounted+"io: [{name: s, filesystem: shared}]\n")
	s.eventually("the group of slow has its limit", time.Second, func() bool { return s.limit("slow") == asked })
	h, ok := s.held("slow")
	if !ok || len(h.Limits) != 1 || h.Limits[0].Key != "io.shared.read.rate" || !h.Limits[0].Holds || h.Missing == "" {
		t.Errorf("berth sync ls says of slow %+v", h)
	}
	if out := s.berth("show", "slow"); !strings.Contains(out, "io.s.read.rate") || !strings.Contains(out, "vnode sync") {
		t.Errorf("berth show says nothing of who holds the limit:\n%s", out)
	}

	// At the rate asked for, and all of it charged to the node.
	read := s.diskReads()
	found := s.audit("shared")
	d := 5 * time.Second
	if testkit.Measures() {
		d = 8 * time.Second
	}
	within(t, "reads", s.read("slow", "slow", d), asked, 0.95)
	s.settled()
	// Another program of this machine may look at the disk meanwhile, for what is on it.
	if own, all := clean(t, found(), "slow"), int64(s.diskReads()-read); own > all || all-own > 1<<20 {
		t.Errorf("%d bytes were read from the disk, %d of them in the group of slow", all, own)
	}
	if out := s.berth("sync", "audit", "shared", "--for", "100ms"); !strings.Contains(out, "0 B leaked") {
		t.Errorf("berth sync audit says:\n%s", out)
	}
	if testkit.Measures() {
		s.beside()
	}

	// Durable writes, too.
	s.run("sh", "-c", "mkdir $0/w && chmod 777 $0/w", s.served)
	s.berth("set", "slow", "io.s.write.rate=8MB/s")
	s.eventually("the group of slow has its limit of writes", time.Second, func() bool { return s.throttle("slow", "write") == 8_000_000 })
	found = s.audit("shared")
	began := time.Now()
	s.berth("exec", "slow", "--", "dd", "if=/dev/zero", "of=/mnt/w/new", "bs=1M", "count=32", "oflag=dsync")
	within(t, "writes durably", float64(32<<20)/time.Since(began).Seconds(), 8e6, 0.8)
	r := found()
	clean(t, r, "slow")
	for _, n := range r.Nodes {
		if n.Name == "slow" && n.Write.Own < 32<<20 {
			t.Errorf("slow wrote %d bytes in its group", n.Write.Own)
		}
	}

	// Live, without the agent, and after it was killed.
	s.berth("set", "slow", "io.s.read.rate=20MB/s")
	took := s.eventually("the new rate is in force", time.Second, func() bool { return s.limit("slow") == 2*asked })
	t.Logf("set in force after %v", took)
	s.end(s.agent, syscall.SIGKILL)
	if s.limit("slow") != 2*asked {
		t.Error("the limit went with the agent")
	}
	if h, _ := s.held("slow"); !strings.Contains(h.Stale, "berthd does not run") {
		t.Errorf("without the agent, berth sync ls says of slow %+v", h)
	}
	s.berth("set", "slow", "io.s.read.rate=max") // nobody tells the file server
	s.start()
	s.eventually("a limit that was taken away while the agent was dead is gone", 5*time.Second, func() bool { return s.limit("slow") == 0 })

	// A group goes with its node, and what works in it goes on.
	server := exec.Command("sleep", "1000")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Process.Kill(); _ = server.Wait() }()
	s.run("sh", "-c", "echo $0 > $1/cgroup.procs", strconv.Itoa(server.Process.Pid), s.group("slow"))
	s.berth("rm", "--force", "slow")
	s.eventually("the group is gone", 5*time.Second, func() bool { _, err := os.Stat(s.group("slow")); return err != nil })
	if err := server.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("a process in the group did not survive its end: %v", err)
	}

	// A file system that is served no more: nothing of it is left.
	s.berth("rm", "--force", "fast")
	s.end(s.agent, syscall.SIGTERM)
	s.configure("")
	s.start()
	s.eventually("the groups are gone", 5*time.Second, func() bool {
		_, err := os.Stat(s.group(".."))
		_, table := os.Stat(s.layout.Run + "/sync/shared")
		return err != nil && table != nil
	})
}

// beside measures a neighbour without a limit, alone and beside the one that has one.
func (s *site) beside() {
	s.t.Helper()
	alone := s.read("fast", "fast", 2*time.Second)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = exec.Command(s.dir+"/berth", "--root", s.root, "exec", "slow", "--", "timeout", "6", "dd", "if=/mnt/slow", "of=/dev/null", "bs=256k").Run()
	}()
	before := s.counted("fast")
	s.cold("fast")
	began := time.Now()
	s.berth("exec", "fast", "--", "sh", "-c", "timeout 2 dd if=/mnt/fast of=/dev/null bs=256k 2>&1; true")
	beside := float64(s.counted("fast")-before) / time.Since(began).Seconds()
	<-done
	neighbour(s.t, alone, beside)
}
