// Package built gives tests the program berth, which a run of all tests builds once.
package built

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"

	"berth/internal/site/intercept/preload"
)

// Dir names the environment variable for the folder where tools/testrun keeps what was built for its run.
const Dir = "BERTH_BUILT"

// Berth makes a static berth with build tags as file out. The caller works in a folder of this module.
func Berth(ctx context.Context, out string, tags ...string) error {
	return made(ctx, "berth", out, tags)
}

// Puller makes the program that berth image pull starts, in a folder, which is that of berth.
func Puller(ctx context.Context, dir string) error {
	return made(ctx, "berth-pull", filepath.Join(dir, "berth-pull"), nil)
}

// Registry makes the program that berth image serve starts, in a folder, which is that of berth.
func Registry(ctx context.Context, dir string) error {
	return made(ctx, "berth-registry", filepath.Join(dir, "berth-registry"), nil)
}

// Site makes the program that berth becomes for other hosts, in a folder, which is that of berth.
func Site(ctx context.Context, dir string) error {
	return made(ctx, "berth-site", filepath.Join(dir, "berth-site"), nil)
}

// Agent makes the program berthd with build tags, in a folder, which is that of berth.
func Agent(ctx context.Context, dir string, tags ...string) error {
	return made(ctx, "berthd", filepath.Join(dir, "berthd"), tags)
}

// Sync makes the program that berth sync audit becomes, in a folder, which is that of berth.
func Sync(ctx context.Context, dir string) error {
	return made(ctx, "berth-sync", filepath.Join(dir, "berth-sync"), nil)
}

// Guest makes the program that runs in machines, in a folder, which is that of berth.
func Guest(ctx context.Context, dir string) error {
	return made(ctx, "berth-guest", filepath.Join(dir, "berth-guest"), nil)
}

// Etcd makes the etcd of go.mod as a program, in a folder.
func Etcd(ctx context.Context, dir string) error {
	return made(ctx, "etcd", filepath.Join(dir, "etcd"), nil)
}

// Probe makes the program by which test/security tries, in a node, what a node must not be able to do.
func Probe(ctx context.Context, out string) error { return made(ctx, "probe", out, nil) }

// Newer makes a berth with fault points that says it is of NewerVersion.
func Newer(ctx context.Context, out string) error { return made(ctx, newer, out, []string{Fault}) }

// Older makes the berth of OlderCommit, with fault points.
func Older(ctx context.Context, out string) error { return made(ctx, older, out, []string{Fault}) }

// NewerVersion is the version of Newer, and OlderCommit that of Older: the last release. It is moved at each release.
const (
	NewerVersion = "v9.0.0"
	OlderCommit  = "1dd16f8bf66a679a8e0eb6fcdb9ce3d734954563"
)

// newer and older are their names among the programs.
const newer, older = "berth-newer", "berth-older"

// Preload makes the library that file servers load, in a folder.
func Preload(ctx context.Context, dir string) error {
	if kept := os.Getenv(Dir); kept != "" {
		if err := clone(filepath.Join(kept, preload.Library), filepath.Join(dir, preload.Library)); err == nil {
			return nil
		}
	}
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("find the module: %w", err)
	}
	out, err := exec.CommandContext(ctx, filepath.Join(strings.TrimSpace(string(root)), "scripts/build-preload"), dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("make the library: %w: %s", err, out)
	}
	return nil
}

// Everything makes in a folder all that tests start, by the names by which they ask for it: each program, those with fault points, the
// library and etcd. tools/testrun calls it before the first test.
func Everything(ctx context.Context, dir string) error {
	if err := All(ctx, dir); err != nil {
		return err
	}
	for _, name := range []string{"berth", "berthd", newer, older} {
		if err := build(ctx, name, filepath.Join(dir, name+"-"+Fault), []string{Fault}); err != nil {
			return err
		}
	}
	for _, name := range []string{"etcd", "probe"} {
		if err := build(ctx, name, filepath.Join(dir, name), nil); err != nil {
			return err
		}
	}
	return nil
}

// Fault is the build tag for fault points.
const Fault = "berthfault"

// All makes every program of Berth's in a folder, and the library.
func All(ctx context.Context, dir string) error {
	list := exec.CommandContext(ctx, "go", "list", "berth/cmd/...")
	out, err := list.Output()
	if err != nil {
		return fmt.Errorf("list the programs: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		name := path.Base(strings.TrimSpace(line))
		if err := made(ctx, name, filepath.Join(dir, name), nil); err != nil {
			return err
		}
	}
	return Preload(ctx, dir)
}

// builds counts what this process builds.
var builds atomic.Int64

func made(ctx context.Context, name, out string, tags []string) error {
	kept := os.Getenv(Dir)
	if kept == "" {
		return build(ctx, name, out, tags)
	}
	program := filepath.Join(kept, strings.Join(append([]string{name}, tags...), "-"))
	if _, err := os.Stat(program); err != nil {
		own := fmt.Sprintf("%s.%d.%d", program, os.Getpid(), builds.Add(1)) // other tests may build it at the same time
		if err := build(ctx, name, own, tags); err != nil {
			return err
		}
		if err := os.Rename(own, program); err != nil {
			return err
		}
	}
	return clone(program, out)
}

func build(ctx context.Context, name, out string, tags []string) error {
	flags, dir := "-s -w", ""
	switch name {
	case newer:
		flags += " -X berth/internal/sys/version.Berth=" + NewerVersion
	case older:
		dir = out + ".source"
		defer os.RemoveAll(dir)
		if err := checkOut(ctx, dir); err != nil {
			return err
		}
		var err error
		if out, err = filepath.Abs(out); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-tags", strings.Join(tags, ","), "-o", out, source(name))
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build "+name+": %w\n%s", err, text)
	}
	return nil
}

// source is the package of a program.
func source(name string) string {
	switch name {
	case "etcd":
		return "berth/tools/etcd"
	case "probe":
		return "berth/test/security/probe"
	case newer, older:
		return "berth/cmd/berth"
	}
	return "berth/cmd/" + name
}

// checkOut writes the files of OlderCommit to a folder.
func checkOut(ctx context.Context, dir string) error {
	if text, err := exec.CommandContext(ctx, "git", "cat-file", "-e", OlderCommit+"^{commit}").CombinedOutput(); err != nil {
		return fmt.Errorf("this clone has no commit %s: %w %s\nis it shallow? git fetch --unshallow brings the history", OlderCommit, err, text)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	top, err := exec.CommandContext(ctx, "git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return fmt.Errorf("find the top of the clone: %w", err)
	}
	archive := exec.CommandContext(ctx, "git", "-C", strings.TrimSpace(string(top)), "archive", OlderCommit)
	unpack := exec.CommandContext(ctx, "tar", "-x", "-C", dir)
	if unpack.Stdin, err = archive.StdoutPipe(); err != nil {
		return err
	}
	if err := archive.Start(); err != nil {
		return err
	}
	if err := errors.Join(unpack.Run(), archive.Wait()); err != nil {
		return fmt.Errorf("check out %s: %w", OlderCommit, err)
	}
	return nil
}

// clone copies a program.
func clone(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	// A child that another test forks meanwhile would have the file open for writing until it executes its program, and the kernel
	// executes no such file ("text file busy").
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Chmod(to, 0o755) // whatever the umask: other users run it too
	}
	return err
}
