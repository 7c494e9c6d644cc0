package copier

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/sys/treetar"
)

// Options say how a copy is made.
type Options struct {
	Owners   bool                   // keep owners and access control lists
	UID, GID int                    // else the owner of the files copied in, as an id of the node
	Progress func(bytes, all int64) // nil: not called
}

// ToHost copies a path of the node to a path of this host. The written files belong to the caller, unless owners are
// kept.
func (n *Node) ToHost(ctx context.Context, from, to string, o Options) (treetar.Tally, error) {
	files, err := treetar.OpenDescriptors()
	if err != nil {
		return treetar.Tally{}, err
	}
	defer files.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return treetar.Tally{}, err
	}
	top := treetar.TopName(from)
	c, err := n.Start(ctx, Job{Path: from, Top: top, Harmless: true, Measure: o.Progress != nil}, nil, w)
	w.Close()
	if err != nil {
		r.Close()
		return treetar.Tally{}, err
	}
	defer context.AfterFunc(ctx, func() { r.Close() })() // the copier may keep its end open
	var all atomic.Int64
	type end struct {
		tally treetar.Tally
		err   error
	}
	ended := make(chan end, 1)
	go func() {
		t, err := c.Wait(all.Store)
		ended <- end{t, err}
	}()
	place := Place{Root: unix.AT_FDCWD, Path: to, In: "this host"}
	tally, err := treetar.Unpack(ctx, r, treetar.To{
		Files: files, Place: place.For(top, false), Top: top, Owners: o.Owners, UID: os.Geteuid(), GID: os.Getegid(), Harmless: true,
		Progress: over(o.Progress, &all),
	})
	r.Close()
	var late <-chan time.Time // never
	if err != nil {
		late = time.After(lastWords)
	}
	var their end
	select {
	case their = <-ended:
	case <-late:
		c.Stop()
		<-ended
		return tally, err
	}
	if ctx.Err() != nil {
		return tally, context.Cause(ctx)
	}
	tally.Add(their.tally)
	return tally, blame(err, their.err)
}

// lastWords is how long a copier whose stream has no reader any more may take to say why it failed. Tests shorten it.
var lastWords = 10 * time.Second

// over shows progress of all that there is to read, once that is known.
func over(progress func(bytes, all int64), total *atomic.Int64) func(bytes, all int64) {
	if progress == nil {
		return nil
	}
	return func(bytes, all int64) { progress(bytes, max(total.Load(), all)) }
}

// blame returns the error that came first. Where the writer of a pipe fails, its reader finds a stream that is cut off; where the
// reader fails, the writer finds a broken pipe.
func blame(reader, writer error) error {
	if reader == nil || writer != nil && !errors.Is(writer, errBroken) {
		return writer
	}
	return reader
}

// FromHost copies a path of this host to a path of the node.
func (n *Node) FromHost(ctx context.Context, from, to string, o Options) (treetar.Tally, error) {
	files, err := treetar.OpenDescriptors()
	if err != nil {
		return treetar.Tally{}, err
	}
	defer files.Close()
	place := Place{Root: unix.AT_FDCWD, Path: from, In: "this host"}
	fd, err := place.Find()
	if err != nil {
		return treetar.Tally{}, err
	}
	defer unix.Close(fd)
	r, w, err := os.Pipe()
	if err != nil {
		return treetar.Tally{}, err
	}
	defer w.Close()
	top := treetar.TopName(from)
	c, err := n.Start(ctx, Job{Write: true, Path: to, Top: top, Owners: o.Owners, UID: o.UID, GID: o.GID}, r, nil)
	r.Close()
	if err != nil {
		return treetar.Tally{}, err
	}
	defer context.AfterFunc(ctx, func() { w.Close() })() // the copier may read nothing
	tally, err := treetar.Pack(ctx, w, fd, treetar.From{Files: files, Top: top, Progress: o.Progress, Measure: o.Progress != nil})
	err = place.about(err)
	if err != nil {
		c.Stop() // the tree is not complete
	}
	w.Close()
	theirs, theirErr := c.Wait(nil)
	tally.Add(theirs)
	if ctx.Err() != nil {
		return tally, context.Cause(ctx)
	}
	if err != nil && (theirErr == nil || !errors.Is(err, unix.EPIPE)) { // EPIPE: the copier gave up before
		return tally, err
	}
	return tally, theirErr
}

// ToStream writes a path of the node to w, as a tar stream.
func (n *Node) ToStream(ctx context.Context, from string, w *os.File) (treetar.Tally, error) {
	return n.stream(ctx, Job{Path: from, Top: treetar.TopName(from), Harmless: true}, nil, w)
}

// Export writes the whole root to w, as a tar stream.
func (n *Node) Export(ctx context.Context, w *os.File) (treetar.Tally, error) {
	return n.stream(ctx, Job{Path: "/", Bare: true}, nil, w)
}

// FromStream writes the tree of a tar stream into a folder of the node, which must be there.
func (n *Node) FromStream(ctx context.Context, r *os.File, to string, o Options) (treetar.Tally, error) {
	return n.stream(ctx, Job{Write: true, Path: to, Exists: true, Owners: o.Owners, UID: o.UID, GID: o.GID}, r, nil)
}

func (n *Node) stream(ctx context.Context, j Job, r, w *os.File) (treetar.Tally, error) {
	if n.There != nil {
		return n.carry(ctx, j, r, w)
	}
	c, err := n.Start(ctx, j, r, w)
	if err != nil {
		return treetar.Tally{}, err
	}
	return c.Wait(nil)
}

// carry is stream for a machine: its copier gets a pipe in place of the caller's file.
func (n *Node) carry(ctx context.Context, j Job, r, w *os.File) (treetar.Tally, error) {
	from, to, err := os.Pipe()
	if err != nil {
		return treetar.Tally{}, fmt.Errorf("make a pipe: %w", err)
	}
	in, out, result := from, (*os.File)(nil), (*os.File)(nil)
	if w != nil {
		in, out = nil, to
		result, err = again(w)
	}
	var c *Running
	if err == nil {
		c, err = n.Start(ctx, j, in, out)
	}
	if err != nil {
		from.Close()
		to.Close()
		result.Close()
		return treetar.Tally{}, err
	}
	if w == nil {
		from.Close()
		unread := make(chan error, 1)
		go func() { // a reader of the caller's file may wait for ever, and the copier have its end before
			_, err := io.Copy(to, r)
			if err != nil && !errors.Is(err, unix.EPIPE) {
				unread <- fmt.Errorf("read the stream: %w", err)
				c.Stop() // the tree is not complete
			}
			to.Close()
		}()
		tally, err := c.Wait(nil)
		select {
		case err = <-unread:
		default:
		}
		return tally, err
	}
	to.Close()
	carried := make(chan error, 1)
	go func() {
		defer from.Close() // then the copier's stream has no reader
		defer result.Close()
		_, err := io.Copy(result, from)
		if errors.Is(err, unix.EPIPE) {
			err = errBroken
		}
		carried <- err
	}()
	tally, err := c.Wait(nil)
	select {
	case lost := <-carried:
		return tally, blame(lost, err)
	case <-ctx.Done(): // whoever reads the caller's file takes nothing
		return tally, context.Cause(ctx)
	}
}

// again opens a file of the caller once more: a goroutine may use it when the caller's is closed, and Go ends a program that gets EPIPE on
// standard output.
func again(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("write the stream: %w", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
