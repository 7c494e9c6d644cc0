package sync

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	stops "berth/internal/site/intercept/gate"
	"berth/internal/site/iosync"
	"berth/internal/site/iosync/place"
	"berth/internal/sys/layout"
	"berth/test/env"
	"berth/test/testkit"
)

// Tests of this package have networks and ports of their own, always the same ones. What a test leaves that was killed, with its servers
// and links, would make the next one fail.

// mine notes that this process uses a test's folder, with the name that its links begin with or end in. The kernel releases the lock with
// the process.
func mine(dir, link string) (*os.File, error) {
	f, err := os.Create(filepath.Join(dir, "test"))
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil {
		_, err = f.WriteString(link)
	}
	return f, err
}

// sweepOnce removes, before the first test of this process, what killed tests left.
var sweepOnce = sync.OnceValue(sweep)

func sweep() error {
	notes, err := filepath.Glob("/var/tmp/berth-sync-*/test")
	failed := []error{err}
	for _, note := range notes {
		f, err := os.Open(note)
		if err != nil {
			continue // its test has just ended
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			link, err := os.ReadFile(note)
			if err == nil {
				err = sweepTest(filepath.Dir(note), string(link))
			}
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				failed = append(failed, fmt.Errorf("remove what a killed test left in %s: %w", filepath.Dir(note), err))
			}
		}
		f.Close()
	}
	return errors.Join(failed...)
}

// sweepTest removes what a killed test left: its servers, nodes, groups, mounts, network namespaces, links and files.
func sweepTest(dir, link string) error {
	end := func(which func(line string) bool) {
		for pid, line := range testkit.Processes(dir + "/") {
			if which(line) {
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
			}
		}
	}
	l := layout.New(dir + "/root")
	end(func(line string) bool { return !strings.Contains(line, "\x00keeper\x00") })
	b := env.In(dir)
	b.End()
	var failed []error
	all, err := place.Known(l)
	for _, fs := range all {
		failed = append(failed, stops.Resume(place.Dir(l, fs)))
	}
	failed = append(failed, err, iosync.Sweep(l, nil, slog.New(slog.DiscardHandler)))
	end(func(string) bool { return true })
	for _, at := range mountsBelow(dir) {
		failed = append(failed, unix.Unmount(at, unix.MNT_DETACH))
	}
	if link != "" {
		namespaces, _ := filepath.Glob("/run/netns/*" + link)
		for _, ns := range namespaces {
			_, err := run("ip", "netns", "del", filepath.Base(ns))
			failed = append(failed, err)
		}
		links, _ := filepath.Glob("/sys/class/net/*" + link)
		for _, at := range links {
			if _, err := run("ip", "link", "del", filepath.Base(at)); err != nil {
				if _, gone := os.Stat(at); gone == nil { // the other end of a cable goes with the first
					failed = append(failed, err)
				}
			}
		}
	}
	return errors.Join(append(failed, os.RemoveAll(dir))...)
}

func run(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// mountsBelow lists the mounts below a folder, the last first.
func mountsBelow(dir string) (all []string) {
	text, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(text)) {
		if at := strings.Fields(line)[4]; strings.HasPrefix(at, dir+"/") {
			all = append(all, at)
		}
	}
	slices.Reverse(all)
	return all
}

// TestKilledTests: nothing stays of a test that is killed, with a server in a network namespace, an agent and a node that reads from it, when
// the next one has begun. What a test that lives uses is left alone.
func TestKilledTests(t *testing.T) {
	const child = "BERTH_TEST_SYNC_KILLED"
	const net = "198.51.129"
	if os.Getenv(child) != "" {
		s := newSite(t, net)
		s.configure(strings.Replace(shared, "%s", s.served, 1))
		s.start()
		s.serveAt(net, "7022")
		s.node("n", 2, "mounts: [{source: '"+net+".1:/', target: /mnt, gateway: sshfs-direct, options: {port: \"7022\"}}]\nio: [{name: s, filesystem: shared, read: {rate: 10MB/s}}]\n")
		s.eventually("its limit is there", 0, func() bool { return s.limit("n") == asked })
		s.namespace("n" + s.link)
		fmt.Println("in", s.dir, s.link)
		select {}
	}
	needs(t, "ip", "sshfs", "mkfs.ext4")
	testkit.NeedsRoot(t)
	if tree() == "" {
		t.Skip("needs cgroup v1 with blkio: on v2 the lab has file servers")
	}
	cmd := testkit.Again(t, "TestKilledTests", child+"=1")
	out, err := cmd.StdoutPipe()
	testkit.Must(t, err)
	testkit.Must(t, cmd.Start())
	dir, link := "", ""
	said := ""
	for lines := bufio.NewScanner(out); dir == "" && lines.Scan(); said += lines.Text() + "\n" {
		_, _ = fmt.Sscanf(lines.Text(), "in %s %s", &dir, &link)
	}
	if dir == "" {
		t.Fatalf("the test that is to be killed said:\n%s", said)
	}
	b := env.In(dir)
	testkit.Must(t, sweep())
	if len(b.Groups()) == 0 || len(mountsBelow(dir)) == 0 {
		t.Fatal("a test that lives was swept")
	}
	testkit.Must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	testkit.Must(t, sweep())
	left := append(b.Left(), b.Groups()...)
	for _, pattern := range []string{dir, "/run/netns/*" + link, "/sys/class/net/*" + link} {
		found, _ := filepath.Glob(pattern)
		left = append(left, found...)
	}
	for _, line := range testkit.Processes(dir) {
		left = append(left, line)
	}
	if left = append(left, mountsBelow(dir)...); len(left) > 0 {
		t.Errorf("the killed test left %q", left)
	}
}
