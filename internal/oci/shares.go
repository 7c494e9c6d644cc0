package oci

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// leaveHalf lowers soft limits of this process, which the runtime inherits: a user namespace counts pending signals (POSIX timers
// too) and message queues for whoever made it, the host's root, and takes the maker's soft limit for what all that root has made may
// have together (set_userns_rlimit_max in kernel/user_namespace.c). So nodes stop at half, and the host's own services keep the
// other. The hard limits stay: a spec may ask for more for a process.
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
