package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// list finds the packages that have tests in this run.
func (o options) list(ctx context.Context) (all []pack, err error) {
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}\t{{.Dir}}\t{{.TestImports}} {{.XTestImports}}{{end}}"}, o.patterns...)...)
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages: %w: %s", err, said.Bytes())
	}
	for line := range strings.Lines(string(out)) {
		if f := strings.Split(strings.TrimSpace(line), "\t"); len(f) == 3 {
			all = append(all, pack{path: f[0], dir: f[1], draws: strings.Contains(f[2], "pgregory.net/rapid")})
		}
	}
	return o.choose(all)
}

// build compiles the packages' test programs, and returns those packages that have one then. One go test compiles many
// packages in parallel, but not two of the same base name, because they would have the same program. -trimpath lets another clone use
// what was compiled.
func (o options) build(ctx context.Context, packs []pack, dir string, t *tally) (built []pack, err error) {
	for n := 0; len(packs) > 0; n++ {
		var now, later []pack
		taken := map[string]bool{}
		out := filepath.Join(dir, fmt.Sprint(n))
		args := []string{"test", "-c", "-json", "-trimpath", "-ldflags=-s -w", "-o", out + "/"}
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
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Stderr = os.Stderr
		said, failed := cmd.Output()
		if ctx.Err() != nil {
			return nil, fmt.Errorf("build the test programs: %w", context.Cause(ctx))
		}
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
