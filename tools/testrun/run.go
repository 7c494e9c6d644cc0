package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"berth/test/built"
	"berth/test/sample"
	"berth/test/testkit"
	"berth/tools/many"
	"berth/tools/tierlist"
)

// options says what to run and how.
type options struct {
	race, short   bool
	products      bool
	only          string // regular expression of tests
	tier, subject string
	tiers         []tierlist.Entry
	rerun         []string // packages whose failed tests run again
	patterns      []string
	alone         []string // packages that run one at a time, after all others
	first         []string // packages that begin before all others
	waits         []string // packages that mostly wait: they run one at a time, beside all others
	plain         []string // packages that are built without the race detector: it has nothing to find in them, or they measure
	atOnce        int
	every         time.Duration // how often to say what is running
	packageClock  time.Duration // how long a package may run
	env           []string      // for the tests
	seed          uint64        // for what they draw at random; 0: as they like
}

// pack is a package with tests.
type pack struct {
	path, dir, program string
	draws              bool   // its tests draw their input at random, by rapid
	take, leave        string // regular expressions of the top-level tests that run, and of those that do not; "" says nothing
}

// run builds the test programs and runs them.
func (o options) run(ctx context.Context, t *tally) error {
	packs, err := o.list(ctx)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "testrun-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // tests also run programs as other users
		return err
	}
	programs := filepath.Join(dir, "built") // see package test/built
	if err := os.Mkdir(programs, 0o755); err != nil {
		return err
	}
	refused, err := offline(dir)
	if err != nil {
		return err
	}
	part := o.part(ctx, t.w)
	if n, err := strconv.ParseUint(part, 10, 32); err == nil {
		o.seed = n + 1 // 0 is none
	}
	o.env = append(o.env, append(refused, built.Dir+"="+programs, sample.Env+"="+part)...)
	if o.tier != "" { // the parts of examples come from Debian's servers
		o.env = slices.DeleteFunc(o.env, func(e string) bool { return strings.HasPrefix(e, "APT_CONFIG=") })
	}
	if o.tier == "measured" {
		o.env = append(o.env, testkit.Measured+"=1")
	}
	began := time.Now()
	if o.products {
		if err := built.Everything(ctx, programs); err != nil {
			return err
		}
		fmt.Fprintf(t.w, "built what tests start in %.0fs\n", time.Since(began).Seconds())
	}
	ready, err := o.build(ctx, packs, dir, t)
	if err != nil {
		return err
	}
	fmt.Fprintf(t.w, "built %d test programs in %.0fs\n", len(ready), time.Since(began).Seconds())
	stop := t.tick(o.every, len(ready))
	defer stop()
	together, waiting, alone := o.order(ready)
	var beside sync.WaitGroup
	beside.Go(func() { err = o.each(ctx, waiting, 1, t) })
	ran := o.each(ctx, together, o.atOnce, t)
	beside.Wait()
	return errors.Join(ran, err, o.each(ctx, alone, 1, t), o.again(ctx, ready, t))
}

// offline returns variables with which Go, apt and pip refuse to fetch anything: what tests need was fetched before (scripts/setup).
func offline(dir string) (env []string, err error) {
	conf := filepath.Join(dir, "apt.conf")
	const nobody = "http://127.0.0.1:9/no-test-fetches-anything"
	text := fmt.Sprintf("Acquire::http::Proxy %q;\nAcquire::https::Proxy %q;\nAcquire::Retries \"0\";\n", nobody, nobody)
	return []string{"GOPROXY=off", "PIP_NO_INDEX=1", "APT_CONFIG=" + conf}, os.WriteFile(conf, []byte(text), 0o644)
}

// part returns which part of the long walks the tests take (package sample): the number of commits modulo 8, unless the environment names
// another. So a run of the same commit repeats what failed, on another machine too, and eight commits in a row take everything.
func (o options) part(ctx context.Context, w io.Writer) string {
	n := os.Getenv(sample.Env)
	if n == "" {
		count := 0
		out, err := exec.CommandContext(ctx, "git", "rev-list", "--count", "HEAD").Output()
		if err == nil {
			_, err = fmt.Sscan(string(out), &count)
		}
		if err != nil {
			fmt.Fprintln(w, "git does not tell the number of commits: the walks take part 0")
		}
		n = fmt.Sprint(count % sample.Round)
	}
	fmt.Fprintf(w, "%s=%s\n", sample.Env, n)
	return n
}

