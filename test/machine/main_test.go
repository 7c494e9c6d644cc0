// Package machine boots virtual machines with an emulated CPU, and checks what nodes of kind machine promise.
package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/image/imagetest"
	"berth/internal/runner/machine"
	"berth/internal/storage/packed"
	"berth/test/built"
	"berth/test/env"
	"berth/test/lab/kernel"
	"berth/test/testkit"
)

// bench is where the tests work: a berth with a root of its own, an image, and a kernel with its modules.
var bench struct {
	env.Berth
	image, kernel string
	lacks         kernel.Lack // why no machine can boot here
}

// benchDir names the variable by which a process that the tests start knows the folder of bench: the suite starts this program again.
const benchDir = "BERTH_TEST_MACHINE"

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
	if os.Geteuid() != 0 {
		return m.Run() // which skips
	}
	dir := os.Getenv(benchDir)
	again := dir != ""
	if !again {
		var err error
		if dir, err = os.MkdirTemp("", "berth-machine-"); err != nil {
			fmt.Println(err)
			return 1
		}
		defer os.RemoveAll(dir)
		os.Setenv(benchDir, dir)
		os.Setenv("PATH", os.Getenv("PATH")+":"+dir) // there is the program for guests
	}
	bench.Berth, bench.image, bench.kernel = env.In(dir), filepath.Join(dir, "busybox.erofs"), filepath.Join(dir, "boot/vmlinuz")
	if !again {
		if err := prepare(dir); err != nil && !errors.As(err, &bench.lacks) {
			fmt.Println(err)
			return 1
		}
	}
	return m.Run()
}

// prepare makes the programs and the kernel.
func prepare(dir string) error {
	err := errors.Join(os.Chmod(dir, 0o755), built.Berth(context.Background(), bench.Program, built.Fault), built.Guest(context.Background(), dir))
	if err == nil {
		err = shareDaemon(dir)
	}
	if err == nil {
		_, err = kernel.Into(dir)
	}
	return err
}

// shareDaemon takes the daemon of mounts that scripts/setup fetched, where the host has none.
func shareDaemon(dir string) error {
	text, err := os.ReadFile("../../build/tools/virtiofsd")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "virtiofsd"), text, 0o755)
}

// needs skips a test on a machine that boots no guest, and makes the image for the others.
func needs(t *testing.T) {
	t.Helper()
	testkit.NeedsRoot(t)
	if bench.lacks != "" {
		t.Skip(string(bench.lacks))
	}
	if _, err := os.Stat(bench.image); errors.Is(err, fs.ErrNotExist) {
		must(t, "image", "import", imagetest.Busybox(t), "busybox")
		must(t, "image", "pack", "busybox", "-o", bench.image)
	}
}

// berth runs a command and returns what it wrote to standard output, and its exit code.
func berth(t *testing.T, input string, args ...string) (out string, code int) {
	t.Helper()
	cmd := bench.Command(args...)
	cmd.Stdin = strings.NewReader(input)
	out, said, code := env.Try(cmd)
	t.Logf("berth %s: %d %s", strings.Join(args, " "), code, said)
	return out, code
}

// must runs a command that must succeed.
func must(t *testing.T, args ...string) string {
	t.Helper()
	return bench.OK(t, args...)
}

// packedImage returns the image for a runner.
func packedImage(t *testing.T) *packed.File {
	t.Helper()
	f, _, err := packed.In(filepath.Join(bench.Layout().Images(), "packed")).Resolve(bench.image)
	testkit.Must(t, err)
	return f
}
