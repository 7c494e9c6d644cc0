package node

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"berth/internal/node/nodelog"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
)

// logWait is how long a command waits until the output of a node is in its log. The node cannot make it longer.
const logWait = time.Second

func (b *Berth) log(name string) nodelog.Log {
	dirs := b.Layout.Node(name)
	return nodelog.Log{Pipe: dirs.LogPipe(), File: dirs.Log(), Old: dirs.OldLog()}
}

// flushLog returns when the node's output until now is in its log. The keeper moves it there; with end it then closes the
// node's pipe.
func (b *Berth) flushLog(ctx context.Context, name string, end bool) {
	if _, err := os.Lstat(b.Layout.Node(name).LogPipe()); err != nil {
		return // it has none, as in the foreground
	}
	ctx, cancel := context.WithTimeout(ctx, 2*logWait)
	defer cancel()
	switch {
	case b.logs != nil && end:
		b.logs.Finish(name, logWait)
	case b.logs != nil:
		b.logs.Flush(name, logWait)
	case !b.keeper().Runs():
	case end:
		_ = b.keeper().EndLog(ctx, name)
	default:
		_ = b.keeper().FlushLog(ctx, name)
	}
}

// OpenLog opens a node's log, once the output until now is in it; nil if the node has none.
func (b *Berth) OpenLog(ctx context.Context, name string) (*nodelog.View, error) {
	if _, err := b.Stored(name); refuse.KindOf(err) == refuse.NotFound {
		return nil, err
	}
	b.flushLog(ctx, name, false)
	v, err := b.log(name).Open()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return v, err
}

// WhileWriting returns a context that ends when the node's process 1 has ended and its output is in its log. The caller
// cancels it.
func (b *Berth) WhileWriting(ctx context.Context, name string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	var pidfd *os.File
	init, err := b.LiveInit(name)
	if err == nil {
		pidfd, err = init.First().Open()
	}
	if err != nil {
		cancel()
		return ctx, cancel
	}
	go func() {
		defer pidfd.Close()
		if proc.Wait(ctx, pidfd) == nil {
			b.flushLog(ctx, name, false)
		}
		cancel()
	}()
	return ctx, cancel
}
