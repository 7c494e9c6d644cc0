// Package machine boots virtual machines with an emulated CPU, and checks what nodes of kind machine promise.
package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/runner/machine"
	"berth/internal/storage/packed"
	"berth/test/built"
)

// bench is where the tests work: a berth and its own root, an image, and a kernel with its modules.
var bench struct {
	dir, berth, root, image, kernel string
	lacks                           string // why no machine can boot here
}

// TestMain makes this program the monitor where berth would be.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == machine.Command {
		code, err := machine.Main(os.Args[2])
		if err != nil {
			code = 1
		}
		os.Exit(code)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if os.Getenv("BERTH_TEST_JOB") == "" && os.Geteuid() == 0 {
		bench.dir = os.Getenv(benchDir)
		if bench.dir == "" {
			dir, err := os.MkdirTemp("", "berth-machine-")
			if err != nil {
				fmt.Println(err)
				return 1
			}
			defer os.RemoveAll(dir)
			bench.dir = dir
			if err := prepare(dir); err != nil {
				var lacks lack
				if !errors.As(err, &lacks) {
					fmt.Println(err)
					return 1
				}
				bench.lacks = lacks.Error()
			}
			os.Setenv(benchDir, dir) // the suite starts this program again, for processes that it kills
		}
		bench.berth, bench.root = filepath.Join(bench.dir, "berth"), filepath.Join(bench.dir, "root")
		bench.image, bench.kernel = filepath.Join(bench.dir, "busybox.erofs"), filepath.Join(bench.dir, "boot", "vmlinuz")
		os.Setenv("PATH", os.Getenv("PATH")+":"+bench.dir)
	}
	return m.Run()
}

const benchDir = "BERTH_TEST_MACHINE"

// lack is what this machine lacks to boot a guest.
type lack string

func (l lack) Error() string { return string(l) }

// prepare makes what the tests need.
func prepare(dir string) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	if _, err := exec.LookPath(machine.Program); err != nil {
		return lack("needs the emulator " + machine.Program)
	}
	if err := errors.Join(built.Berth(context.Background(), filepath.Join(dir, "berth"), built.Fault), built.Guest(context.Background(), dir)); err != nil {
		return err
	}
	if err := kernel(dir); err != nil {
		return err
	}
	return image(dir)
}

// kernel takes a kernel and its modules from the image of the lab.
func kernel(dir string) error {
	out, err := exec.Command("../lab/image/build", "--where").Output()
	if err != nil {
		return fmt.Errorf("find the lab's image: %w", err)
	}
	from := strings.TrimSpace(string(out))
	text, err := os.ReadFile(filepath.Join(from, "vmlinuz"))
	if err != nil {
		return lack("needs the kernel of the lab's image: test/lab/image/build makes it")
	}
	boot := filepath.Join(dir, "boot")
	if err := os.Mkdir(boot, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(boot, "vmlinuz"), text, 0o600); err != nil {
		return err
	}
	release, err := machine.KernelRelease(filepath.Join(boot, "vmlinuz"))
	if err != nil {
		return err
	}
	to := filepath.Join(dir, "lib/modules", release)
	var script strings.Builder
	take := func(name string) {
		fmt.Fprintf(&script, "dump /usr/lib/modules/%s/%s %s\n", release, name, filepath.Join(to, name))
		err = errors.Join(err, os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o755))
	}
	take("modules.dep")
	for _, m := range []string{
		"drivers/virtio/virtio_mmio", "drivers/misc/pvpanic/pvpanic", "drivers/misc/pvpanic/pvpanic-mmio", "drivers/block/virtio_blk", "drivers/char/hw_random/virtio-rng", "drivers/net/virtio_net", "drivers/net/net_failover", "net/core/failover",
		"crypto/crc32c_generic", "lib/libcrc32c", "lib/crc16", "fs/mbcache", "fs/jbd2/jbd2", "fs/ext4/ext4", "fs/erofs/erofs", "fs/squashfs/squashfs", "fs/overlayfs/overlay",
	} {
		take("kernel/" + m + ".ko")
	}
	if err != nil {
		return err
	}
	cmd := exec.Command("debugfs", "-f", "/dev/stdin", filepath.Join(from, "root.ext4"))
	cmd.Stdin = strings.NewReader(script.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("take the kernel's modules: %w: %s", err, out)
	}
	return nil
}

// image packs a root of busybox.
func image(dir string) error {
	top := filepath.Join(dir, "busybox")
	for _, d := range []string{"bin", "etc", "dev", "proc", "sys", "tmp", "run"} {
		if err := os.MkdirAll(filepath.Join(top, d), 0o755); err != nil {
			return err
		}
	}
	text, err := os.ReadFile("/usr/bin/busybox")
	if err != nil {
		return lack("needs busybox")
	}
	err = errors.Join(os.WriteFile(filepath.Join(top, "bin/busybox"), text, 0o755), os.WriteFile(filepath.Join(top, "etc/passwd"), []byte("root:x:0:0::/:/bin/sh\napp:x:1000:1000::/:/bin/sh\n"), 0o644),
		os.WriteFile(filepath.Join(top, "etc/group"), []byte("root:x:0:\napp:x:1000:\n"), 0o644))
	for n := range strings.FieldsSeq("sh cat echo sleep kill id hostname true uname md5sum seq head reboot pwd yes dd init ls readlink grep tr ip ping nc") {
		err = errors.Join(err, os.Symlink("busybox", filepath.Join(top, "bin", n)))
	}
	if err != nil {
		return err
	}
	tar := exec.Command("tar", "-C", top, "-cf", filepath.Join(dir, "busybox.tar"), ".")
	for _, cmd := range []*exec.Cmd{
		tar, inRoot(dir, "image", "import", filepath.Join(dir, "busybox.tar"), "busybox"), inRoot(dir, "image", "pack", "busybox", "-o", filepath.Join(dir, "busybox.erofs")),
	} {
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", cmd, err, out)
		}
	}
	return nil
}

func inRoot(dir string, args ...string) *exec.Cmd {
	return exec.Command(filepath.Join(dir, "berth"), append([]string{"--root", filepath.Join(dir, "root")}, args...)...)
}

// needs skips a test on a machine that boots no guest.
func needs(t *testing.T) {
	t.Helper()
	switch {
	case os.Geteuid() != 0:
		t.Skip("not root: nodes need it")
	case bench.lacks != "":
		t.Skip(bench.lacks)
	}
}

// berth runs a command and returns what it wrote to standard output, and its exit code.
func berth(t *testing.T, input string, args ...string) (out string, code int) {
	t.Helper()
	cmd := inRoot(bench.dir, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	err := cmd.Run()
	if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended {
		t.Fatal(err)
	}
	t.Logf("berth %s: %d %s", strings.Join(args, " "), cmd.ProcessState.ExitCode(), stderr.String())
	return stdout.String(), cmd.ProcessState.ExitCode()
}

// must runs a command that must succeed.
func must(t *testing.T, args ...string) string {
	t.Helper()
	out, code := berth(t, "", args...)
	if code != 0 {
		t.Fatalf("berth %v: exit code %d", args, code)
	}
	return out
}

// packedImage returns the image for a runner.
func packedImage(t *testing.T) *packed.File {
	t.Helper()
	f, _, err := packed.In(filepath.Join(bench.root, "lib/images/packed")).Resolve(bench.image)
	if err != nil {
		t.Fatal(err)
	}
	return f
}
