package node

import (
	"time"

	"golang.org/x/sys/unix"
)

// reaped tells how a child of the keeper ended, whose pidfd says that it did; it is not known for a process that was
// not its child. A pidfd may say so a moment before wait4 has the child (seen on Linux 6.12): hence the few tries.
func (k *keeper) reaped(pid int) (unix.WaitStatus, bool) {
	for range 100 {
		ws, known, again := k.tryReap(pid)
		if !again {
			return ws, known
		}
		time.Sleep(2 * time.Millisecond)
	}
	return 0, false
}

// tryReap asks to be called again when the process is a child that wait4 does not have yet.
func (k *keeper) tryReap(pid int) (ws unix.WaitStatus, known, again bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	got, err := unix.Wait4(pid, &ws, unix.WNOHANG, nil)
	if err == nil {
		return ws, got == pid, got == 0
	}
	ws, known = k.exits[pid]
	delete(k.exits, pid)
	return ws, known, false
}
