// Command gate checks a change before it goes to main, in ten minutes at most: the format, the linter, the fast tests, the tests of changed
// packages and of those that use them, commands as a user types them and commands killed at each step if a program has changed, and
// each new or changed test ten times while other programs take the CPUs. It says what it left out for want of time.
//
//	go run ./tools/gate [-base COMMIT] [-clock 10m]
//
// A change is what differs from COMMIT, without -base from the last commit that passed, or from the parent. A commit that passes is noted in
// build/gate; uncommitted changes are checked, too, but then nothing is noted.
// Exit code: 0 when all that ran passed, else 1.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// passedFile names the commits that passed, one a line: commit, date, seconds, what was left out.
const passedFile = "build/gate"

func main() {
	base := flag.String("base", "", "the commit that the change is compared with")
	clock := flag.Duration("clock", 10*time.Minute, "begin nothing after this time, and end what runs")
	flag.Parse()
	if err := run(*base, *clock); err != nil {
		fmt.Fprintln(os.Stderr, "gate:", err)
		os.Exit(1)
	}
}

func run(base string, clock time.Duration) error {
	head, err := git("rev-parse", "HEAD")
	if err != nil {
		return err
	}
	if base = cmp.Or(base, lastPassed()); base == "" || base == head {
		base = head + "~1"
	}
	c, err := changed(base)
	if err != nil {
		return err
	}
	fmt.Printf("gate: %d files differ from %.12s: %d packages, %d that use them, %d tests\n", len(c.files), base, len(c.packages), len(c.users), c.countTests())
	g := &gate{end: time.Now().Add(clock)}
	g.step("format", "gofmt", "-l", "cmd", "internal", "test", "tools")
	g.step("lint", "make", "-s", "lint")
	g.step("fast", "make", "-s", "test-fast")
	if all := c.toTest(); len(all) > 0 {
		g.step("packages", testrun("-race", "-products", "-package-clock", "6m")(all...)...)
	}
	if c.program {
		g.step("commands", testrun("-products", "-package-clock", "6m")("./test/script")...)
		g.step("killed", testrun("-products", "-package-clock", "6m", "-run", "^(TestApplyKilledAtEachStep|TestRmKilledAtEachStep)$")("./test/fault")...)
	}
	g.loaded(c)
	dirty, err := git("status", "--porcelain")
	switch {
	case err != nil:
		return err
	case len(g.failed) > 0:
		return fmt.Errorf("failed: %s", strings.Join(g.failed, ", "))
	case dirty != "":
		fmt.Println("gate: passed, with uncommitted changes: not noted")
		return nil
	}
	fmt.Println("gate: passed; left out:", cmp.Or(strings.Join(g.left, ", "), "nothing"))
	return note(fmt.Sprintf("%s %s %.0fs, left out: %s\n", head, time.Now().UTC().Format(time.RFC3339), time.Since(g.end.Add(-clock)).Seconds(), strings.Join(g.left, ", ")))
}

// gate runs steps until its clock ends.
type gate struct {
	end          time.Time
	failed, left []string
}

// step runs a command. gofmt fails by what it prints.
func (g *gate) step(name string, command ...string) {
	began := time.Now()
	if !began.Before(g.end) {
		g.left = append(g.left, name)
		return
	}
	ctx, cancel := context.WithDeadline(context.Background(), g.end)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second // in which testrun says what it did not reach
	cmd.Stderr = os.Stderr
	var err error
	if command[0] == "gofmt" {
		var out []byte
		if out, err = cmd.Output(); err == nil && len(out) > 0 {
			err = fmt.Errorf("not formatted: %s", out)
		}
	} else {
		cmd.Stdout = os.Stdout
		err = cmd.Run()
	}
	switch {
	case ctx.Err() != nil:
		g.left = append(g.left, name+" (in part)")
	case err != nil:
		g.failed = append(g.failed, name)
		fmt.Printf("gate: %s: %v\n", name, err)
	}
	fmt.Printf("gate: %-10s %4.0f s\n", name, time.Since(began).Seconds())
}

// testrun returns a command that runs the tests of packages, with flags of its own.
func testrun(flags ...string) func(packages ...string) []string {
	all := append([]string{"go", "run", "./tools/testrun", "-alone", "test/alone", "-tiers", "test/tiers", "-rerun", "test/rerun"}, flags...)
	return func(packages ...string) []string { return append(all, packages...) }
}

// loaded runs new and changed tests ten times while as many busy loops as there are CPUs run beside them.
func (g *gate) loaded(c *change) {
	if c.countTests() == 0 {
		return
	}
	load := exec.Command("sh", "-c", "for i in $(seq $(nproc)); do while :; do :; done & done; wait")
	load.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := load.Start(); err != nil {
		g.failed = append(g.failed, "load")
		return
	}
	defer func() {
		_ = syscall.Kill(-load.Process.Pid, syscall.SIGKILL)
		_ = load.Wait()
	}()
	for pkg, tests := range c.tests {
		g.step(fmt.Sprintf("ten times under load: %s", pkg), "go", "test", "-count=10", "-timeout=10m", "-run", "^("+strings.Join(tests, "|")+")$", pkg)
	}
}

// lastPassed returns the commit that passed last and that HEAD comes of, "" if there is none.
func lastPassed() (commit string) {
	text, err := os.ReadFile(passedFile)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if name, _, _ := strings.Cut(line, " "); exec.Command("git", "merge-base", "--is-ancestor", name, "HEAD").Run() == nil {
			commit = name
		}
	}
	return commit
}

// note adds a line to the commits that passed.
func note(line string) error {
	if err := os.MkdirAll("build", 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(passedFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line)
	return errors.Join(err, f.Close())
}

func git(args ...string) (string, error) {
	out, err := exec.Command("git", args...).Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
