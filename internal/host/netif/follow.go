package netif

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Brief is what a dump without counters says of a link.
type Brief struct {
	Name          string
	Index, Master int
	Up            bool
}

// Each calls f with the links of a namespace, until f returns false. It reads only what Brief holds, and stops reading
// when f does. After an interrupted dump it starts again, so f may see a link twice.
func (u Hub) Each(f func(Brief) bool) error {
	where := netns.None()
	if u != "" {
		ns, err := u.File()
		if err != nil {
			return err
		}
		defer ns.Close()
		where = netns.NsHandle(ns.Fd())
	}
	for range 50 {
		interrupted, err := dump(where, f)
		if err != nil {
			return fmt.Errorf("list links: %w", err)
		}
		if !interrupted {
			break
		}
	}
	return nil
}

// dump reads the links once. interrupted is true if the table changed meanwhile, so that links may be missing.
func dump(where netns.NsHandle, f func(Brief) bool) (interrupted bool, err error) {
	sock, err := nl.GetNetlinkSocketAt(where, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return false, err
	}
	defer sock.Close()
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	const withoutCounters = 1 << 3 // RTEXT_FILTER_SKIP_STATS
	req.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(withoutCounters)))
	if err := sock.Send(req); err != nil {
		return false, err
	}
	for {
		all, _, err := sock.Receive()
		if err != nil {
			return false, err
		}
		for _, m := range all {
			interrupted = interrupted || m.Header.Flags&unix.NLM_F_DUMP_INTR != 0
			switch m.Header.Type {
			case unix.NLMSG_DONE:
				return interrupted, nil
			case unix.NLMSG_ERROR:
				return false, errors.New("the kernel refused")
			}
			l, err := parseBrief(m.Data)
			if err != nil {
				return false, err
			}
			if !f(l) {
				return false, nil
			}
		}
	}
}

func parseBrief(data []byte) (Brief, error) {
	msg := nl.DeserializeIfInfomsg(data)
	attrs, err := nl.ParseRouteAttr(data[msg.Len():])
	l := Brief{Index: int(msg.Index), Up: msg.Flags&unix.IFF_UP != 0}
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.IFLA_IFNAME:
			l.Name = string(a.Value[:max(len(a.Value)-1, 0)])
		case unix.IFLA_MASTER:
			l.Master = int(nl.NativeEndian().Uint32(a.Value))
		}
	}
	return l, err
}

// Follow calls told with the name of each link of the namespace that is added, removed or changed, until done is closed
// or the kernel drops events. It calls told with "" at the start: earlier changes are not reported. It keeps the
// namespace alive until it returns. The error wraps fs.ErrNotExist if the namespace does not exist.
func (u Hub) Follow(done <-chan struct{}, told func(name string)) error {
	options := netlink.LinkSubscribeOptions{}
	if u != "" {
		ns, err := u.File()
		if err != nil {
			return err
		}
		defer ns.Close()
		handle := netns.NsHandle(ns.Fd())
		options.Namespace = &handle
	}
	events := make(chan netlink.LinkUpdate, 64)
	if err := netlink.LinkSubscribeWithOptions(events, done, options); err != nil {
		return fmt.Errorf("follow links: %w", err)
	}
	told("")
	for e := range events { // until done, or the kernel dropped events: its buffer was full
		told(e.Attrs().Name)
	}
	return nil
}
