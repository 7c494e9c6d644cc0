// Package examples types docs/start.md line by line, and runs the nodes of examples/ with the software that they are for.
package examples

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/test/built"
	"berth/test/env"
	"berth/test/testkit"
)

// patience is how long a command may take. It is long because the machine may be busy.
const patience = 8 * time.Minute

// place is a network and a /srv of its own, in which berth keeps everything below a root of its own.
type place struct {
	*testing.T
	dir string // where commands are typed
	pid string // of the process that holds the namespaces
}

// newPlace makes a place, or skips the test.
func newPlace(t *testing.T) *place {
	t.Helper()
	if testing.Short() {
		t.Skip("needs minutes: it makes a root of Debian's packages")
	}
	testkit.NeedsRoot(t)
	p := &place{T: t, dir: testkit.Dir(t, "/var/tmp")} // /tmp may be in memory
	for _, sub := range []string{"bin", "srv"} {
		testkit.Must(t, os.Mkdir(filepath.Join(p.dir, sub), 0o755))
	}
	testkit.Must(t, built.Berth(t.Context(), filepath.Join(p.dir, "program")))
	here, err := os.Getwd()
	wrapper := fmt.Sprintf("#!/bin/sh\nexec %[1]s/program --root %[1]s/root \"$@\"\n", p.dir)
	testkit.Must(t, err, os.WriteFile(filepath.Join(p.dir, "bin", "berth"), []byte(wrapper), 0o755),
		os.Symlink(filepath.Join(here, "mmdebstrap"), filepath.Join(p.dir, "bin", "mmdebstrap")))
	p.hold()
	return p
}

// hold starts the process that holds the place's namespaces.
func (p *place) hold() {
	p.Helper()
	p.pid = p.start(exec.Command("unshare", "--net", "--mount", "sh", "-c",
		`ip link set lo up && mount --bind "$1" /srv && echo $$ && exec cat`, "hold", filepath.Join(p.dir, "srv")))
	p.Cleanup(p.tidy)
}

// start starts a process that prints its id and ends with its standard input, so also when the test is killed. It returns the id.
func (p *place) start(cmd *exec.Cmd) string {
	p.Helper()
	var errs bytes.Buffer
	cmd.Stderr = &errs
	in, err := cmd.StdinPipe()
	if err != nil {
		p.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		p.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.Fatal(err)
	}
	line := make([]byte, 20)
	n, err := out.Read(line)
	if err != nil {
		_ = cmd.Wait()
		p.Skipf("needs a network and a mount namespace: %v %s", err, &errs)
	}
	p.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	return strings.TrimSpace(string(line[:n]))
}

// try types a command, and returns what it prints and its exit code. mmdebstrap and berth image build need Debian's servers, and so the host's own network.
func (p *place) try(command string) (string, int) {
	p.Helper()
	if strings.HasPrefix(command, "mmdebstrap ") || strings.HasPrefix(command, "berth image build ") {
		cmd := exec.CommandContext(p.Context(), "bash", "-c", command)
		cmd.Dir = p.dir
		return p.run(cmd, command)
	}
	cmd := exec.CommandContext(p.Context(), "nsenter", "--target", p.pid, "--net", "--mount", "--wd="+p.dir, "bash", "-c", command)
	return p.run(cmd, command)
}

func (p *place) run(cmd *exec.Cmd, command string) (string, int) {
	p.Helper()
	var out, errs testkit.Output
	cmd.Stdout, cmd.Stderr = &out, io.MultiWriter(&errs, &out)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(p.dir, "bin")+":"+os.Getenv("PATH"), "NO_COLOR=1")
	cmd.WaitDelay = time.Second // a keeper may hold its output open
	timer := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	began := time.Now()
	err := cmd.Run()
	p.Logf("%s (%.1f s)\n%s", command, time.Since(began).Seconds(), &out)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.Fatalf("%s: %v", command, err)
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

// ok types a command that must succeed, and returns what it prints.
func (p *place) ok(command string) string {
	p.Helper()
	out, code := p.try(command)
	if code != 0 {
		p.Fatalf("%s: exit code %d\n%s", command, code, out)
	}
	return out
}

// says types a command that must succeed and print a text.
func (p *place) says(text, command string) {
	p.Helper()
	if out := p.ok(command); !strings.Contains(out, text) {
		p.Errorf("%s: want %q in\n%s", command, text, out)
	}
}

// removeNodes removes all nodes.
func (p *place) removeNodes() {
	p.Helper()
	nodes, _ := filepath.Glob(filepath.Join(p.dir, "root", "lib", "nodes", "*"))
	for i := range nodes {
		nodes[i] = filepath.Base(nodes[i])
	}
	if len(nodes) == 0 {
		return
	}
	berth := []string{"--target", p.pid, "--net", "--mount", filepath.Join(p.dir, "bin", "berth"), "rm", "--force"}
	if out, err := exec.Command("nsenter", append(berth, nodes...)...).CombinedOutput(); err != nil {
		p.Errorf("remove nodes %v: %v\n%s", nodes, err, out)
	}
}

// tidy removes the nodes, and checks that no process and no link of theirs is left.
func (p *place) tidy() {
	p.removeNodes()
	var left []string
	if !testkit.Happens(func() bool { // the keeper ends half a second after the last node
		left = p.left()
		return len(left) == 0
	}) {
		p.Errorf("left behind: %v", left)
	}
}

func (p *place) left() (all []string) {
	all = env.Running(p.dir)
	links, err := os.ReadFile("/proc/" + p.pid + "/net/dev")
	if err != nil || strings.Contains(string(links), "berth") {
		all = append(all, fmt.Sprintf("links: %v\n%s", err, links))
	}
	return all
}
