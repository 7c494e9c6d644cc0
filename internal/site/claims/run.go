package claims

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host/membership"
	"berth/internal/network/address"
	"berth/internal/node/mechanisms"
	"berth/internal/node/records"
	"berth/internal/sys/refuse"
)

// again is how long Run waits before it asks a cluster state again that was away.
const again = time.Second

// doubt holds that the claims may differ from what the nodes have, and the channel that wakes Run to compare them.
type doubt struct {
	mu     sync.Mutex
	wanted bool
	woken  chan struct{} // holds one wake-up at most; nil: Run does not run
}

func wake(woken chan struct{}) {
	select {
	case woken <- struct{}{}:
	default:
	}
}

// Again lets Run make the claims agree with the nodes again: the site may have forgotten this host, or have been restored.
func (c *Claims) Again() {
	c.doubt.mu.Lock()
	defer c.doubt.mu.Unlock()
	c.doubt.wanted = true
	wake(c.doubt.woken)
}

// doubted reports whether Again was called, and forgets it.
func (c *Claims) doubted() bool {
	c.doubt.mu.Lock()
	defer c.doubt.mu.Unlock()
	was := c.doubt.wanted
	c.doubt.wanted = false
	return was
}

// Run claims for the commands of this host until ctx ends: it answers them, makes the claims agree with the nodes at first and after Again,
// and tells the site what commands gave up while Run did not answer them, woken by inotify. answers, if not nil, is called once Run answers
// commands.
func (c *Claims) Run(ctx context.Context, answers func() error) error {
	owed := c.Layout.SiteOwed()
	for _, dir := range []string{owed, c.Layout.LibNodes()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("watch what nodes give up: %w", err)
		}
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch what nodes give up: %w", err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	defer events.Close()
	if _, err = unix.InotifyAddWatch(fd, owed, unix.IN_CREATE|unix.IN_MOVED_TO); err == nil {
		_, err = unix.InotifyAddWatch(fd, c.Layout.LibNodes(), unix.IN_DELETE)
	}
	if err != nil {
		return fmt.Errorf("watch what nodes give up: %w", err)
	}
	l, err := c.Listen()
	if err != nil {
		return err
	}
	if answers != nil {
		if err := answers(); err != nil {
			l.Close()
			return err
		}
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	served := make(chan struct{})
	go func() {
		defer close(served)
		defer end()
		c.Serve(ctx, l)
	}()
	stop := context.AfterFunc(ctx, func() { _ = events.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	woken := make(chan struct{}, 1)
	c.doubt.mu.Lock()
	c.doubt.woken = woken
	c.doubt.mu.Unlock()
	go func() {
		buf := make([]byte, 4096)
		for {
			if _, err := events.Read(buf); err != nil {
				return
			}
			wake(woken)
		}
	}()
	reconciled := false
	for ctx.Err() == nil {
		if c.doubted() {
			reconciled = false
		}
		if !reconciled || c.adopted() {
			err = c.Reconcile(ctx, c.nodes)
		} else {
			err = c.Tell(ctx)
		}
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(again):
			}
			continue
		}
		reconciled = true
		select { // until there is something to tell
		case <-ctx.Done():
		case <-woken:
		}
	}
	end()
	<-served
	return nil
}

// adopted reports whether a node that Reconcile claimed for is gone: its own steps may have given nothing up.
func (c *Claims) adopted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for node := range c.foreign {
		if _, err := os.Lstat(c.Layout.Node(node).Lib); errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// nodes reads from journals and specs which things the nodes of this host have.
func (c *Claims) nodes() (all []Holding, err error) {
	r := records.Nodes{Layout: c.Layout, Kinds: mechanisms.Kinds()}
	names, err := r.Names()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		h := Holding{Node: name, Adopted: true}
		if n, err := r.Stored(name); err == nil {
			if h.Things, err = membership.Things(n.Now); err != nil {
				c.log("node %s: %v", name, err)
			}
		} else if refuse.KindOf(err) != refuse.NotFound { // being made: its own steps claim
			c.log("%v", err)
		}
		if j, err := r.Claims(name); err == nil {
			for _, s := range j.Steps() {
				switch s := s.(type) {
				case *membership.Claim:
					h.Adopted = false
				case *address.ClaimMAC:
					if got, ok := s.Claimed(); ok && len(h.Things) > 0 {
						h.Things = append(h.Things, membership.Thing{Kind: membership.MAC, Value: got.String()})
					}
				}
			}
		}
		all = append(all, h)
	}
	return all, nil
}
