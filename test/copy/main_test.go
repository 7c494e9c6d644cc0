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
	"berth/test/env"
	"berth/test/testkit"
)

// bench is where the tests work. Node one runs, node two is stopped.
var bench env.Berth

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if os.Geteuid() != 0 {
		fmt.Println("no root: the tests are skipped one by one")
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "berth-copy-")
	if err == nil {
		defer os.RemoveAll(dir)
		bench = env.In(dir)
		err = os.Chmod(dir, 0o755)
	}
	if err == nil {
		err = built.Berth(context.Background(), bench.Program)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer bench.End()
	return m.Run()
}

// must runs berth, which must succeed, and returns what it wrote to standard output and error.
func must(t env.T, args ...string) (stdout, stderr string) {
	t.Helper()
	return run1(t, bench.Command(args...))
}

func run1(t env.T, cmd *exec.Cmd) (stdout, stderr string) {
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
	testkit.NeedsRoot(t)
	if testing.Short() {
		t.Skip("no nodes with -short")
	}
	testkit.Final(t, "files were lost or halved, or a node reached files of the host")
	if _, err := os.Stat(filepath.Join(bench.Root, "lib/nodes/two")); err == nil {
		return
	}
	must(t, "image", "import", imagetest.Busybox(t), "busybox")
	bench.Apply(t, "name: one\nimage: oci:busybox\ncommand: [/bin/sleep, infinity]\nmemory: {max: 256MiB}\n---\nname: two\nimage: oci:busybox\ncommand: [/bin/sleep, infinity]\n")
	must(t, "stop", "two")
}
