package node

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ending is how an init ended.
type ending struct {
	ws    unix.WaitStatus
	known bool      // ws is
	after time.Time // where nobody saw it end: a moment before that; zero where somebody did
}

// unseen is the ending of an init that had ended before this keeper looked.
func (k *keeper) unseen(pid int) (e ending) {
	if e.ws, e.known = k.reaped(pid); !e.known { // else it ended just now, or is a child that was collected
		e.after = k.before
	}
	return e
}

// acts notes that the keeper is there, and with it all inits that it waits for: the time of its lock. Nobody can say
// later when a keeper was killed, but when it last did something.
func (k *keeper) acts() {
	now := time.Now()
	_ = os.Chtimes(k.b.Layout.KeeperLock(), now, now)
}

// lastAct is when a keeper last did something; never a zero time.
func lastAct(lock *os.File) time.Time {
	if s, err := lock.Stat(); err == nil {
		return s.ModTime()
	}
	return time.Unix(0, 0)
}

// keeperActed is lastAct of the last keeper, for where none runs.
func (b *Berth) keeperActed() time.Time {
	f, err := os.Open(b.Layout.KeeperLock())
	if err != nil {
		return time.Unix(0, 0)
	}
	defer f.Close()
	return lastAct(f)
}

// lastKnown is the last moment at which a node is known to have run, beside those given: it wrote to its output, which
// the kernel notes in the inode of the pipe, and a node cannot change that.
func (b *Berth) lastKnown(name string, times ...time.Time) (last time.Time) {
	var st unix.Stat_t
	if unix.Stat(b.Layout.Node(name).LogPipe(), &st) == nil {
		times = append(times, time.Unix(st.Ctim.Unix()))
	}
	for _, t := range times {
		if t.After(last) {
			last = t
		}
	}
	return last
}
