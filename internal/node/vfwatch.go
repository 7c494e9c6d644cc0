package node

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/link"
	"berth/internal/plan"
)

// reattach connects the interfaces of a node that runs again, if they have lost what they are connected to. The caller holds
// its lock.
func (b *Berth) reattach(ctx context.Context, name string) (did string, err error) {
	j, err := b.liveJournal(name)
	if err != nil {
		return "", nil //nolint:nilerr // it does not run
	}
	if _, err := b.liveInit(name); err != nil {
		return "", nil //nolint:nilerr // likewise
	}
	s, err := b.stored(name)
	if err != nil {
		return "", err
	}
	rates, err := plan.Rates(s.Now, plan.Facts{Layout: b.Layout})
	if err != nil {
		return "", err
	}
	mended, err := link.Reattach(ctx, j.Steps(), rates)
	if len(mended) > 0 {
		did = "connected again: " + strings.Join(mended, ", ")
	}
	return did, err
}

// vfWatch is the keeper's eye on virtual functions that come back to the host under a node that runs, as when a driver
// is reloaded. It is open only while there are such nodes.
type vfWatch struct {
	mu    sync.Mutex
	nodes map[string]int // how often each is watched: a new start may overlap the end of the last
	look  chan struct{}  // a reason to look
	end   context.CancelFunc
}

// settleTime is how long the links of the host must be quiet before the keeper looks: they come in bursts.
const settleTime = 300 * time.Millisecond

// watchVFs takes a node up if it has virtual functions. letGo ends that.
func (k *keeper) watchVFs(ctx context.Context, name string) (letGo func()) {
	j, err := k.b.liveJournal(name)
	if err != nil || !link.HasVF(j.Steps()) {
		return func() {}
	}
	w := &k.vfs
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.nodes) == 0 {
		w.nodes, w.look = map[string]int{}, make(chan struct{}, 1)
		ctx, w.end = context.WithCancel(ctx)
		go k.followLinks(ctx, w.look)
		go k.lookAfterVFs(ctx, w.look)
	}
	w.nodes[name]++
	poke(w.look)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.nodes[name]--; w.nodes[name] == 0 {
			delete(w.nodes, name)
		}
		if len(w.nodes) == 0 {
			w.end()
		}
	}
}

func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// followLinks pokes look whenever the kernel tells of an adapter's link on the host.
func (k *keeper) followLinks(ctx context.Context, look chan<- struct{}) {
	for ctx.Err() == nil {
		events := make(chan netlink.LinkUpdate, 64)
		if err := netlink.LinkSubscribe(events, ctx.Done()); err != nil {
			k.log.Error("follow the host's links", "err", err)
		} else {
			for e := range events { // until the kernel lost some: its buffer was full
				if e.Header.Type == unix.RTM_NEWLINK && e.Attrs().ParentDevBus == "pci" {
					poke(look)
				}
			}
		}
		poke(look)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// lookAfterVFs mends what is to be mended after each burst of events.
func (k *keeper) lookAfterVFs(ctx context.Context, look <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-look:
		}
		for quiet := false; !quiet; {
			select {
			case <-ctx.Done():
				return
			case <-look:
			case <-time.After(settleTime):
				quiet = true
			}
		}
		k.mendVFs(ctx)
	}
}

func (k *keeper) mendVFs(ctx context.Context) {
	did, err := k.b.RestoreVFs(ctx, 0)
	if err != nil {
		k.log.Error("make virtual functions again", "err", err)
	}
	for _, d := range did {
		k.log.Info(d)
	}
	k.vfs.mu.Lock()
	var names []string
	for name := range k.vfs.nodes {
		names = append(names, name)
	}
	k.vfs.mu.Unlock()
	for _, name := range names {
		did, err := k.b.lockAndReattach(ctx, name)
		if err != nil {
			k.log.Error("give a node its virtual function back", "node", name, "err", err)
		}
		if did != "" {
			k.log.Info(did, "node", name)
		}
	}
}

func (b *Berth) lockAndReattach(ctx context.Context, name string) (string, error) {
	l, err := b.lockThere(ctx, name)
	if l == nil {
		return "", err
	}
	defer l.release()
	defer b.unlockGone(name, l)
	return b.reattach(ctx, name)
}
