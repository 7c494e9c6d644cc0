package host

import (
	"context"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/sys/thread"
)

// tryLinks makes a link of each kind, and shapes one of them, in a new network namespace.
func tryLinks(ctx context.Context) (links, shaping map[string]error) {
	all := func(err error) {
		links = map[string]error{"bridge": err, "veth": err, "macvlan": err}
		shaping = map[string]error{"tbf": err, "htb": err, "ifb": err, "mirred": err}
	}
	all(ErrNotTried)
	if ctx.Err() != nil {
		return links, shaping
	}
	err := thread.Own(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		makeLinks(links, shaping)
		return nil
	})
	if err != nil {
		all(err)
	}
	return links, shaping
}

// makeLinks makes a link of each kind in the current network namespace, and shapes one of them.
func makeLinks(links, shaping map[string]error) {
	links["bridge"] = netlink.LinkAdd(&netlink.Bridge{LinkAttrs: named("b0")})
	links["veth"] = netlink.LinkAdd(&netlink.Veth{LinkAttrs: named("v0"), PeerName: "v1"})
	for _, parent := range []string{"v0", "b0"} {
		link, err := netlink.LinkByName(parent)
		if err != nil {
			continue
		}
		at := named("m0")
		at.ParentIndex = link.Attrs().Index
		links["macvlan"] = netlink.LinkAdd(&netlink.Macvlan{LinkAttrs: at, Mode: netlink.MACVLAN_MODE_BRIDGE})
		shape(shaping, at.ParentIndex)
		return
	}
}

// shape tries everything that network rates need on a link: disciplines for outgoing traffic, and for incoming traffic a
// filter that redirects it to an ifb.
func shape(shaping map[string]error, link int) {
	root := netlink.QdiscAttrs{LinkIndex: link, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
	shaping["htb"] = netlink.QdiscAdd(netlink.NewHtb(root))
	if shaping["htb"] == nil {
		_ = netlink.QdiscDel(netlink.NewHtb(root)) // if this fails, adding tbf fails and reports it
	}
	shaping["tbf"] = netlink.QdiscAdd(&netlink.Tbf{QdiscAttrs: root, Rate: 1 << 20, Limit: 1 << 20, Buffer: 1 << 16})
	ifb := &netlink.Ifb{LinkAttrs: named("i0")}
	shaping["ifb"] = netlink.LinkAdd(ifb)
	ingress := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: link, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS,
	}}
	if shaping["mirred"] = netlink.QdiscAdd(ingress); shaping["mirred"] != nil {
		return
	}
	to := link // without an ifb: any link will do for mirred
	if shaping["ifb"] == nil {
		to = ifb.Attrs().Index
	}
	shaping["mirred"] = netlink.FilterAdd(&netlink.U32{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: link, Parent: ingress.Handle, Priority: 1, Protocol: unix.ETH_P_ALL},
		Actions:     []netlink.Action{netlink.NewMirredAction(to)},
	})
}

// named returns the default attributes of a link with this name.
func named(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	return a
}
