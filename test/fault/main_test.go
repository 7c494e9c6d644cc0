// Package fault kills Berth with SIGKILL: after each step of each command, by the fault points of a binary that is built
// with the tag berthfault, and at random moments. After berth repair the host must be as it was.
//
// Each test has its own network and mount namespaces, and its own root for Berth under /tmp.
package fault

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"berth/test/built"
)

// berth is the binary with fault points, which TestMain builds once.
var berth string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	if p := flag.Lookup("test.parallel"); p.Value.String() == p.DefValue { // the tests mostly wait for the kernel
		if err := p.Value.Set("4"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	dir, err := os.MkdirTemp("", "berth-fault-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // the probe of the runtimes runs this binary in a node
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	berth = filepath.Join(dir, "berth")
	if err := built.Berth(context.Background(), berth, "berthfault"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}
