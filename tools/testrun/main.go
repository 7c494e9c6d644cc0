// Command testrun runs go test. Its last line says how many tests passed, failed and were skipped; above it are the
// reasons of the skips.
//
//	go run ./tools/testrun [-skips FILE] [go test's flags and packages]
//
// Only leaves count: a test with subtests is not counted in addition to them, unless it failed by itself. A package that
// does not build, or that ends outside of a test, counts as one failure. With -skips, a skip is a failure too unless a
// line of FILE, a regular expression, matches its reason.
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

// run runs go test with args and reports on w. It returns false if a test failed or a skip is not allowed.
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
