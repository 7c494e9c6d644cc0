// Package built gives tests the program berth, which a run of all tests builds once.
package built

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
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

// Agent makes the program berthd, in a folder, which is that of berth.
func Agent(ctx context.Context, dir string) error {
	return made(ctx, "berthd", filepath.Join(dir, "berthd"), nil)
}

// All makes every program of Berth's in a folder.
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
	return nil
}

func made(ctx context.Context, name, out string, tags []string) error {
	kept := os.Getenv(Dir)
	if kept == "" {
		return build(ctx, name, out, tags)
	}
	program := filepath.Join(kept, strings.Join(append([]string{name}, tags...), "-"))
	if _, err := os.Stat(program); err != nil {
		own := fmt.Sprintf("%s.%d", program, os.Getpid()) // another package's tests may build it at the same time
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
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-tags", strings.Join(tags, ","), "-o", out, "berth/cmd/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build "+name+": %w\n%s", err, text)
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
