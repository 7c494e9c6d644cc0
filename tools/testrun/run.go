package main

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth/tools/many"
)

// options says what to run and how.
type options struct {
	race, short bool
	only        string // regular expression of tests
	patterns    []string
	alone       []string // packages that run one at a time, after all others
	first       []string // packages that begin before all others
	plain       []string // packages that are built without the race detector: nothing in them runs beside anything, or they measure
	atOnce      int
	every       time.Duration // how often to say what is running
	env         []string      // for the tests
}

// pack is a package with tests.
type pack struct {
	path, dir, program string
}

// run builds the test programs and runs them.
func (o options) run(t *tally) error {
	packs, err := o.list()
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
	o.env = append(o.env, "BERTH_BUILT="+programs, part(t.w))
	began := time.Now()
	built, err := o.build(packs, dir, t)
	if err != nil {
		return err
	}
	fmt.Fprintf(t.w, "built %d test programs in %.0fs\n", len(built), time.Since(began).Seconds())
	stop := t.tick(o.every, len(built))
	defer stop()
	together, alone := o.order(built)
	return errors.Join(o.each(together, o.atOnce, t), o.each(alone, 1, t))
}

// part returns which part of the long walks the tests take (package walk): that of the day, unless the environment names another. So a run of the same day
// repeats what failed, also on another machine, and the runs of some days take everything.
func part(w io.Writer) string {
	const name = "BERTH_WALK"
	n := cmp.Or(os.Getenv(name), time.Now().UTC().Format("20060102"))
	fmt.Fprintf(w, "%s=%s\n", name, n)
	return name + "=" + n
}

// order returns the packages that run beside each other, in the order in which they begin, and then those that run alone.
func (o options) order(packs []pack) (together, alone []pack) {
	var later []pack
	for _, p := range packs {
		switch {
		case slices.Contains(o.alone, p.path):
			alone = append(alone, p)
		case slices.Contains(o.first, p.path):
			together = append(together, p)
		default:
			later = append(later, p)
		}
	}
	return append(together, later...), alone
}

// list finds the packages that have tests.
func (o options) list() (all []pack, err error) {
	var said bytes.Buffer
	cmd := exec.Command("go", append([]string{"list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}\t{{.Dir}}{{end}}"}, o.patterns...)...)
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages: %w: %s", err, said.Bytes())
	}
	for line := range strings.Lines(string(out)) {
		name, dir, _ := strings.Cut(strings.TrimSpace(line), "\t")
		all = append(all, pack{path: name, dir: dir})
	}
	return all, nil
}

// build compiles the packages' test programs, and returns those packages that have one then. One go test compiles many
// packages in parallel, but not two of the same base name, because they would have the same program.
func (o options) build(packs []pack, dir string, t *tally) (built []pack, err error) {
	for n := 0; len(packs) > 0; n++ {
		var now, later []pack
		taken := map[string]bool{}
		out := filepath.Join(dir, fmt.Sprint(n))
		args := []string{"test", "-c", "-json", "-ldflags=-s -w", "-o", out + "/"}
		race := o.race && !slices.Contains(o.plain, packs[0].path)
		if race {
			args = append(args, "-race")
		}
		for _, p := range packs {
			base := path.Base(p.path)
			if taken[base] || race != (o.race && !slices.Contains(o.plain, p.path)) {
				later = append(later, p)
				continue
			}
			taken[base] = true
			p.program = filepath.Join(out, base+".test")
			now, args = append(now, p), append(args, p.path)
		}
		cmd := exec.Command("go", args...)
		cmd.Stderr = os.Stderr
		said, failed := cmd.Output()
		for line := range bytes.Lines(said) {
			t.line(line)
		}
		whole := len(built)
		for _, p := range now {
			if _, err := os.Stat(p.program); err == nil {
				built = append(built, p)
			} else {
				t.unbuilt(p.path)
			}
		}
		if failed != nil && len(built)-whole == len(now) {
			return nil, fmt.Errorf("go test -c failed, and built everything: %w", failed)
		}
		packs = later
	}
	return built, nil
}

// each runs the packages' tests, so many packages at once. An error ends no other package.
func (o options) each(packs []pack, atOnce int, t *tally) error {
	errs := make([]error, len(packs))
	_ = many.Each(len(packs), atOnce, func(i int) error { // never fails
		errs[i] = o.test(packs[i], t)
		return nil
	})
	return errors.Join(errs...)
}

// test runs one package's tests in its folder, as go test does.
func (o options) test(p pack, t *tally) error {
	args := []string{"tool", "test2json", "-t", "-p", p.path, p.program, "-test.v=test2json", "-test.paniconexit0", "-test.timeout=60m"}
	if o.short {
		args = append(args, "-test.short")
	}
	if o.only != "" {
		args = append(args, "-test.run="+o.only)
	}
	cmd := exec.Command("go", args...)
	// The race detector waits for a second at the end of a process that has found nothing.
	cmd.Dir, cmd.Env = p.dir, slices.Concat(os.Environ(), o.env, []string{"PWD=" + p.dir, "GORACE=atexit_sleep_ms=0 " + os.Getenv("GORACE")})
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the tests of %s: %w", p.path, err)
	}
	if err := t.read(out); err != nil {
		return err
	}
	// The exit code says no more than the events, unless a package ends outside of its tests: then the last event is missing.
	_ = cmd.Wait()
	t.end(p.path)
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

// readAlone reads a list of packages, one a line: those to run alone, and those with the word "first", "plain" or "measures" after them.
// Empty lines and lines that begin with # are left out.
func (o *options) readAlone(name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || f[0][0] == '#':
		case len(f) == 1:
			o.alone = append(o.alone, f[0])
		case len(f) == 2 && f[1] == "first":
			o.first = append(o.first, f[0])
		case len(f) == 2 && f[1] == "measures":
			o.alone, o.plain = append(o.alone, f[0]), append(o.plain, f[0])
		case len(f) == 2 && f[1] == "plain":
			o.plain = append(o.plain, f[0])
		default:
			return fmt.Errorf("%s: %q is not a package, and perhaps the word first, plain or measures", name, strings.TrimSpace(line))
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
