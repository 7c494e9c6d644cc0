package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/network/address"
	"berth/internal/node/plan"
	"berth/internal/storage/ids"
	"berth/internal/sys/fault"
	flock "berth/internal/sys/lock"
	"berth/internal/sys/proc"
)

// lock is a node's lock, held by flock on a file. The runtime inherits it while it works for the holder, so that a
// killed command leaves the node locked until its runtime has ended too.
type lock struct {
	f   *os.File
	lib string // the node's lasting folder
}

// lock waits for the node's lock. The file is removed with the node; a command that locked a removed file tries again.
func (b *Berth) lock(ctx context.Context, name string) (*lock, error) {
	return b.lockWhile(ctx, name, func() bool { return true })
}

// lockThere is lock for commands that do not make the node: if the node is gone, it returns nil without an error, and
// makes no file that would have to be removed.
func (b *Berth) lockThere(ctx context.Context, name string) (*lock, error) {
	return b.lockWhile(ctx, name, func() bool {
		_, lock := os.Lstat(b.Layout.Lock(name))
		_, lib := os.Lstat(b.Layout.Node(name).Lib) // a reboot takes the locks of nodes that stay
		return lock == nil || lib == nil
	})
}

func (b *Berth) lockWhile(ctx context.Context, name string, wanted func() bool) (*lock, error) {
	path := b.Layout.Lock(name)
	for {
		if !wanted() {
			return nil, nil
		}
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
		if errors.Is(err, unix.EROFS) { // a node whose disk has turned read-only can be stopped
			if there, thereErr := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0); thereErr == nil {
				f, err = there, nil
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			if err := b.Layout.Make(); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("lock node %s: %w", name, err)
		}
		if err := flock.Wait(ctx, f); err != nil {
			f.Close()
			return nil, fmt.Errorf("node %s: %w", name, err)
		}
		var held, there unix.Stat_t
		if unix.Fstat(int(f.Fd()), &held) == nil && unix.Stat(path, &there) == nil && held.Ino == there.Ino {
			fault.Point("locked")
			return &lock{f: f, lib: b.Layout.Node(name).Lib}, nil
		}
		f.Close()
	}
}

// release ends the lock, and removes its file if the node is gone: locking made it anew.
func (l *lock) release() {
	if _, err := os.Lstat(l.lib); errors.Is(err, fs.ErrNotExist) {
		_ = os.Remove(l.f.Name())
		fault.Point("lock removed")
	}
	flock.Release(l.f)
}

// claimIndexes are the folders with the claims of all nodes: a link is named by the thing that is claimed, and its target is
// NODE/IFNAME.
func (b *Berth) claimIndexes() []string {
	return append(plan.NAT(b.Layout, "").Indexes(), b.Layout.MACs(), b.Layout.Addresses())
}

// release gives up the claims of a node without a journal in the folders that all nodes share: a power cut may have
// spared the claim and lost the journal. The caller holds the node's lock.
func (b *Berth) release(ctx context.Context, name string) error {
	err := ids.GiveBack(ctx, b.Layout.IDs(), name)
	for _, index := range b.claimIndexes() {
		err = errors.Join(err, address.Release(index, name))
	}
	return err
}

// sweepClaims gives up the claims of nodes that do not exist.
func (b *Berth) sweepClaims(ctx context.Context) error {
	owners, err := ids.Nodes(b.Layout.IDs())
	for _, index := range b.claimIndexes() {
		more, listErr := address.Claimants(index)
		owners, err = append(owners, more...), errors.Join(err, listErr)
	}
	slices.Sort(owners)
	for _, name := range slices.Compact(owners) {
		if b.Exists(name) {
			continue
		}
		l, lockErr := b.lock(ctx, name)
		if lockErr != nil {
			return errors.Join(err, lockErr)
		}
		if !b.Exists(name) {
			err = errors.Join(err, b.release(ctx, name))
		}
		l.release()
	}
	return err
}

// sweepLocks removes the locks of nodes that do not exist.
func (b *Berth) sweepLocks(ctx context.Context) {
	paths, _ := filepath.Glob(b.Layout.Lock("*"))
	for _, p := range paths {
		name := filepath.Base(p)
		if b.Exists(name) {
			continue
		}
		if l, err := b.lock(ctx, name); err == nil {
			l.release()
		}
	}
}

// lockKilling is lockNode. With kill, for a caller that ends a node by force and may act on all nodes, process 1 is killed again and again
// while another command has the lock, such as one that waits for hours until the node has stopped by itself, or for minutes until it has booted.
func (b *Berth) lockKilling(ctx context.Context, name string, kill bool) (l *lock, killed bool, err error) {
	if !kill || b.guard != nil || name != filepath.Base(name) {
		l, err := b.lockNode(ctx, name)
		return l, false, err
	}
	locked := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for {
			select {
			case <-locked:
				return
			case <-time.After(forced):
			}
			if init, err := b.MadeInit(name); err == nil {
				if pidfd, err := init.First().Open(); err == nil {
					killed = proc.Signal(pidfd, unix.SIGKILL) == nil || killed
					pidfd.Close()
				}
			}
		}
	})
	l, err = b.lockNode(ctx, name)
	close(locked)
	all.Wait()
	return l, killed, err
}

// forced is how long a command that ends a node by force waits for another command before it kills the node's process 1.
const forced = time.Second
