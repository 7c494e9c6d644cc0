package oci

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

func procPath(pid int, name string) string { return "/proc/" + strconv.Itoa(pid) + "/" + name }

// execGrace is how long an init may take from start to its command: usually a fraction of a millisecond, more if the
// image is on a network file system.
const execGrace = 30 * time.Second

// waitExec waits until the process runs an executable other than (dev, ino), or has ended.
func waitExec(ctx context.Context, pid int, dev, ino uint64) error {
	ctx, cancel := context.WithTimeout(ctx, execGrace)
	defer cancel()
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 5*time.Millisecond) {
		var exe unix.Stat_t
		if unix.Stat(procPath(pid, "exe"), &exe) != nil || exe.Dev != dev || exe.Ino != ino {
			return nil // a zombie has no executable
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for process %d to run the node's command: %w", pid, ctx.Err())
		case <-time.After(pause):
		}
	}
}
