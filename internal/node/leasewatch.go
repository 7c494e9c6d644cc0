package node

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"berth/internal/dhcp"
	"berth/internal/link"
	"berth/internal/step"
	"berth/internal/vnode"
)

// LeaseDetail is what an interface has by DHCP.
type LeaseDetail struct {
	Server string    `json:"server,omitempty"`
	Ends   time.Time `json:"ends,omitzero"` // absent: never
}

func (b *Berth) leaseOf(node, ifname string) dhcp.Lease {
	return link.ReadLease(link.LeaseFile(b.Layout.Node(node).Run, ifname))
}

// leaseDetail tells of an interface's lease; nil if it has none.
func (b *Berth) leaseDetail(node, ifname string) *LeaseDetail {
	now := dhcp.Now()
	l := b.leaseOf(node, ifname)
	if l.State(now) == dhcp.Ended {
		return nil
	}
	d := &LeaseDetail{}
	if l.Server.IsValid() {
		d.Server = l.Server.String()
	}
	if left := l.Left(now); left != dhcp.Forever {
		d.Ends = time.Now().Add(time.Duration(left) * time.Second).Round(time.Second)
	}
	return d
}

// addresses are those that a node has by its spec and by its leases.
func (b *Berth) addresses(n *vnode.Node) []string {
	var all []string
	for _, nw := range n.Network {
		if nw.DHCP {
			if l := b.leaseOf(n.Name, nw.Name); l.State(dhcp.Now()) != dhcp.Ended {
				all = append(all, l.Address.String())
			}
		}
		all = append(all, nw.Address...)
	}
	return all
}

// keepLeases keeps the addresses that a node's interfaces have by DHCP, until ctx ends.
func (k *keeper) keepLeases(ctx context.Context, name string, pid int) {
	j, err := k.b.liveJournal(name)
	if err != nil {
		return
	}
	for _, s := range j.Steps() {
		if d, ok := s.(*link.DHCP); ok {
			t := &tenant{k: k, DHCP: d, node: name, pid: pid, log: k.log.With("node", name, "interface", d.If)}
			go t.stay(ctx)
		}
	}
}

// tenant keeps one lease (RFC 2131, 4.4.5): it asks for more time when half of it is over, or when the server said, and for
// a new lease when the old one has ended.
type tenant struct {
	k *keeper
	*link.DHCP
	node  string
	pid   int // of the init: another one has leases of its own
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
	for lives := true; lives && t.sleep(ctx, wait); {
		lives, wait = t.ask(ctx)
	}
}

func (t *tenant) sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// say writes a line when the state is another than before.
func (t *tenant) say(state, text string, args ...any) {
	if t.said != state {
		t.log.Info(text, args...)
	}
	t.said = state
}

// ask does what is due and returns when to do so again; lives is false if the node runs no more.
func (t *tenant) ask(ctx context.Context) (lives bool, wait time.Duration) {
	l := t.Lease()
	state := l.State(dhcp.Now())
	var next dhcp.Lease
	var err error
	switch state {
	case dhcp.Bound: // set again by somebody else
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
		lives, err := t.locked(ctx, t.Drop)
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
	lives, err := t.locked(ctx, func() error { return t.Take(l) })
	if err != nil {
		t.say("not set", "the leased address could not be set", "err", err)
		return lives, longestPause
	}
	step.Fault("lease renewed")
	t.pause = 0
	t.say(string(dhcp.Bound), "the address is leased", "address", l.Address, "server", l.Server, "for", time.Duration(l.Seconds)*time.Second)
	return lives, l.Wait(dhcp.Now())
}

// locked calls f with the node's lock, if the node still runs, and notes the addresses that it has then.
func (t *tenant) locked(ctx context.Context, f func() error) (lives bool, err error) {
	b := t.k.b
	l, err := b.lockThere(ctx, t.node)
	if l == nil {
		return false, err
	}
	defer l.release()
	defer b.unlockGone(t.node, l)
	if init, err := b.liveInit(t.node); err != nil || init.PID != t.pid {
		return false, nil // it ended, and what it had is given back or about to be
	}
	if err := f(); err != nil {
		return true, err
	}
	s, err := b.stored(t.node)
	if err != nil {
		return true, err
	}
	if st, err := b.status(t.node); err == nil && !slices.Equal(st.Addresses, b.addresses(s.Now)) {
		st.Addresses = b.addresses(s.Now)
		b.setStatus(st)
	}
	return true, nil
}
