package link

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"berth/internal/step"
	"berth/internal/vnode"
)

// Way says where a rate is enforced.
type Way string

// The ways. TBF limits what a link sends. So the rate of received frames is enforced on egress of the host's end of a
// veth, or else of an ifb to which everything received is redirected first.
const (
	Egress  Way = "egress"  // of the node's interface
	Peer    Way = "peer"    // egress of the host's end of the node's veth
	Ingress Way = "ingress" // of the node's interface: egress of an ifb in the node
)

// rateMechanism is the mechanism that berth show names: the token bucket filter. TBF has three advantages over HTB: one
// message sets it; a socket's priority cannot select a way around it (in HTB SO_PRIORITY can); and it splits packets
// that are bigger than its bucket, so that low rates stay even.
const rateMechanism = "tbf"

// rateNote is a note about rates for the user.
const rateNote = "counts whole Ethernet frames (not preamble, checksum and gap): TCP carries 5 % less at mtu 1500"

// Rate is a step that limits one direction of an interface of a running node, from outside: the node has no right to
// change or remove the limit. The rate counts the bytes of Ethernet frames with headers. For a packet that the kernel
// or the adapter splits later (GSO) it counts the headers of each part (qdisc_pkt_len_init).
type Rate struct {
	Inside
	Key      string        `json:"key"`            // as berth set takes it: "net.eth0.tx"
	Asked    string        `json:"asked"`          // as the spec writes it; "max" to remove the limit
	Bits     vnode.BitRate `json:"bits,omitempty"` // per second; 0 to remove the limit
	Way      Way           `json:"way"`
	Hub      Hub           `json:"hub,omitempty"`       // namespace of the host's end
	ReadBack string        `json:"read_back,omitempty"` // the kernel's rate, after Verify
}