// order returns the packages that run beside each other, in the order in which they begin, those that wait beside them, and then those
// that run alone.
func (o options) order(packs []pack) (together, waiting, alone []pack) {
	var later []pack
	for _, p := range packs {
		switch {
		case slices.Contains(o.alone, p.path):
			alone = append(alone, p)
		case slices.Contains(o.first, p.path):
			together = append(together, p)
		case slices.Contains(o.waits, p.path):
			waiting = append(waiting, p)
		default:
			later = append(later, p)
		}
	}
	return append(together, later...), waiting, alone
}

// each runs the packages' tests, so many packages at once. An error ends no other package.
func (o options) each(ctx context.Context, packs []pack, atOnce int, t *tally) error {
	errs := make([]error, len(packs))
	_ = many.Each(len(packs), atOnce, func(i int) error { // never fails
		errs[i] = o.test(ctx, packs[i], t)
		return nil
	})
	return errors.Join(errs...)
}

// test runs one package's tests in its folder, as go test does. When the context ends, the package's process group is killed, and its
// tests that have not ended count as failed.
func (o options) test(ctx context.Context, p pack, t *tally) error {
	if ctx.Err() != nil {
		t.never(p.path, context.Cause(ctx))
		return nil
	}
	args := []string{"tool", "test2json", "-t", "-p", p.path, p.program, "-test.v=test2json", "-test.paniconexit0", "-test.timeout=" + o.packageClock.String()}
	if o.short {
		args = append(args, "-test.short")
	}
	if pattern := cmp.Or(p.take, o.only); pattern != "" {
		args = append(args, "-test.run="+pattern)
	}
	if p.leave != "" {
		args = append(args, "-test.skip="+p.leave)
	}
	if p.draws && o.seed != 0 {
		args = append(args, fmt.Sprintf("-rapid.seed=%d", o.seed))
	}
	if dir := os.Getenv("GOCOVERDIR"); dir != "" { // the test programs are built with -cover, by GOFLAGS
		args = append(args, "-test.gocoverdir="+dir)
	}
	cmd := exec.Command("go", args...)
	// The race detector waits for a second at the end of a process that has found nothing.
	cmd.Dir, cmd.Env = p.dir, slices.Concat(os.Environ(), o.env, []string{"PWD=" + p.dir, "GORACE=atexit_sleep_ms=0 " + os.Getenv("GORACE")})
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the tests of %s: %w", p.path, err)
	}
	stop := context.AfterFunc(ctx, func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // it may have ended
		_ = out.Close()                                     // a process that left the group may hold the other end
	})
	defer stop()
	if err := t.read(out); err != nil && ctx.Err() == nil {
		return err
	}
	// The exit code says no more than the events, unless a package ends outside of its tests: then the last event is missing.
	_ = cmd.Wait()
	why := ""
	if ctx.Err() != nil {
		why = context.Cause(ctx).Error()
	}
	t.end(p.path, why)
	t.used(p.path, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
	return nil
}

// commit names the commit that the working tree is at, "" if git does not tell.
func (o options) commit() string {
	out, err := exec.Command("git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// readAlone reads a list of packages, one a line: those to run alone, and those with words after them, which main.go explains.
func (o *options) readAlone(name string) error {
	lines, err := tierlist.Lines(name)
	if err != nil {
		return err
	}
	for _, line := range lines {
		f := strings.Fields(line)
		alone := true
		for _, word := range f[1:] {
			switch word {
			case "first":
				o.first, alone = append(o.first, f[0]), false
			case "waits":
				o.waits, alone = append(o.waits, f[0]), false
			case "drives":
				o.plain = append(o.plain, f[0])
			case "plain":
				o.plain, alone = append(o.plain, f[0]), false
			case "measures":
				o.plain = append(o.plain, f[0])
			default:
				return fmt.Errorf("%s: %q is not a package, and perhaps the words first, waits, plain, drives or measures", name, line)
			}
		}
		if alone {
			o.alone = append(o.alone, f[0])
		}
	}
	return nil
}

// read processes the events of one package's tests.
func (t *tally) read(r io.Reader) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			t.line(line)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the events of the tests: %w", err)
		}
	}
}

// line processes one line of what go test or test2json prints.
func (t *tally) line(line []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var e event
	if json.Unmarshal(line, &e) != nil {
		fmt.Fprintf(t.w, "%s", line) // go test prints some errors as they are
		return
	}
	if t.events != nil {
		_, _ = t.events.Write(line) // a full disk ends the run by other means
	}
	switch {
	case e.Action == "build-output":
		fmt.Fprint(t.w, e.Output)
	case e.Action == "build-fail":
	case e.Test != "":
		t.test(e)
	default:
		t.pkg(e)
	}
}
