// Package netbench runs berth bench net for real, against a peer on this machine.
package netbench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"berth/internal/bench/result"
	"berth/test/env"
	"berth/test/testkit"
)

// place is a berth with its own root.
type place struct {
	*testing.T
	env.Berth
}

func newPlace(t *testing.T) *place {
	t.Helper()
	if testing.Short() {
		t.Skip("needs seconds of traffic: not with -short")
	}
	testkit.NeedsRoot(t)
	if _, err := exec.LookPath("iperf3"); err != nil {
		t.Skip("needs iperf3: apt-get install iperf3")
	}
	return &place{T: t, Berth: env.New(t, "/var/tmp")} // a program of its own, by whose path its processes are known
}

func (p *place) command(out, errs *bytes.Buffer, args ...string) *exec.Cmd {
	cmd := p.Command(args...)
	cmd.Stdout, cmd.Stderr = out, errs
	return cmd
}

// tidy waits until no node, no link named after the process pid and no keeper is left.
func (p *place) tidy(pid int) {
	p.Helper()
	var left []string
	if !testkit.Happens(func() bool {
		left = nil
		nodes, _ := filepath.Glob(filepath.Join(p.Root, "*", "nodes", "*"))
		left = append(left, nodes...)
		if links, err := net.Interfaces(); err == nil {
			for _, l := range links {
				if l.Name == fmt.Sprintf("berth-p%d", pid) {
					left = append(left, "link "+l.Name)
				}
			}
		}
		left = append(left, env.Running(p.Program)...)
		return len(left) == 0
	}) {
		p.Errorf("left behind: %v", left)
	}
}

// clients lists the clients of iperf3 that this place's own berth runs now.
func (p *place) clients() (all []string) {
	comms, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, comm := range comms {
		dir := filepath.Dir(comm)
		name, _ := os.ReadFile(comm) // of a process that has ended: nothing
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		if string(name) == "iperf3\n" && bytes.Contains(line, []byte("--client")) && p.below(dir) {
			all = append(all, dir)
		}
	}
	return all
}

// below says whether a process, given by its folder, has this place's own berth above it.
func (p *place) below(dir string) bool {
	for {
		if to, err := os.Readlink(filepath.Join(dir, "exe")); err == nil && strings.HasPrefix(to, p.Program) {
			return true
		}
		stat, _ := os.ReadFile(filepath.Join(dir, "stat"))
		_, rest, _ := bytes.Cut(stat, []byte(") ")) // the state, and then the parent
		words := bytes.Fields(rest)
		if len(words) < 2 || string(words[1]) == "0" {
			return false
		}
		dir = filepath.Join("/proc", string(words[1]))
	}
}

// TestRun does a whole run in mode bridge: trials of all arms in all rows. The text says that no wire was measured.
func TestRun(t *testing.T) {
	if !testkit.Measures() {
		t.Skip("measures the speed of this machine: make test-measured")
	}
	p := newPlace(t)
	var out, errs bytes.Buffer
	file := filepath.Join(p.Dir(), "net.json")
	cmd := p.command(&out, &errs, "bench", "net", "--quick", "--pairs", "1", "--network", "bridge", "--json", file)
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s%s", err, &out, &errs)
	}
	t.Logf("\n%s", &out)
	if flat := strings.Join(strings.Fields(out.String()), " "); !strings.Contains(flat, "the peer is a node on this machine: no wire was measured") {
		t.Error("the text does not say that no wire was measured")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var s result.Study
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	if s.Format != result.Format || s.Partial || len(s.Experiments) != 1 || len(s.Experiments[0].Rows) != 3 || len(s.Experiments[0].Trials) != 3*3*2 {
		t.Fatalf("%s, partial %v, %d experiments", s.Format, s.Partial, len(s.Experiments))
	}
	for _, tr := range s.Experiments[0].Trials {
		v := tr.Values
		switch {
		case tr.Error != "":
			t.Errorf("trial %d failed: %s", tr.Seq, tr.Error)
		case tr.Row == "round trip":
			if v["p50_us"] <= 0 || v["p99_us"] < v["p50_us"] {
				t.Errorf("trial %d: %v", tr.Seq, v)
			}
		case v["bits_per_second"] < 1e6 || v["cpu_s_per_gb"] <= 0:
			t.Errorf("trial %d: %v", tr.Seq, v)
		}
	}
	p.tidy(cmd.Process.Pid)
}

