// Command testrun runs go test and closes with one line that cannot be misread: how many tests passed, failed and
// were skipped, with each skip's reason above it.
//
//	go run ./tools/testrun [-skips FILE] [go test's flags and packages]
//
// A test counts once, at its leaf: a test with subtests is not counted beside them, unless it failed by itself. A
// package that does not build, or ends outside of a test, counts as one failed. With -skips, a skip whose reason no
// line (a regular expression) of FILE matches is a failure too: the machine could have run that test.
// Exit code: 0 when nothing failed, else 1.
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
)

func main() {
	args := os.Args[1:]
	var allowed *allowList
	if len(args) >= 2 && args[0] == "-skips" {
		var err error
		if allowed, err = readAllowList(args[1]); err != nil {
			fmt.Fprintln(os.Stderr, "testrun:", err)
			os.Exit(2)
		}
		args = args[2:]
	}
	ok, err := run(args, allowed, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// run starts go test with args, reports on w, and says whether all is well.
func run(args []string, allowed *allowList, w io.Writer) (bool, error) {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return false, err
	}
	if err := cmd.Start(); err != nil {
		return false, fmt.Errorf("start go test: %w", err)
	}
	t := newTally(w)
	if err := t.read(out); err != nil {
		return false, err
	}
	waitErr := cmd.Wait()
	ok := t.report(allowed)
	if waitErr != nil && ok {
		return false, fmt.Errorf("go test failed, and no test did: %w", waitErr)
	}
	return ok, nil
}
