package oci

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// leaveHalf lowers two soft limits of this process, which the runtime inherits, to half of the hard limits. The kernel
// charges pending signals (also POSIX timers) and message queues in a user namespace to its creator, the host's root, and
// takes the creator's soft limit as the bound for all that root's namespaces have together (set_userns_rlimit_max in
// kernel/user_namespace.c). So all nodes together stop at half, and the other half remains for the host's own services.
// The hard limits stay: a spec may ask for more for a process.
var leaveHalf = sync.OnceValue(func() error {
	for _, what := range []int{unix.RLIMIT_SIGPENDING, unix.RLIMIT_MSGQUEUE} {
		var l unix.Rlimit
		if err := unix.Getrlimit(what, &l); err != nil {
			return fmt.Errorf("read limit %d: %w", what, err)
		}
		if l.Cur <= l.Max/2 {
			continue
		}
		l.Cur = l.Max / 2
		if err := unix.Setrlimit(what, &l); err != nil {
			return fmt.Errorf("lower limit %d: %w", what, err)
		}
	}
	return nil
})
