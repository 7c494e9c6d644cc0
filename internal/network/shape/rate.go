// Package shape limits what nodes' interfaces send and receive, sets the priority of their packets, and reads back what
// the kernel holds.
package shape

import (
	"context"
	"fmt"

	"berth/internal/host/netif"
	"berth/internal/spec/vnode"
	"berth/internal/sys/fault"
	"berth/internal/sys/proof"
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
	netif.Inside
	proof.Limit
	Bits vnode.BitRate `json:"bits,omitempty"` // per second; 0 to remove the limit
	Way  netif.Way     `json:"way"`
	Hub  netif.Hub     `json:"hub,omitempty"` // namespace of the host's end
}

// NewRate returns the rate of one direction of an interface: proof.NetTX or proof.NetRX.
func NewRate(in netif.Inside, kind proof.Kind, bits vnode.BitRate, way netif.Way) *Rate {
	return &Rate{
		Inside: in, Bits: bits, Way: way,
		Limit: proof.Limit{Key: kind.Key(in.If), Asked: bits.String(), By: rateMechanism, Note: rateNote},
	}
}

// Kind implements step.Step.
func (r *Rate) Kind() string { return "link.rate" }

// String is "net.eth0.tx 1Gbit/s by tbf".
func (r *Rate) String() string {
	return fmt.Sprintf("%s %s by %s%s", r.Key, r.Asked, rateMechanism, r.Way.Where())
}

// Do sets the rate. It replaces an earlier rate.
func (r *Rate) Do(context.Context) error {
	in, err := r.Open()
	if err != nil {
		return err
	}
	defer in.Close()
	return r.set(in, r.Bits)
}

// Verify reads the rate back from the kernel.
func (r *Rate) Verify(context.Context) error {
	now, err := r.Read()
	if err != nil {
		return err
	}
	r.ReadBack = rateText(now)
	if r.Holds = now == rounded(r.Bits); !r.Holds {
		return fmt.Errorf("%s: the kernel has %s, not %s", r.Key, r.ReadBack, r.Asked)
	}
	return nil
}

// Undo removes the rate; the link gets its default queue back.
func (r *Rate) Undo(context.Context) error { return r.giveBack(0) }

func (r *Rate) giveBack(bits vnode.BitRate) error {
	return r.IfThere(func(in *netif.Socket) error {
		if l, err := netif.ByName(in.Handle, r.If); err != nil || l == nil { // its queues went with it
			return err
		}
		return r.set(in, bits)
	})
}

func (r *Rate) set(in *netif.Socket, bits vnode.BitRate) error {
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
	fault.Point("rate set")
	return nil
}

// Read returns the rate that the kernel has; 0 if none.
func (r *Rate) Read() (vnode.BitRate, error) {
	in, err := r.Open()
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

// rounded returns the rate that the kernel has for a requested one: the kernel counts whole bytes.
func rounded(bits vnode.BitRate) vnode.BitRate { return bits / 8 * 8 }

func rateText(bits vnode.BitRate) string {
	if bits == 0 {
		return vnode.Max
	}
	return bits.String()
}

// shaper finds the link whose egress enforces the rate. A missing ifb is made if create is true; else shaper returns
// nil.
func (r *Rate) shaper(in *netif.Socket, create bool) (*shaper, error) {
	l, err := r.Link(in)
	if err != nil {
		return nil, err
	}
	switch r.Way {
	case netif.Peer:
		h, peer, err := netif.PeerOf(r.Hub, l)
		if err != nil {
			return nil, err
		}
		return &shaper{h: h, l: peer, own: true, mtu: max(peer.Attrs().MTU, l.Attrs().MTU)}, nil
	case netif.Ingress:
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
