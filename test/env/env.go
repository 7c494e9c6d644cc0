// Package env gives tests a berth with a root of its own: its commands, certificates, and what is left of its nodes.
package env

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/site/certs"
	"berth/internal/spec/roles"
	"berth/internal/sys/layout"
	"berth/test/built"
	"berth/test/testkit"
)

// Berth is a program berth, and the root below which it keeps everything.
type Berth struct {
	Program string   // its path; Berth's other programs lie beside it
	Root    string   // not made before the first command
	Env     []string // more environment variables of its commands, NAME=VALUE
	Cwd     string   // where its commands are run; "": where the test is
}

// In is the berth of a folder: program berth, and root.
func In(dir string) Berth {
	return Berth{Program: filepath.Join(dir, "berth"), Root: filepath.Join(dir, "root")}
}

// New makes a berth in a folder of the test's own, as testkit.Dir makes it. Nodes that are there when the test ends are removed.
func New(t testing.TB, below string) Berth {
	t.Helper()
	b := In(testkit.Dir(t, below))
	testkit.Must(t, built.Berth(t.Context(), b.Program))
	t.Cleanup(func() {
		if err := b.Clear(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// Dir is the folder of the program.
func (b Berth) Dir() string { return filepath.Dir(b.Program) }

// Layout is where berth keeps what.
func (b Berth) Layout() layout.Layout { return layout.New(b.Root) }

// Command prepares a command.
func (b Berth) Command(args ...string) *exec.Cmd {
	cmd := exec.Command(b.Program, append([]string{"--root", b.Root}, args...)...)
	cmd.Env, cmd.Dir = append(os.Environ(), b.Env...), b.Cwd
	return cmd
}

// Try runs a command, and returns what it wrote and its exit code: -1 if a signal has ended it, or if it did not start.
func (b Berth) Try(args ...string) (stdout, stderr string, code int) { return Try(b.Command(args...)) }

// Try runs any command as Berth.Try does. One that hangs is killed.
func Try(cmd *exec.Cmd) (stdout, stderr string, code int) {
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.WaitDelay = testkit.Bound() // what it leaves behind may hold its output open
	if err := cmd.Start(); err != nil {
		return "", err.Error(), -1
	}
	late := time.AfterFunc(testkit.Bound(), func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	_ = cmd.Wait() // the exit code tells
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// T is a test, or one check of a property.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
}

// OK runs a command that must succeed, and returns what it wrote to standard output.
func (b Berth) OK(t T, args ...string) string {
	t.Helper()
	stdout, stderr, code := b.Try(args...)
	if code != 0 {
		t.Fatalf("%s %s: exit code %d: %s%s", b.Program, strings.Join(args, " "), code, stdout, stderr)
	}
	return stdout
}

// Apply makes or changes nodes by a text of YAML.
func (b Berth) Apply(t T, specs string) {
	t.Helper()
	cmd := b.Command("apply", "-f", "-")
	cmd.Stdin = strings.NewReader(specs)
	if stdout, stderr, code := Try(cmd); code != 0 {
		t.Fatalf("apply: exit code %d: %s%s\n%s", code, stdout, stderr, specs)
	}
}

// Clear removes all nodes.
func (b Berth) Clear() error {
	names := entries(b.Layout().LibNodes())
	if len(names) == 0 {
		return nil
	}
	if stdout, stderr, code := b.Try(append([]string{"rm", "--force"}, names...)...); code != 0 {
		return errors.New("remove nodes " + strings.Join(names, " ") + ": " + stdout + stderr)
	}
	return nil
}

// End removes all nodes, and waits until the keeper has ended. It returns the names of the nodes that there were.
func (b Berth) End() (left []string) {
	left = entries(b.Layout().LibNodes())
	_ = b.Clear()
	testkit.Happens(func() bool {
		_, err := os.Lstat(b.Layout().KeeperSocket())
		return err != nil
	})
	return left
}

// Certify makes a certificate of a host at addresses, or of a user, and installs it in a folder.
func Certify(t testing.TB, signer *certs.Signer, dir, name string, role roles.Role, addresses ...string) {
	t.Helper()
	var b certs.Bundle
	var err error
	if role == roles.Host {
		b, err = signer.IssueHost(t.Context(), name, addresses)
	} else {
		b, err = signer.IssueUser(t.Context(), name, role, certs.UserLife)
	}
	testkit.Must(t, err)
	testkit.Must(t, certs.Install(dir, b))
}
