package netif

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// Way says at which link the packets of a node's interface are limited or checked.
type Way string

// The ways to limit a rate. TBF limits what a link sends. So the rate of received frames is enforced on egress of the host's
// end of a veth, or else of an ifb to which everything received is redirected first.
const (
	Egress  Way = "egress"  // of the node's interface
	Peer    Way = "peer"    // egress of the host's end of the node's veth
	Ingress Way = "ingress" // of the node's interface: egress of an ifb in the node
)

// Where says it for a sentence: "tbf on an ifb".
func (w Way) Where() string {
	switch w {
	case Peer:
		return " on the host's end"
	case Ingress:
		return " on an ifb"
	}
	return ""
}

// UnmarshalText implements encoding.TextUnmarshaler. It refuses an unknown way.
func (w *Way) UnmarshalText(text []byte) error {
	switch Way(text) {
	case Egress, Peer, Ingress:
		*w = Way(text)
		return nil
	}
	return fmt.Errorf("%q is no way to limit an interface", text)
}

// On calls f with the link at which packets of an interface are checked, and with the interface. An ifb is not looked for.
func (w Way) On(i *Inside, hub Hub, f func(h *netlink.Handle, on, inner netlink.Link) error) error {
	return i.On(func(r *Socket, l netlink.Link) error {
		if w != Peer {
			return f(r.Handle, l, l)
		}
		h, peer, err := PeerOf(hub, l)
		if err != nil {
			return err
		}
		defer h.Close()
		return f(h, peer, l)
	})
}

var errNoPeer = errors.New("its other end is gone")

// PeerOf finds the host's end of the veth whose inner end is l, and opens a netlink socket where it is.
func PeerOf(hub Hub, l netlink.Link) (*netlink.Handle, netlink.Link, error) {
	h, err := hub.Open()
	if err != nil {
		return nil, nil, err
	}
	peer, err := ByIndex(h, l.Attrs().ParentIndex)
	if err == nil && (peer == nil || peer.Type() != "veth" || peer.Attrs().ParentIndex != l.Attrs().Index) {
		err = errNoPeer
	}
	if err != nil {
		h.Close()
		return nil, nil, fmt.Errorf("find the host's end of %s: %w", l.Attrs().Name, err)
	}
	return h, peer, nil
}
