package node

import "golang.org/x/sys/unix"

// reaped tells how a child of the keeper ended; it is not known for a process that was not its child.
func (k *keeper) reaped(pid int) (unix.WaitStatus, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var ws unix.WaitStatus
	if got, err := unix.Wait4(pid, &ws, unix.WNOHANG, nil); err == nil && got == pid {
		return ws, true
	}
	ws, ok := k.exits[pid]
	delete(k.exits, pid)
	return ws, ok
}
