package side

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Ways to make an arm out of another that differ from it in one thing.

// withFlag gives fio's option another value.
func withFlag(a Arm, flag, value string) Arm {
	return func(ctx context.Context, argv []string) ([]byte, error) {
		argv = slices.Clone(argv)
		for i, v := range argv {
			if strings.HasPrefix(v, flag+"=") {
				argv[i] = flag + "=" + value
			}
		}
		return a(ctx, argv)
	}
}

// OnFile lets the arm use the data in another file, which has the path as the arm sees it.
func OnFile(a Arm, path string) Arm {
	return withFlag(a, "--filename", strings.ReplaceAll(path, ":", `\:`))
}

// WithJobs lets the arm use another number of threads.
func WithJobs(a Arm, n int) Arm { return withFlag(a, "--numjobs", fmt.Sprint(n)) }

// OnCPU holds the arm's command on some CPUs, a list as taskset(1) takes it.
func OnCPU(a Arm, cpus string) Arm {
	return func(ctx context.Context, argv []string) ([]byte, error) {
		return a(ctx, slices.Concat([]string{"taskset", "--cpu-list", cpus}, argv))
	}
}

// first does something before each trial, outside what is measured.
func first(a Arm, do func(ctx context.Context) error) Arm {
	return func(ctx context.Context, argv []string) ([]byte, error) {
		if err := do(ctx); err != nil {
			return nil, err
		}
		return a(ctx, argv)
	}
}

// AfterWrites overwrites parts of the data at random for a while before each trial.
func AfterWrites(a Arm, how []string) Arm {
	return func(ctx context.Context, argv []string) ([]byte, error) {
		at := slices.IndexFunc(argv, func(v string) bool { return strings.HasPrefix(v, "--filename=") })
		size := slices.IndexFunc(argv, func(v string) bool { return strings.HasPrefix(v, "--size=") })
		if at >= 0 && size >= 0 {
			if _, err := Host(ctx, append(slices.Clone(how), argv[at], argv[size])); err != nil {
				return nil, fmt.Errorf("write before the trial: %w", err)
			}
		}
		return a(ctx, argv)
	}
}

// RandomWrites is the job that afterWrites runs: small requests all over the data, after which a solid state disk has
// garbage to collect.
func RandomWrites() []string {
	return []string{
		"fio", "--output-format=json", "--eta=never", "--name=before", "--allow_file_create=0", "--rw=randwrite", "--bs=4096",
		"--direct=1", "--ioengine=psync", "--thread", "--numjobs=4", "--group_reporting", "--norandommap", "--time_based", "--runtime=1", "--disk_util=0",
	}
}

// LastWill runs a shell script when undo is called, or when this process ends, also by kill -9: then the pipe that the shell
// waits at is closed. It undoes what must not stay: a changed scheduler of a disk, a cgroup.
func LastWill(script string) (undo func() error, err error) {
	cmd := exec.Command("sh", "-c", "cat > /dev/null; "+script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C on the terminal does not reach it
	said := &strings.Builder{}
	cmd.Stderr = said
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start what cleans up: %w", err)
	}
	return func() error {
		_ = pipe.Close()
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("clean up: %w: %s", err, strings.TrimSpace(said.String()))
		}
		return nil
	}, nil
}

// Quoted makes a word of a shell script.
func Quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// Schedulers returns the I/O schedulers that a disk offers and the one that it uses; file is where it is set.
func Schedulers(sys, disk string) (file, now string, offered []string) {
	file = filepath.Join(sys, "block", disk, "queue/scheduler")
	for w := range strings.FieldsSeq(Word(file)) {
		if s := strings.Trim(w, "[]"); s != w {
			now = s
		}
		offered = append(offered, strings.Trim(w, "[]"))
	}
	return file, now, offered
}

// WithScheduler sets a disk's scheduler before each trial, if it is another.
func WithScheduler(a Arm, file, name string) Arm {
	return first(a, func(context.Context) error {
		if strings.Contains(Word(file), "["+name+"]") {
			return nil
		}
		if err := os.WriteFile(file, []byte(name), 0); err != nil {
			return fmt.Errorf("set the scheduler %s: %w", name, err)
		}
		return nil
	})
}
