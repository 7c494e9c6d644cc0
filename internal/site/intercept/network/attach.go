package network

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"berth/internal/host/netif"
	"berth/internal/sys/fault"
)

// priority is that of Berth's filters: others may be before and behind them.
const priority = 0xbe

// attach puts the programs on the interface and its ifb, in place of those of an earlier agent.
func (n *Link) attach() error {
	reads, err := load("berth_reads", n.table, target4, target6, readClass, false)
	if err != nil {
		return err
	}
	defer closing(reads)
	writes, err := load("berth_writes", n.table, source4, source6, writeClass, false)
	if err != nil {
		return err
	}
	defer closing(writes)
	written, err := load("berth_written", n.table, source4, source6, writeClass, true)
	if err != nil {
		return err
	}
	defer closing(written)
	root := netlink.MakeHandle(major, 0)
	for _, f := range []struct {
		on     netlink.Link
		parent uint32
		fd     uintptr
		name   string
	}{{n.ifb, root, writes.Fd(), "berth_writes"}, {n.l, root, reads.Fd(), "berth_reads"}} {
		err := n.h.FilterReplace(&netlink.BpfFilter{FilterAttrs: of(f.on, f.parent), Fd: int(f.fd), Name: f.name})
		if err != nil {
			return fmt.Errorf("add the filter %s to %s: %w", f.name, f.on.Attrs().Name, err)
		}
	}
	fault.Point("filters of a file server added")
	if err := netif.AddQdisc(n.h, n.l, netif.Clsact(n.l)); err != nil {
		return err
	}
	return n.redirect(int(written.Fd()))
}

func of(l netlink.Link, parent uint32) netlink.FilterAttrs {
	return netlink.FilterAttrs{LinkIndex: l.Attrs().Index, Parent: parent, Handle: 1, Priority: priority, Protocol: unix.ETH_P_ALL}
}

// redirect sends the frames of nodes with a limit on writes through the ifb, which gives them back. The library knows no filter of BPF
// with an action, and the kernel lets a program alone redirect nothing to an ifb (drivers/net/ifb.c drops what act_mirred did not
// mark).
func (n *Link) redirect(program int) error {
	a := of(n.l, netlink.HANDLE_MIN_INGRESS)
	req := nl.NewNetlinkRequest(unix.RTM_NEWTFILTER, unix.NLM_F_CREATE|unix.NLM_F_ACK)
	req.AddData(&nl.TcMsg{
		Family: nl.FAMILY_ALL, Ifindex: int32(a.LinkIndex), Handle: a.Handle, Parent: a.Parent, Info: netlink.MakeHandle(a.Priority, nl.Swap16(a.Protocol)),
	})
	req.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("bpf")))
	options := nl.NewRtAttr(nl.TCA_OPTIONS, nil)
	options.AddRtAttr(nl.TCA_BPF_FD, nl.Uint32Attr(uint32(program)))
	options.AddRtAttr(nl.TCA_BPF_NAME, nl.ZeroTerminated("berth_written"))
	if err := netlink.EncodeActions(options.AddRtAttr(nl.TCA_BPF_ACT, nil), []netlink.Action{netlink.NewMirredAction(n.ifb.Attrs().Index)}); err != nil {
		return err
	}
	req.AddData(options)
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("redirect what nodes write on %s to its ifb: %w", n.l.Attrs().Name, err)
	}
	return nil
}

// unhook removes the filter of the nodes' writes, and the qdisc that carries it if no other program has a filter there.
func unhook(h *netlink.Handle, l netlink.Link) error {
	all, err := netif.Dump(func() ([]netlink.Qdisc, error) { return h.QdiscList(l) })
	if err != nil {
		return fmt.Errorf("list qdiscs of %s: %w", l.Attrs().Name, err)
	}
	has := func(kind string) bool {
		return slices.ContainsFunc(all, func(q netlink.Qdisc) bool { return q.Type() == kind })
	}
	if !has("clsact") && !has("ingress") { // ingress: it was there before, and carries the filter too
		return nil
	}
	err = h.FilterDel(&netlink.BpfFilter{FilterAttrs: of(l, netlink.HANDLE_MIN_INGRESS)})
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) { // EINVAL: no filter of this priority
		return fmt.Errorf("remove the filter of what nodes write on %s: %w", l.Attrs().Name, err)
	}
	if !has("clsact") {
		return nil
	}
	for _, side := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		left, err := netif.Dump(func() ([]netlink.Filter, error) { return h.FilterList(l, side) })
		if err != nil {
			return fmt.Errorf("list filters of %s: %w", l.Attrs().Name, err)
		}
		if len(left) > 0 {
			return nil
		}
	}
	return netif.DeleteQdisc(h, netif.Clsact(l))
}
