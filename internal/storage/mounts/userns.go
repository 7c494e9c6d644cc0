package mounts

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/internal/sys/fork"
	"berth/internal/sys/refuse"
)

// UserNS returns a user namespace with the map, for the kernel to take an idmap from. No
// process lives in it: it ends when the file is closed and no mount uses it.
//
// A user namespace needs a process, so UserNS starts a child in a new one and kills it once the namespace is open. The
// child is traced, which stops it before its first instruction after exec: its program does not matter.
func UserNS(ids IDs) (*os.File, error) {
	if ids.None() {
		return nil, fmt.Errorf("make a user namespace: no id range")
	}
	// The tracer is this thread. If it dies, the child is killed too (Pdeathsig).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	child, err := fork.StartProcess("/proc/self/exe", []string{"userns"}, &os.ProcAttr{
		Env: []string{},
		Sys: &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER,
			UidMappings: sysLines(ids.Users()),
			GidMappings: sysLines(ids.Groups()),
			Ptrace:      true,
			Pdeathsig:   unix.SIGKILL,
		},
	})
	if err != nil {
		return nil, &refuse.Error{
			Kind:   refuse.Cannot,
			What:   fmt.Sprintf("make a user namespace for ids %d+%d: %v", ids.Base, ids.Size, err),
			Remedy: "allow user namespaces (sysctl user.max_user_namespaces, kernel.yama.ptrace_scope below 3), or set user_namespace: false",
			Err:    err,
		}
	}
	// The child is not yet waited for, so its pid cannot be reused.
	ns, err := os.Open("/proc/" + strconv.Itoa(child.Pid) + "/ns/user")
	fork.Kill(child)
	if err != nil {
		return nil, fmt.Errorf("open the user namespace of a child: %w", err)
	}
	return ns, nil
}
