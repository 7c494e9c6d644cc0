package shape

import (
	"context"
	"fmt"

	"berth/internal/spec/vnode"
	"berth/internal/sys/proof"
	"berth/internal/sys/step"
)

// RateChange is a step that changes a rate of a running node. Its Undo restores the kernel's previous rate.
type RateChange struct {
	Rate
	From string        `json:"from"`           // the spec's previous rate; "max" for no limit
	Back vnode.BitRate `json:"back,omitempty"` // the kernel's previous rate; 0: none
}

// RateChanges returns the steps that change a running node's old rates to the new ones. It is pure.
func RateChanges(old, next []*Rate) []step.Step {
	var steps []step.Step
	before := map[string]*Rate{}
	for _, o := range old {
		before[o.Key] = o
	}
	for _, n := range next {
		from := vnode.Max
		if o := before[n.Key]; o != nil {
			from = o.Asked
			delete(before, n.Key)
			if o.Bits == n.Bits {
				continue
			}
		}
		steps = append(steps, &RateChange{Rate: *n, From: from})
	}
	for _, o := range old {
		if before[o.Key] != nil {
			c := &RateChange{Rate: *o, From: o.Asked}
			c.Bits, c.Asked = 0, vnode.Max
			steps = append(steps, c)
		}
	}
	return steps
}

// Kind implements step.Step.
func (c *RateChange) Kind() string { return "link.rate-change" }

// String is "net.eth0.tx 1Gbit/s ⇒ 2Gbit/s by tbf".
func (c *RateChange) String() string {
	return fmt.Sprintf("%s %s ⇒ %s by %s%s", c.Key, c.From, c.Asked, rateMechanism, c.Way.Where())
}

// Proved implements proof.Prover.
func (c *RateChange) Proved() []proof.Limit { return []proof.Limit{c.Limit} }

// Prepare records the kernel's present rate.
func (c *RateChange) Prepare(ctx context.Context) error {
	if err := c.Inside.Prepare(ctx); err != nil {
		return err
	}
	var err error
	c.Back, err = c.Read()
	return err
}

// Undo restores the kernel's previous rate.
func (c *RateChange) Undo(context.Context) error { return c.giveBack(c.Back) }

// Drifted returns the steps that set those rates again that the kernel has not any more, because another program changed the
// interface's queue. A rate that cannot be read has none: its interface is gone.
func Drifted(all []*Rate) (steps []step.Step) {
	for _, r := range all {
		if now, err := r.Read(); err == nil && now != rounded(r.Bits) {
			steps = append(steps, &RateChange{Rate: *r, From: rateText(now)})
		}
	}
	return steps
}

// ReadRates reads rates back from the kernel, no matter who set them.
func ReadRates(all []*Rate) ([]proof.Limit, error) {
	var shown []proof.Limit
	for _, r := range all {
		now, err := r.Read()
		if err != nil {
			return nil, err
		}
		s := r.Limit
		s.ReadBack, s.Holds = rateText(now), now == rounded(r.Bits)
		shown = append(shown, s)
	}
	return shown, nil
}
