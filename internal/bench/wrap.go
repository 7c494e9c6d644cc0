package bench

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

// withJobs lets the arm use another number of threads.
func withJobs(a Arm, n int) Arm { return withFlag(a, "--numjobs", fmt.Sprint(n)) }

// onCPU holds the arm's command on some CPUs, a list as taskset(1) takes it.
func onCPU(a Arm, cpus string) Arm {
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

// afterWrites overwrites parts of the data at random for a while before each trial.
func afterWrites(a Arm, how []string) Arm {
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

// randomWrites is what afterWrites runs: small requests all over the data, which leave a solid state disk with cleaning up.
func randomWrites() []string {
	return []string{
		"fio", "--output-format=json", "--eta=never", "--name=before", "--allow_file_create=0", "--rw=randwrite", "--bs=4096",
		"--direct=1", "--ioengine=psync", "--thread", "--numjobs=4", "--group_reporting", "--norandommap", "--time_based", "--runtime=1", "--disk_util=0",
	}
}

// lastWill runs a shell script when undo is called, or when this process ends, also by kill -9: then the pipe that the
// shell waits at is closed. It is for what must not stay: a disk's scheduler that was changed, a cgroup.
func lastWill(script string) (undo func() error, err error) {
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

// quoted makes a word of a shell script.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// schedulers returns the I/O schedulers that a disk offers and the one that it uses; file is where it is set.
func schedulers(sys, disk string) (file, now string, offered []string) {
	file = filepath.Join(sys, "block", disk, "queue/scheduler")
	for w := range strings.FieldsSeq(word(file)) {
		if s := strings.Trim(w, "[]"); s != w {
			now = s
		}
		offered = append(offered, strings.Trim(w, "[]"))
	}
	return file, now, offered
}

// withScheduler sets a disk's scheduler before each trial, if it is another.
func withScheduler(a Arm, file, name string) Arm {
	return first(a, func(context.Context) error {
		if strings.Contains(word(file), "["+name+"]") {
			return nil
		}
		if err := os.WriteFile(file, []byte(name), 0); err != nil {
			return fmt.Errorf("set the scheduler %s: %w", name, err)
		}
		return nil
	})
}

// diskTemp returns a disk's temperature in degrees, 0 where it does not tell.
func diskTemp(disk string) float64 {
	if disk == "" {
		return 0
	}
	dev := filepath.Join("/sys/block", disk, "device")
	for _, pattern := range []string{"hwmon*/temp1_input", "hwmon/hwmon*/temp1_input", "device/hwmon/hwmon*/temp1_input"} {
		files, _ := filepath.Glob(filepath.Join(dev, pattern))
		for _, f := range files {
			var milli float64
			if _, err := fmt.Sscan(word(f), &milli); err == nil {
				return milli / 1e3
			}
		}
	}
	return 0
}
