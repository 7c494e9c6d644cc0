package watch

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"berth/internal/network/address"
	"berth/internal/network/dhcp"
	"berth/internal/sys/fault"
	"berth/internal/sys/proc"
)

// Leases keeps the addresses that interfaces of running nodes have by DHCP.
type Leases struct {
	Keeper
	Of func(node string) []*address.DHCP
	// Locked calls f with the node's lock, if this is still the first process of the node and it runs, and notes the addresses
	// that the node has then.
	Locked func(ctx context.Context, node string, first proc.ID, f func() error) (lives bool, err error)
}

// Watch implements keeper.Watcher.
func (w *Leases) Watch(ctx context.Context, node string, first proc.ID) {
	for _, d := range w.Of(node) {
		t := &tenant{w: w, DHCP: d, node: node, first: first, log: w.Log.With("node", node, "interface", d.If)}
		go t.stay(ctx)
	}
}

// tenant keeps one lease (RFC 2131, 4.4.5): it asks for more time when half of it is over, or when the server said, and for
// a new lease when the old one has ended.
type tenant struct {
	w *Leases
	*address.DHCP
	node  string
	first proc.ID // another one has leases of its own
	log   *slog.Logger
	said  string
	pause time.Duration // until the next DISCOVER
}

const longestPause = time.Minute

func (t *tenant) stay(ctx context.Context) {
	now := dhcp.Now()
	l := t.Lease()
	wait := time.Duration(0)
	switch l.State(now) {
	case dhcp.Ended:
	case dhcp.Bound:
		wait = l.Wait(now)
		fallthrough
	default:
		t.said = string(dhcp.Bound) // as long as nothing is wrong
	}
	for lives := true; lives && pause(ctx, wait); {
		lives, wait = t.ask(ctx)
	}
}

// say writes a line when the state is another than before.
func (t *tenant) say(state, text string, args ...any) {
	if t.said != state {
		t.log.Info(text, args...)
	}
	t.said = state
}

// ask renews or asks for the lease if that is due, and returns when to call it again; lives is false if the node no longer
// runs.
func (t *tenant) ask(ctx context.Context) (lives bool, wait time.Duration) {
	l := t.Lease()
	state := l.State(dhcp.Now())
	var next dhcp.Lease
	var err error
	switch state {
	case dhcp.Bound: // set again by another command
		return true, l.Wait(dhcp.Now())
	case dhcp.Ended:
		return t.anew(ctx, l)
	default:
		next, err = t.Renew(ctx, l)
	}
	if nak, isNAK := errors.AsType[*dhcp.NAKError](err); isNAK {
		t.said = string(dhcp.Ended)
		t.log.Warn("lost the leased address", "address", l.Address, "why", nak.Error())
		return t.anew(ctx, l)
	}
	if ctx.Err() != nil {
		return false, 0
	}
	if err != nil {
		t.say(string(state), "the lease could not be renewed yet", "address", l.Address, "left", time.Duration(l.Left(dhcp.Now()))*time.Second, "err", err)
		return true, l.Wait(dhcp.Now())
	}
	return t.take(ctx, next)
}

// anew gives up a lease that has ended and asks for another.
func (t *tenant) anew(ctx context.Context, old dhcp.Lease) (lives bool, wait time.Duration) {
	if old.Address.IsValid() {
		lives, err := t.w.Locked(ctx, t.node, t.first, t.Drop)
		if err != nil {
			t.say("not taken away", "the address, whose lease has ended, could not be taken away", "address", old.Address, "err", err)
		}
		if err != nil || !lives {
			return lives, longestPause
		}
		t.say(string(dhcp.Ended), "the lease has ended", "address", old.Address)
	}
	l, err := t.Ask(ctx)
	if err == nil {
		return t.take(ctx, l)
	}
	if ctx.Err() != nil {
		return false, 0
	}
	t.say("asking", "no new lease yet", "err", err)
	t.pause = min(max(2*t.pause, time.Second), longestPause)
	return true, t.pause
}

func (t *tenant) take(ctx context.Context, l dhcp.Lease) (lives bool, wait time.Duration) {
	lives, err := t.w.Locked(ctx, t.node, t.first, func() error { return t.Take(ctx, l) })
	if err != nil {
		t.say("not set", "the leased address could not be set", "err", err)
		return lives, longestPause
	}
	fault.Point("lease renewed")
	t.pause = 0
	t.say(string(dhcp.Bound), "the address is leased", "address", l.Address, "server", l.Server, "for", time.Duration(l.Seconds)*time.Second)
	return lives, l.Wait(dhcp.Now())
}