// Rates returns the rates that the networks ask for. It is pure and refuses (Cannot) a rate that this kernel or the
// link cannot provide.
func Rates(in Input) ([]*Rate, error) {
	var all []*Rate
	for _, n := range in.Networks {
		some, err := in.rates(n)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// rates returns the rates of one network.
func (in *Input) rates(n vnode.Network) ([]*Rate, error) {
	var all []*Rate
	for _, d := range []struct {
		name string
		bits vnode.BitRate
		way  Way
	}{{"tx", n.Rate.TX, Egress}, {"rx", n.Rate.RX, receiveWay(n.Mode)}} {
		if d.bits == 0 || n.Mode == vnode.None {
			continue
		}
		r := &Rate{
			Inside: Inside{NS: in.NS, If: n.Name}, Key: "net." + n.Name + "." + d.name,
			Asked: d.bits.String(), Bits: d.bits, Way: d.way,
		}
		if n.Parent == "" {
			r.Hub = in.Hub
		}
		if err := in.checkRate(n, r); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

func receiveWay(m vnode.Mode) Way {
	if m == vnode.Bridge {
		return Peer
	}
	return Ingress
}

// Kind implements step.Step.
func (r *Rate) Kind() string { return "link.rate" }

// String is "net.eth0.tx 1Gbit/s by tbf".
func (r *Rate) String() string {
	return fmt.Sprintf("%s %s by %s%s", r.Key, r.Asked, rateMechanism, r.Way.where())
}

func (w Way) where() string {
	switch w {
	case Peer:
		return " on the host's end"
	case Ingress:
		return " on an ifb"
	}
	return ""
}

// Mechanism returns the name of the kernel mechanism that enforces the rate.
func (r *Rate) Mechanism() string { return rateMechanism }

// Do sets the rate. It replaces an earlier rate.
func (r *Rate) Do(context.Context) error {
	in, err := r.enter()
	if err != nil {
		return err
	}
	defer in.Close()
	return r.set(in, r.Bits)
}

// Verify reads the rate back from the kernel.
func (r *Rate) Verify(context.Context) error {
	now, err := r.read()
	if err != nil {
		return err
	}
	r.ReadBack = rateText(now)
	if now != held(r.Bits) {
		return fmt.Errorf("%s: the kernel has %s, not %s", r.Key, r.ReadBack, r.Asked)
	}
	return nil
}

// Undo removes the rate; the link gets its default queue back.
func (r *Rate) Undo(context.Context) error { return r.giveBack(0) }

func (r *Rate) giveBack(bits vnode.BitRate) error {
	in, err := r.enter()
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer in.Close()
	if l, err := byName(in.Handle, r.If); err != nil || l == nil { // its queues went with it
		return err
	}
	return r.set(in, bits)
}

func (r *Rate) set(in *room, bits vnode.BitRate) error {
	s, err := r.shaper(in, bits != 0)
	if err != nil || s == nil {
		return err
	}
	defer s.close()
	if bits == 0 {
		err = s.clear()
	} else {
		err = s.set(bits)
	}
	if err != nil {
		return fmt.Errorf("set %s to %s: %w", r.Key, rateText(bits), err)
	}
	step.Fault("rate set")
	return nil
}

// read returns the rate that the kernel has; 0 if none.
func (r *Rate) read() (vnode.BitRate, error) {
	in, err := r.enter()
	if err != nil {
		return 0, err
	}
	defer in.Close()
	s, err := r.shaper(in, false)
	if err != nil || s == nil {
		return 0, err
	}
	defer s.close()
	bits, err := s.read()
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", r.Key, err)
	}
	return bits, nil
}

// held returns the rate that the kernel has for a requested one: the kernel counts whole bytes.
func held(bits vnode.BitRate) vnode.BitRate { return bits / 8 * 8 }

func rateText(bits vnode.BitRate) string {
	if bits == 0 {
		return vnode.Max
	}
	return bits.String()
}

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
	return fmt.Sprintf("%s %s ⇒ %s by %s%s", c.Key, c.From, c.Asked, rateMechanism, c.Way.where())
}

// Prepare records the kernel's present rate.
func (c *RateChange) Prepare(ctx context.Context) error {
	if err := c.Inside.Prepare(ctx); err != nil {
		return err
	}
	back, err := c.read()
	c.Back = back
	return err
}

// Undo restores the kernel's previous rate.
func (c *RateChange) Undo(context.Context) error { return c.giveBack(c.Back) }

// Shown is one rate or priority as berth show prints it.
type Shown struct {
	Key        string `json:"key"`
	Asked      string `json:"asked"`
	ReadBack   string `json:"read_back"`   // the kernel's present value
	HonouredBy string `json:"honoured_by"` // the mechanism
	Note       string `json:"note,omitempty"`
	Holds      bool   `json:"holds"` // ReadBack is the requested value, up to the kernel's rounding
}

// Show returns the rate as requested.
func (r *Rate) Show() Shown {
	return Shown{Key: r.Key, Asked: r.Asked, HonouredBy: rateMechanism, Note: rateNote}
}

// ReadRates reads rates back from the kernel, no matter who set them.
func ReadRates(all []*Rate) ([]Shown, error) {
	var shown []Shown
	for _, r := range all {
		now, err := r.read()
		if err != nil {
			return nil, err
		}
		s := r.Show()
		s.ReadBack, s.Holds = rateText(now), now == held(r.Bits)
		shown = append(shown, s)
	}
	return shown, nil
}

var errNoPeer = errors.New("its other end is gone")

// shaper finds the link whose egress enforces the rate. A missing ifb is made if create is true; else shaper returns
// nil.
func (r *Rate) shaper(in *room, create bool) (*shaper, error) {
	l, err := r.link(in)
	if err != nil {
		return nil, err
	}
	switch r.Way {
	case Peer:
		return peerShaper(r.Hub, l)
	case Ingress:
		ifb, err := findIFB(in.Handle, l)
		if err == nil && ifb == nil && create {
			ifb, err = makeIFB(in.Handle, l)
		}
		if err != nil || ifb == nil {
			return nil, err
		}
		return &shaper{h: in.Handle, l: ifb, feeds: l, mtu: l.Attrs().MTU}, nil
	}
	return &shaper{h: in.Handle, l: l, mtu: l.Attrs().MTU}, nil
}

// peerShaper finds the host's end of the veth whose inner end is l.
func peerShaper(hub Hub, l netlink.Link) (*shaper, error) {
	h, err := hub.open()
	if err != nil {
		return nil, err
	}
	peer, err := byIndex(h, l.Attrs().ParentIndex)
	if err == nil && (peer == nil || peer.Type() != "veth" || peer.Attrs().ParentIndex != l.Attrs().Index) {
		err = errNoPeer
	}
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("find the host's end of %s: %w", l.Attrs().Name, err)
	}
	return &shaper{h: h, l: peer, own: true, mtu: max(peer.Attrs().MTU, l.Attrs().MTU)}, nil
}
