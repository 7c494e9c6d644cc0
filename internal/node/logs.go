package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/nodelog"
	"berth/internal/refuse"
)

// logWait is how long a command waits for what a node wrote to be in its log. The node cannot make it longer.
const logWait = time.Second

func (b *Berth) log(name string) nodelog.Log {
	dirs := b.Layout.Node(name)
	return nodelog.Log{Pipe: dirs.LogPipe(), File: dirs.Log(), Old: dirs.OldLog()}
}

// What the keeper is asked about a log: to move to it what the node wrote so far, and to let go of its pipe too.
const (
	flushLog = "flush log"
	endLog   = "end log"
)

// tellLog asks the keeper about a node's log, if one runs, and waits until it is done.
func (b *Berth) tellLog(ctx context.Context, name, do string) {
	if _, err := os.Lstat(b.Layout.Node(name).LogPipe()); err != nil {
		return // it has none, as in the foreground
	}
	if b.logs != nil {
		doLog(b.logs, name, do)
		return
	}
	if b.keeperRuns() {
		ctx, cancel := context.WithTimeout(ctx, 2*logWait)
		defer cancel()
		_, _ = b.ask(ctx, request{Do: do, Node: name})
	}
}

// doLog does in the keeper what tellLog asks.
func doLog(logs *nodelog.Set, name, do string) {
	if do == endLog {
		logs.Finish(name, logWait)
	} else {
		logs.Flush(name, logWait)
	}
}

// Logs copies a node's log to w: the last lines of it, or all if lines is negative; with follow also what is added
// until the node ends.
func (b *Berth) Logs(ctx context.Context, name string, w io.Writer, lines int, follow bool) error {
	if _, err := b.stored(name); refuse.KindOf(err) == refuse.NotFound {
		return err
	}
	b.tellLog(ctx, name, flushLog)
	v, err := b.log(name).Open()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer v.Close()
	if err := v.Last(w, lines); err != nil || !follow {
		return err
	}
	return b.follow(ctx, name, v, w)
}

// follow copies what is added to the log, woken by inotify, until the init has ended.
func (b *Berth) follow(ctx context.Context, name string, v *nodelog.View, w io.Writer) error {
	in, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch log: %w", err)
	}
	events := os.NewFile(uintptr(in), "inotify")
	defer events.Close()
	// The folder: its files are renamed when they are full.
	if _, err := unix.InotifyAddWatch(in, filepath.Dir(b.Layout.Node(name).Log()), unix.IN_MODIFY|unix.IN_CREATE); err != nil {
		return fmt.Errorf("watch log: %w", err)
	}
	init, err := b.liveInit(name)
	if err != nil {
		return v.More(w)
	}
	pidfd, err := openInit(init.PID, init.StartTime)
	if err != nil {
		return v.More(w)
	}
	defer pidfd.Close()
	stop := context.AfterFunc(ctx, func() { _ = events.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	go func() {
		waitPidfd(pidfd, -1)
		b.tellLog(ctx, name, flushLog)
		_ = events.SetReadDeadline(time.Unix(1, 0))
	}()
	buf := make([]byte, 4096)
	for {
		_, err := events.Read(buf)
		if err := v.More(w); err != nil {
			return err
		}
		if err != nil {
			return nil
		}
	}
}
