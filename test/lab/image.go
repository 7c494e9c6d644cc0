package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// image is the output of test/lab/image/build.
type image struct {
	dir    string // vmlinuz, initrd, root.ext4
	module string // this source tree
}

// boot holds the files that a machine boots from.
type boot struct {
	kernel, initrd, root string
	accel                string // for QEMU's -accel
}

// moduleDir is the folder of this source tree.
func moduleDir(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "berth").Output()
	if err != nil {
		return "", fmt.Errorf("find the source tree: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// buildImage builds the guest's image unless it is in the cache.
func buildImage(ctx context.Context) (image, error) {
	if os.Geteuid() != 0 {
		return image{}, &CannotError{Why: "root"}
	}
	module, err := moduleDir(ctx)
	if err != nil {
		return image{}, err
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(module, "test/lab/image/build"))
	cmd.Stderr = io.MultiWriter(&stderr, os.Stderr)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 3 {
		lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		return image{}, &CannotError{Why: strings.TrimPrefix(lines[len(lines)-1], "lab image: ")}
	}
	if err != nil {
		return image{}, fmt.Errorf("build the lab's image: %w\n%s", err, stderr.String())
	}
	return image{dir: strings.TrimSpace(string(out)), module: module}, nil
}

// prepare makes in dir the files that the machines of one run boot from: the image with an agent built from the current source.
func (i image) prepare(ctx context.Context, dir string) (boot, error) {
	b := boot{
		kernel: filepath.Join(i.dir, "vmlinuz"), initrd: filepath.Join(dir, "initrd"),
		root: filepath.Join(i.dir, "root.ext4"),
	}
	agent, err := i.agent(ctx, dir)
	if err != nil {
		return b, err
	}
	if err := joinInitrd(b.initrd, filepath.Join(i.dir, "initrd"), agent); err != nil {
		return b, fmt.Errorf("make the initial RAM disk: %w", err)
	}
	b.accel, err = accel(ctx, filepath.Dir(i.dir), b)
	return b, err
}

// built is the agent, which a process builds once.
var built struct {
	sync.Mutex
	agent []byte
}

// agent builds the program that answers in a machine. It uses folder dir.
func (i image) agent(ctx context.Context, dir string) ([]byte, error) {
	built.Lock()
	defer built.Unlock()
	if built.agent != nil {
		return built.agent, nil
	}
	file := filepath.Join(dir, "agent")
	if err := buildGo(ctx, i.module, file, "./test/lab/agent"); err != nil {
		return nil, err
	}
	var err error
	built.agent, err = os.ReadFile(file)
	return built.agent, err
}

func buildGo(ctx context.Context, module, out, pkg string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", out, pkg)
	cmd.Dir, cmd.Env = module, append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, text)
	}
	return nil
}

// joinInitrd writes an initial RAM disk of two archives: the image's and one with the agent. The kernel unpacks both in order
// (Documentation/driver-api/early-userspace/buffer-format.rst).
func joinInitrd(out, first string, agent []byte) error {
	b, err := os.ReadFile(first)
	if err != nil {
		return err
	}
	var all bytes.Buffer
	all.Write(b)
	pad(&all)
	cpioFile(&all, "agent", 0o100755, agent)
	cpioFile(&all, "TRAILER!!!", 0, nil)
	return os.WriteFile(out, all.Bytes(), 0o600)
}

// cpioFile appends a file in cpio's "newc" format.
func cpioFile(b *bytes.Buffer, name string, mode uint32, data []byte) {
	fmt.Fprintf(b, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		1, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0)
	b.WriteString(name + "\x00")
	pad(b)
	b.Write(data)
	pad(b)
}

// pad fills up to a multiple of four bytes.
func pad(b *bytes.Buffer) {
	for b.Len()%4 != 0 {
		b.WriteByte(0)
	}
}
