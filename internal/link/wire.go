package link

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"berth/internal/vnode"
)

// Wire describes how an interface of a node is connected: the links that must be on the host for it to pass frames.
type Wire struct {
	If     string     `json:"name"`
	Mode   vnode.Mode `json:"mode"`
	Parent string     `json:"parent,omitempty"`    // bridge or adapter; "": the host-only bridge
	HostIf string     `json:"host_name,omitempty"` // the host's end of a veth
}

// Wires returns how a node's interfaces are connected.
func Wires(in Input) []Wire {
	var all []Wire
	for _, n := range in.Networks {
		w := Wire{If: n.Name, Mode: n.Mode, Parent: n.Parent}
		switch n.Mode {
		case vnode.None:
			continue
		case vnode.Bridge:
			w.HostIf = hostName(in.Bridge, in.Node, n.Name)
		}
		all = append(all, w)
	}
	return all
}

// seen is a link as read by a dump without counters.
type seen struct {
	name          string
	index, master int
	up            bool
}

// Sight is a snapshot of the host's links and of the links in the host-only bridge's namespace. Each of the two is read
// when it is first needed.
type Sight struct {
	hub        Hub
	host, hubs *table
}

type table struct {
	byName map[string]seen
	names  map[int]string
}

// Look returns an empty Sight; hub is the namespace of the host-only bridge.
func Look(hub Hub) *Sight { return &Sight{hub: hub} }

// Trouble says what disconnects an interface of a running node from its network; "" if nothing does. pid is the node's
// init.
func (s *Sight) Trouble(w Wire, pid int) (string, error) {
	const text = "%s: not connected: %s"
	switch {
	case w.Mode == vnode.Bridge && w.Parent == "":
		t, err := s.read(&s.hubs, s.hub)
		if err != nil {
			return "", err
		}
		if why := t.own(w); why != "" {
			return fmt.Sprintf(text, w.If, why), nil
		}
	case w.Mode == vnode.Bridge:
		t, err := s.read(&s.host, "")
		if err != nil {
			return "", err
		}
		if why := t.port(w); why != "" {
			return fmt.Sprintf(text, w.If, why), nil
		}
	default:
		inside, err := Counts(pid)
		if err != nil || slices.ContainsFunc(inside, func(c Count) bool { return c.Name == w.If }) {
			return "", nil //nolint:nilerr // it has ended
		}
		t, err := s.read(&s.host, "")
		if err != nil {
			return "", err
		}
		why := "it is gone from the node"
		if _, there := t.byName[w.Parent]; !there && w.Mode == vnode.Macvlan {
			why = "its parent " + w.Parent + " is gone"
		}
		return fmt.Sprintf(text, w.If, why), nil
	}
	return "", nil
}

// port says what is wrong with a port of a user's bridge.
func (t *table) port(w Wire) string {
	bridge, there := t.byName[w.Parent]
	end, ok := t.byName[w.HostIf]
	switch {
	case !there:
		return "bridge " + w.Parent + " is gone"
	case !ok:
		return "its link on the host is gone"
	case end.master == 0:
		return "it was taken out of bridge " + w.Parent
	case end.master != bridge.index:
		return "it is a port of " + t.names[end.master] + ", not of bridge " + w.Parent
	case !end.up:
		return "link " + w.HostIf + " of the host is down"
	case !bridge.up:
		return "bridge " + w.Parent + " is down"
	}
	return ""
}

// own says what is wrong with a port of the host-only bridge.
func (t *table) own(w Wire) string {
	end, ok := t.byName[w.HostIf]
	switch {
	case !ok:
		return "its link to the bridge between nodes is gone"
	case end.master == 0:
		return "the bridge between nodes is gone, or it was taken out"
	case !end.up:
		return "link " + w.HostIf + " at the bridge between nodes is down"
	}
	return ""
}

func (s *Sight) read(t **table, hub Hub) (*table, error) {
	if *t != nil {
		return *t, nil
	}
	*t = &table{byName: map[string]seen{}, names: map[int]string{}}
	err := hub.each(func(l seen) bool {
		(*t).byName[l.name], (*t).names[l.index] = l, l.name
		return true
	})
	if gone(err) {
		err = nil
	}
	return *t, err
}

// each calls f with the links of a namespace, until f returns false. It reads only what seen holds, and stops reading
// when f does. After an interrupted dump it starts again, so f may see a link twice.
func (u Hub) each(f func(seen) bool) error {
	where := netns.None()
	if u != "" {
		ns, err := u.file()
		if err != nil {
			return err
		}
		defer ns.Close()
		where = netns.NsHandle(ns.Fd())
	}
	for range 50 {
		again, err := dump(where, f)
		if err != nil {
			return fmt.Errorf("list links: %w", err)
		}
		if !again {
			break
		}
	}
	return nil
}

// dump reads the links once. again is true if a change of the table interrupted it, so that links may be missing.
func dump(where netns.NsHandle, f func(seen) bool) (again bool, err error) {
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
			again = again || m.Header.Flags&unix.NLM_F_DUMP_INTR != 0
			switch m.Header.Type {
			case unix.NLMSG_DONE:
				return again, nil
			case unix.NLMSG_ERROR:
				return false, errors.New("the kernel refused")
			}
			l, err := parseSeen(m.Data)
			if err != nil {
				return false, err
			}
			if !f(l) {
				return false, nil
			}
		}
	}
}

func parseSeen(data []byte) (seen, error) {
	msg := nl.DeserializeIfInfomsg(data)
	attrs, err := nl.ParseRouteAttr(data[msg.Len():])
	l := seen{index: int(msg.Index), up: msg.Flags&unix.IFF_UP != 0}
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.IFLA_IFNAME:
			l.name = string(a.Value[:max(len(a.Value)-1, 0)])
		case unix.IFLA_MASTER:
			l.master = int(nl.NativeEndian().Uint32(a.Value))
		}
	}
	return l, err
}

// Rooms returns the namespaces whose link events concern these wires; the zero Hub is the host's.
func Rooms(wires []Wire, hub Hub) []Hub {
	var rooms []Hub
	for _, w := range wires {
		room := Hub("")
		if w.Mode == vnode.Bridge && w.Parent == "" {
			room = hub
		}
		if !slices.Contains(rooms, room) {
			rooms = append(rooms, room)
		}
	}
	return rooms
}

// Follow calls told with the name of each link of the namespace that is added, removed or changed, until done is closed
// or the kernel drops events. It calls told with "" at the start: earlier changes are not reported. It keeps the
// namespace alive until it returns. The error wraps fs.ErrNotExist if the namespace does not exist.
func (u Hub) Follow(done <-chan struct{}, told func(name string)) error {
	options := netlink.LinkSubscribeOptions{}
	if u != "" {
		ns, err := u.file()
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
