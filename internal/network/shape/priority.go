package shape

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/host/netif"
	"berth/internal/spec/vnode"
	"berth/internal/sys/bpf"
	"berth/internal/sys/fault"
	"berth/internal/sys/thread"
)

// Priority is a step that gives packets of a node's interface a priority, which the queue of the host's adapter
// honours. The node has no right to change it. It overrides the priority that the node's sockets ask for. A veth
// forgets a packet's priority (skb_scrub_packet), so the step sets it on the host's end; a macvlan keeps it, so the
// step sets it on egress of the node's interface.
type Priority struct {
	netif.Inside
	Asked vnode.Priority `json:"asked"`
	Way   netif.Way      `json:"way"` // Peer: on what the host's end receives; Egress: on what the node's interface sends
}

const priorityMechanism = "cls_bpf"

// number returns a priority as a packet carries it (include/uapi/linux/pkt_sched.h: TC_PRIO_FILLER, _BESTEFFORT,
// _INTERACTIVE). By default pfifo_fast and prio serve these three in bands 2, 1 and 0.
func number(p vnode.Priority) int32 {
	switch p {
	case vnode.Low:
		return 1
	case vnode.High:
		return 6
	}
	return 0
}

// Kind implements step.Step.
func (p *Priority) Kind() string { return "link.priority" }

// String is "net.eth0.priority low by cls_bpf on the host's end".
func (p *Priority) String() string {
	return fmt.Sprintf("net.%s.priority %s by %s%s", p.If, p.Asked, priorityMechanism, p.Way.Where())
}

// Do sets the priority.
func (p *Priority) Do(context.Context) error {
	return p.at(p.set)
}

func (p *Priority) set(h *netlink.Handle, l netlink.Link) error {
	prog, err := load(p.Asked)
	if err != nil {
		return err
	}
	defer prog.Close()
	if err := netif.AddQdisc(h, l, netif.Clsact(l)); err != nil {
		return err
	}
	fault.Point("clsact added")
	f := &netlink.BpfFilter{FilterAttrs: allOf(l, p.side()), Fd: int(prog.Fd()), Name: "berth_priority", DirectAction: true}
	if err := h.FilterReplace(f); err != nil {
		return fmt.Errorf("set the priority of what %s sends: %w", p.If, err)
	}
	return nil
}

func (p *Priority) side() uint32 {
	if p.Way == netif.Peer {
		return netlink.HANDLE_MIN_INGRESS
	}
	return netlink.HANDLE_MIN_EGRESS
}

// Verify reads the priority back.
func (p *Priority) Verify(context.Context) error {
	now, err := p.Read()
	if err == nil && now != p.Asked {
		err = fmt.Errorf("net.%s.priority: the kernel has %s, not %s", p.If, now, p.Asked)
	}
	return err
}

// Undo does nothing: the filter goes with the interface.
func (p *Priority) Undo(context.Context) error { return nil }

// Read returns the priority that is set. It compares tags, the kernel's hashes of a program's instructions.
func (p *Priority) Read() (now vnode.Priority, err error) {
	now = vnode.Normal
	err = p.at(func(h *netlink.Handle, l netlink.Link) error {
		all, err := netif.Dump(func() ([]netlink.Filter, error) { return h.FilterList(l, p.side()) })
		if err != nil {
			return fmt.Errorf("list filters of %s: %w", l.Attrs().Name, err)
		}
		for _, f := range all {
			b, ok := f.(*netlink.BpfFilter)
			if !ok {
				continue
			}
			for _, one := range []vnode.Priority{vnode.Low, vnode.High} {
				tag, err := tagOf(one)
				if err != nil {
					return err
				}
				if b.Tag == tag {
					now = one
				}
			}
		}
		return nil
	})
	return now, err
}

func tagOf(p vnode.Priority) (string, error) {
	prog, err := load(p)
	if err != nil {
		return "", err
	}
	defer prog.Close()
	info, err := bpf.InfoOf(prog)
	return hex.EncodeToString(info.Tag[:]), err
}

// at calls f with the link that carries the filter.
func (p *Priority) at(f func(h *netlink.Handle, l netlink.Link) error) error {
	return p.Way.On(&p.Inside, "", func(h *netlink.Handle, on, _ netlink.Link) error { return f(h, on) })
}

// load loads a program that sets priority in struct __sk_buff and passes the packet on.
func load(p vnode.Priority) (*os.File, error) {
	const result, skb, value, priority, unspec = 0, 1, 2, 32, -1
	return bpf.Load(unix.BPF_PROG_TYPE_SCHED_CLS, "berth_priority", []bpf.Instruction{
		bpf.Op(bpf.MoveValue, value, 0, 0, number(p)),
		bpf.Op(bpf.StoreWord, skb, value, priority, 0),
		bpf.Op(bpf.MoveValue, result, 0, 0, unspec),
		bpf.Op(bpf.Exit, 0, 0, 0, 0),
	})
}

// ProbePriority sets a priority in a new network namespace, and returns the kernel's error; "" if it works.
func ProbePriority() (lacks string) {
	err := thread.Own(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		h, err := netif.Host()
		if err != nil {
			return err
		}
		defer h.Close()
		lo, err := h.LinkByName("lo")
		if err != nil {
			return err
		}
		return (&Priority{Asked: vnode.Low, Way: netif.Egress}).set(h, lo)
	})
	if err != nil {
		lacks = err.Error()
	}
	return lacks
}
