// Package copy tests berth cp and berth export on this host's own kernel: that they keep what GNU tar and podman keep, that a
// hostile node gains nothing, and that a kill leaves nothing behind.
package copy

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/image/imagetest"
	"berth/test/built"
	"berth/test/testkit"
)

// bench is where the tests work: a berth, and its own root. Node one runs, node two is stopped.
var bench struct{ dir, berth, root string }

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if os.Geteuid() != 0 {
		fmt.Println("no root: the tests are skipped one by one")
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "berth-copy-")
	if err == nil {
		defer os.RemoveAll(dir)
		bench.dir, bench.berth, bench.root = dir, filepath.Join(dir, "berth"), filepath.Join(dir, "root")
		err = os.Chmod(dir, 0o755)
	}
	if err == nil {
		err = built.Berth(context.Background(), bench.berth)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer func() {
		for _, name := range []string{"one", "two"} {
			_ = command("rm", "--force", name).Run()
		}
		testkit.Happens(func() bool { // the keeper ends by itself
			_, err := os.Stat(filepath.Join(bench.root, "run/keeper.sock"))
			return err != nil
		})
	}()
	return m.Run()
}

func command(args ...string) *exec.Cmd {
	return exec.Command(bench.berth, append([]string{"--root", bench.root}, args...)...)
}

// tester is a test, or one check of a property.
type tester interface {
	Helper()
	Fatalf(format string, a ...any)
}

// must runs berth, which must succeed, and returns what it wrote to standard output and error.
func must(t tester, args ...string) (stdout, stderr string) {
	t.Helper()
	return run1(t, command(args...))
}

func run1(t tester, cmd *exec.Cmd) (stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(cmd.Args, " "), err, &errs)
	}
	return out.String(), errs.String()
}

// nodes makes the two nodes at first use.
func nodes(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if testing.Short() {
		t.Skip("no nodes with -short")
	}
	testkit.Final(t, "files were lost or halved, or a node reached files of the host")
	if _, err := os.Stat(filepath.Join(bench.root, "lib/nodes/two")); err == nil {
		return
	}
	must(t, "image", "import", imagetest.Busybox(t), "busybox")
	spec := filepath.Join(bench.dir, "nodes.yaml")
	text := "name: one\nimage: oci:busybox\ncommand: [/bin/sleep, infinity]\nmemory: {max: 256MiB}\n---\nname: two\nimage: oci:busybox\ncommand: [/bin/sleep, infinity]\n"
	if err := os.WriteFile(spec, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	must(t, "apply", "-f", spec)
	must(t, "stop", "two")
}
