package mounts

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/internal/refuse"
)

// UserNS returns a user namespace that maps 0..Size-1 to the range, for the kernel to read an idmap from. Nobody
// lives in it: it is gone when the file is closed and no mount uses it.
//
// The kernel gives user namespaces to processes only, so a child is made in a new one and killed as soon as it was
// seen. It asks to be traced, which stops it before the first instruction after exec: what it would run does not matter.
func UserNS(ids IDs) (*os.File, error) {
	if ids.None() {
		return nil, fmt.Errorf("make a user namespace: no id range")
	}
	// The tracer is the thread; and should this process be killed, so is the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	mapping := []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(ids.Base), Size: int(ids.Size)}}
	child, err := os.StartProcess("/proc/self/exe", []string{"userns"}, &os.ProcAttr{
		Env: []string{},
		Sys: &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER,
			UidMappings: mapping,
			GidMappings: mapping,
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
	// Not yet waited for, so its pid cannot have been given to another.
	ns, err := os.Open("/proc/" + strconv.Itoa(child.Pid) + "/ns/user")
	_ = child.Kill()
	_, _ = child.Wait()
	if err != nil {
		return nil, fmt.Errorf("open the user namespace of a child: %w", err)
	}
	return ns, nil
}