// ended starts a long run, sends it a signal when it has come so far, and returns its output. Nothing may be left.
func (p *place) ended(sig syscall.Signal, what string, far func(pid int) bool) string {
	p.Helper()
	var out, errs bytes.Buffer
	cmd := p.command(&out, &errs, "bench", "net", "--quick", "--pairs", "100", "--network", "macvlan")
	if err := cmd.Start(); err != nil {
		p.Fatal(err)
	}
	is := testkit.Happens(func() bool { return far(cmd.Process.Pid) })
	if err := cmd.Process.Signal(sig); err != nil {
		p.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		p.Errorf("%v: exit code 0", sig)
	}
	if !is {
		p.Errorf("%s: did not happen; it said %s", what, &errs)
	}
	p.tidy(cmd.Process.Pid)
	return out.String()
}

// TestEnded checks that a run leaves nothing behind after SIGKILL and SIGTERM, while it measures and as soon as it has a link.
func TestEnded(t *testing.T) {
	p := newPlace(t)
	p.ended(syscall.SIGKILL, "a trial runs", func(int) bool { return len(p.clients()) > 0 })
	p.ended(syscall.SIGTERM, "there is a link", func(pid int) bool {
		_, err := net.InterfaceByName(fmt.Sprintf("berth-p%d", pid))
		return err == nil
	})
}

// TestPartial checks that an interrupted run prints its results so far and marks them. The warm-up is a trial of each row in each
// arm, six of them with a client of iperf3: when the eighth runs, the seventh has ended, and counts.
func TestPartial(t *testing.T) {
	p := newPlace(t)
	seen := map[string]bool{}
	out := p.ended(syscall.SIGINT, "trials that count", func(int) bool {
		for _, c := range p.clients() {
			seen[c] = true
		}
		return len(seen) >= 8
	})
	if !strings.Contains(out, "PARTIAL") {
		t.Errorf("no partial report: %s", out)
	}
}

// TestRefused checks that wrong arguments are refused before anything is made.
func TestRefused(t *testing.T) {
	p := newPlace(t)
	for _, c := range []struct {
		args []string
		exit int
		says string
	}{
		{[]string{"--network", "sriov"}, 2, "without --peer only bridge and macvlan"},
		{[]string{"--network", "bridge:br0,192.0.2.5/24"}, 2, "give the mode alone"},
		{[]string{"--network", "bridge", "--network", "bridge"}, 2, "measured already"},
		{[]string{"--peer", "192.0.2.9"}, 2, "needs a --network"},
		{[]string{"--peer", "example.org", "--network", "bridge"}, 2, "want an address"},
		{[]string{"--peer", "192.0.2.9", "--network", "macvlan:eth0"}, 2, "a parent and an address are needed"},
		{[]string{"--peer", "192.0.2.9", "--network", "bridge:nosuchlink,192.0.2.5/24"}, 4, "no link nosuchlink"},
		{[]string{"--run", "1500ms"}, 2, "whole seconds"},
		{[]string{"--serve", "--peer", "192.0.2.9"}, 2, "goes with --port alone"},
	} {
		var out, errs bytes.Buffer
		cmd := p.command(&out, &errs, append([]string{"bench", "net"}, c.args...)...)
		_ = cmd.Run()
		if cmd.ProcessState.ExitCode() != c.exit || !strings.Contains(errs.String(), c.says) {
			t.Errorf("%v: exit code %d, %s", c.args, cmd.ProcessState.ExitCode(), &errs)
		}
	}
	var out, errs bytes.Buffer
	cmd := p.command(&out, &errs, "bench", "net", "--quick")
	cmd.Env = append(os.Environ(), "PATH=/nowhere")
	_ = cmd.Run()
	if cmd.ProcessState.ExitCode() != 3 || !strings.Contains(errs.String(), "apt-get install iperf3") {
		t.Errorf("without iperf3: exit code %d, %s", cmd.ProcessState.ExitCode(), &errs)
	}
	p.tidy(0)
}
