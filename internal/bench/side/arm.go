// Package side runs the commands of one arm of a comparison, and watches what else the machine does meanwhile.
package side

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Arm runs a command on one side of the comparison and returns what it wrote to its standard output. Its caller may
// assume: the command has ended when Arm returns, also when ctx was cancelled, which ends the command; the error of a
// command that failed holds what it wrote to its standard error; the target has the same path in every arm. How long an
// arm needs to start the command does not matter: fio's own clock is used.
type Arm func(ctx context.Context, argv []string) (stdout []byte, err error)

// Host is the arm that runs commands directly. They end with this process, whatever ends it.
func Host(ctx context.Context, argv []string) ([]byte, error) {
	// The death signal is sent when the thread that forked ends, so the thread has to stay (prctl(2), PR_SET_PDEATHSIG).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// A group of its own: Ctrl-C on the terminal reaches Berth, which then decides. fio --thread is one process.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()
	if ctx.Err() != nil {
		return stdout.Bytes(), ctx.Err()
	}
	if err != nil {
		if said := strings.TrimSpace(stderr.String()); said != "" && !errors.Is(err, exec.ErrNotFound) {
			err = fmt.Errorf("%w: %s", err, said)
		}
		return stdout.Bytes(), fmt.Errorf("run %s: %w", argv[0], err)
	}
	return stdout.Bytes(), nil
}
