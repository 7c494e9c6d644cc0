// Package script runs Berth's command line as users do: each testdata/*.txtar is a script with its own nodes.
//
// Beside testscript's own commands a script has
//
//	exits CODE PROGRAM ARG…          runs a program that must end with this exit code
//	eventually PATTERN PROGRAM ARG…  runs a program until its standard output matches
//	signal SIG PATTERN CODE ARG…     runs berth until its standard output matches, signals it, and wants this exit code;
//	                                 INT,/again/,INT waits until the output matches "again" before it sends the second signal
//
// the condition [v1] (memory and block I/O on cgroup v1),
// and the variables BERTH (the program by its path), ROOT (where its nodes are kept), BUSYBOX (an archive of a small system), LINK (the beginning of the
// names that links of its own have). After a script, its nodes are removed, and nothing of them may be left.
package script

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/image/imagetest"
	"berth/test/built"
	"berth/test/testkit"
)

// TestMain runs four scripts at a time, because they mostly wait for the kernel.
func TestMain(m *testing.M) {
	flag.Parse()
	if p := flag.Lookup("test.parallel"); p.Value.String() == p.DefValue {
		_ = p.Value.Set("4") // it is a number
	}
	os.Exit(m.Run())
}

func TestScripts(t *testing.T) {
	if testing.Short() {
		t.Skip("no nodes with -short")
	}
	testkit.NeedsRoot(t)
	bin := build(t)
	busybox := imagetest.Busybox(t)
	var scripts atomic.Int32
	testscript.Run(t, testscript.Params{
		Dir:                "testdata",
		RequireUniqueNames: true,
		Setup: func(env *testscript.Env) error {
			link := fmt.Sprintf("bt%x-%x", os.Getpid(), scripts.Add(1))
			env.Setenv("PATH", bin+":"+os.Getenv("PATH"))
			env.Setenv("ROOT", filepath.Join(env.WorkDir, "root"))
			env.Setenv("BUSYBOX", busybox)
			env.Setenv("BERTH", filepath.Join(bin, "berth"))
			env.Setenv("LINK", link)
			env.Setenv("NO_COLOR", "1")
			env.Defer(func() { tidy(t, env.WorkDir, bin, link) })
			return openTo(env.WorkDir)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "eventually": eventually, "signal": signal,
		},
		Condition: func(cond string) (bool, error) {
			if cond == "nfs" {
				text, err := os.ReadFile("/proc/filesystems")
				return strings.Contains(string(text), "nfs4"), err
			}
			if cond != "v1" {
				return false, fmt.Errorf("unknown condition %s", cond)
			}
			cg, err := host.ReadCgroups("/proc")
			return cg.Has("memory") == "v1" && cg.Has("blkio") == "v1", err
		},
	})
}

// build builds the program, and a command berth that keeps its nodes under $ROOT.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "real", "berth")
	testkit.Must(t, os.Mkdir(filepath.Dir(program), 0o755), built.Berth(t.Context(), program))
	wrapper := "#!/bin/sh\nexec " + program + ` --root "$ROOT" "$@"` + "\n"
	if err := os.WriteFile(filepath.Join(dir, "berth"), []byte(wrapper), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// openTo lets nodes, whose users have no rights on the host, traverse a folder.
func openTo(dir string) error {
	for ; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARG…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	var ended *exec.ExitError
	switch {
	case err == nil && want == 0:
	case err == nil:
		ts.Fatalf("exit code 0, want %d", want)
	case !errors.As(err, &ended) || ended.ExitCode() != want:
		ts.Fatalf("%v, want exit code %d", err, want)
	}
}

func eventually(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: eventually PATTERN PROGRAM ARG…")
	}
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	if !testkit.Happens(func() bool {
		err = ts.Exec(args[1], args[2:]...)
		return pattern.MatchString(ts.ReadFile("stdout"))
	}) {
		ts.Fatalf("after %s: no match for %s; %v", testkit.Bound(), args[0], err)
	}
}

func signal(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 4 {
		ts.Fatalf("usage: signal SIG PATTERN CODE ARG…")
	}
	want, err := strconv.Atoi(args[2])
	ts.Check(err)
	ctx, cancel := context.WithTimeout(context.Background(), 3*testkit.Bound())
	defer cancel()
	var out testkit.Output
	cmd := exec.CommandContext(ctx, filepath.Join(strings.Split(ts.Getenv("PATH"), ":")[0], "berth"), args[3:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = ts.MkAbs("."), &out, ts.Stderr()
	cmd.Env = append(os.Environ(), "ROOT="+ts.Getenv("ROOT"))
	cmd.WaitDelay = testkit.Bound() // a node may outlive it and hold its output open
	ts.Check(cmd.Start())
	says := func(pattern string) {
		if !testkit.Happens(func() bool { return regexp.MustCompile(pattern).MatchString(out.String()) }) {
			_ = cmd.Process.Kill()
			ts.Fatalf("after %s: no match for %s in %q", testkit.Bound(), pattern, out.String())
		}
	}
	says(args[1])
	for what := range strings.SplitSeq(args[0], ",") {
		if strings.HasPrefix(what, "/") {
			says(strings.Trim(what, "/"))
			continue
		}
		ts.Check(cmd.Process.Signal(unix.SignalNum("SIG" + what)))
	}
	_ = cmd.Wait() // the exit code is checked below
	code := cmd.ProcessState.ExitCode()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		code = 128 + int(ws.Signal())
	}
	fmt.Fprint(ts.Stdout(), out.String())
	if code != want {
		ts.Fatalf("exit code %d, want %d; it wrote %q", code, want, out.String())
	}
}
