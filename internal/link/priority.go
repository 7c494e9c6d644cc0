package link

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/bpf"
	"berth/internal/refuse"
	"berth/internal/step"
	"berth/internal/thread"
	"berth/internal/vnode"
)

// Priority is a step that gives packets of a node's interface a priority, which the queue of the host's adapter
// honours. The node has no right to change it. It overrides the priority that the node's sockets ask for. A veth
// forgets a packet's priority (skb_scrub_packet), so the step sets it on the host's end; a macvlan keeps it, so the
// step sets it on egress of the node's interface.
type Priority struct {
	Inside
	Asked vnode.Priority `json:"asked"`
	Way   Way            `json:"way"` // Peer: on what the host's end receives; Egress: on what the node's interface sends
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

// priority returns the step for one network. It returns nil for a normal priority, and for a priority of the class that
// no queue here honours. If the spec itself asks for such a priority, priority refuses it.
func (in *Input) priority(n vnode.Network) (*Priority, error) {
	p := in.wanted(n)
	if p == nil {
		return nil, nil
	}
	why, remedy := in.unheard(n)
	if why == "" {
		return p, nil
	}
	if n.Priority != "" {
		return nil, refuse.Cannotf(remedy, "network %s: priority %s would do nothing: %s", n.Name, n.Priority, why)
	}
	return nil, nil
}

// wanted returns the step that a network asks for, by its own priority or its class's; nil for none.
func (in *Input) wanted(n vnode.Network) *Priority {
	p := &Priority{Inside: Inside{NS: in.NS, If: n.Name}, Asked: n.Priority, Way: Egress}
	if p.Asked == "" {
		p.Asked = in.Priority
	}
	if n.Mode == vnode.None || p.Asked == "" || p.Asked == vnode.Normal {
		return nil
	}
	if n.Mode == vnode.Bridge {
		p.Way = Peer
	}
	return p
}

// unheard returns why nothing would honour a priority, and a remedy; "" if something would.
func (in *Input) unheard(n vnode.Network) (why, remedy string) {
	const leave = "leave priority out, or give it a rate"
	switch {
	case n.Mode == vnode.SRIOV:
		return "the adapter itself shares its wire out between functions", leave
	case n.Mode == vnode.Phys:
		return "the node has the adapter alone", "leave priority out"
	case n.Parent == "":
		return "the host-only bridge leads to no adapter", "name a bridge with an adapter as parent, or leave priority out"
	case in.Facts.Links[n.Parent].Queue == "":
		return "no queue behind " + n.Parent + " looks at priorities",
			"tc qdisc replace dev ADAPTER root pfifo_fast (or prio), where the host's administrator wants that; or " + leave
	case in.Facts.LacksPriority != "":
		return "this kernel cannot set it: " + in.Facts.LacksPriority, "use a kernel with CONFIG_NET_CLS_BPF and CONFIG_NET_SCH_INGRESS, or " + leave
	}
	return "", ""
}

// readQueues finds the queues that honour priorities behind the parents of networks with a priority.
func (f *Facts) readQueues(nets []vnode.Network, class vnode.Priority) error {
	in := Input{Priority: class}
	nets = slices.DeleteFunc(slices.Clone(nets), func(n vnode.Network) bool {
		return n.Parent == "" || n.Mode == vnode.SRIOV || n.Mode == vnode.Phys || in.wanted(n) == nil
	})
	if len(nets) == 0 {
		return nil
	}
	h, err := host()
	if err != nil {
		return err
	}
	defer h.Close()
	all, err := whole(func() ([]netlink.Qdisc, error) { return h.QdiscList(nil) })
	if err != nil {
		return fmt.Errorf("list qdiscs: %w", err)
	}
	kinds := map[int][]string{} // by index of link
	for _, q := range all {
		i := q.Attrs().LinkIndex
		kinds[i] = append(kinds[i], q.Type())
	}
	links, err := whole(h.LinkList)
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	for _, n := range nets {
		l := f.Links[n.Parent]
		if l.Queue = strings.Join(queues(links, kinds, n.Parent, 4), ", "); l.Queue != "" && f.LacksPriority == "" {
			f.LacksPriority = probePriority()
		}
		f.Links[n.Parent] = l
	}
	return nil
}

// queues returns the priority queues that serve what leaves by a link: its own; else those of its ports, if it is a
// bridge or a bond, or of the link below it, if it is a VLAN.
func queues(links []netlink.Link, kinds map[int][]string, name string, deep int) (found []string) {
	i := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().Name == name })
	if i < 0 || deep == 0 {
		return nil
	}
	self := links[i].Attrs()
	for _, kind := range kinds[self.Index] {
		if kind == "pfifo_fast" || kind == "prio" {
			return []string{kind + " on " + name}
		}
	}
	for _, l := range links {
		a := l.Attrs()
		if a.MasterIndex == self.Index || a.Index == self.ParentIndex && links[i].Type() == "vlan" {
			found = append(found, queues(links, kinds, a.Name, deep-1)...)
		}
	}
	return found
}

// Kind implements step.Step.
func (p *Priority) Kind() string { return "link.priority" }

// String is "net.eth0.priority low by cls_bpf on the host's end".
func (p *Priority) String() string {
	return fmt.Sprintf("net.%s.priority %s by %s%s", p.If, p.Asked, priorityMechanism, p.Way.where())
}

// Do sets the priority.
func (p *Priority) Do(context.Context) error {
	return p.at(func(h *netlink.Handle, l netlink.Link) error { return p.set(h, l) })
}

func (p *Priority) set(h *netlink.Handle, l netlink.Link) error {
	prog, err := bpf.Load(unix.BPF_PROG_TYPE_SCHED_CLS, "berth_priority", priorityProgram(number(p.Asked)))
	if err != nil {
		return err
	}
	defer prog.Close()
	q := netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0)}
	if err := hook(h, l, &netlink.Clsact{QdiscAttrs: q}); err != nil {
		return err
	}
	step.Fault("clsact added")
	f := &netlink.BpfFilter{FilterAttrs: allOf(l, p.side()), Fd: int(prog.Fd()), Name: "berth_priority", DirectAction: true}
	if err := h.FilterReplace(f); err != nil {
		return fmt.Errorf("set the priority of what %s sends: %w", p.If, err)
	}
	return nil
}

func (p *Priority) side() uint32 {
	if p.Way == Peer {
		return netlink.HANDLE_MIN_INGRESS
	}
	return netlink.HANDLE_MIN_EGRESS
}

// Verify reads the priority back.
func (p *Priority) Verify(context.Context) error {
	now, err := p.read()
	if err == nil && now != p.Asked {
		err = fmt.Errorf("net.%s.priority: the kernel has %s, not %s", p.If, now, p.Asked)
	}
	return err
}

// Undo does nothing: the filter goes with the interface.
func (p *Priority) Undo(context.Context) error { return nil }

// read returns the priority that is set. It compares tags, the kernel's hashes of a program's instructions.
func (p *Priority) read() (now vnode.Priority, err error) {
	now = vnode.Normal
	err = p.at(func(h *netlink.Handle, l netlink.Link) error {
		all, err := whole(func() ([]netlink.Filter, error) { return h.FilterList(l, p.side()) })
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
	prog, err := bpf.Load(unix.BPF_PROG_TYPE_SCHED_CLS, "berth_priority", priorityProgram(number(p)))
	if err != nil {
		return "", err
	}
	defer prog.Close()
	info, err := bpf.InfoOf(prog)
	return hex.EncodeToString(info.Tag[:]), err
}

// at calls f with the link that carries the filter.
func (p *Priority) at(f func(h *netlink.Handle, l netlink.Link) error) error {
	in, err := p.enter()
	if err != nil {
		return err
	}
	defer in.Close()
	l, err := p.link(in)
	if err != nil {
		return err
	}
	if p.Way != Peer {
		return f(in.Handle, l)
	}
	s, err := peerShaper("", l)
	if err != nil {
		return err
	}
	defer s.close()
	return f(s.h, s.l)
}

// priorityProgram sets priority in struct __sk_buff to number and passes the packet on.
func priorityProgram(number int32) []bpf.Instruction {
	const result, skb, value, priority, unspec = 0, 1, 2, 32, -1
	return []bpf.Instruction{
		bpf.Op(bpf.MoveValue, value, 0, 0, number),
		bpf.Op(bpf.StoreWord, skb, value, priority, 0),
		bpf.Op(bpf.MoveValue, result, 0, 0, unspec),
		bpf.Op(bpf.Exit, 0, 0, 0, 0),
	}
}

// probePriority sets a priority in a new network namespace, and returns the kernel's error; "" if it works.
func probePriority() (lacks string) {
	err := thread.Own(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		h, err := host()
		if err != nil {
			return err
		}
		defer h.Close()
		lo, err := h.LinkByName("lo")
		if err != nil {
			return err
		}
		return (&Priority{Asked: vnode.Low, Way: Egress}).set(h, lo)
	})
	if err != nil {
		lacks = err.Error()
	}
	return lacks
}

// ShowPriorities returns the networks' priorities as requested and, if the node runs, as read back from the kernel.
func ShowPriorities(in Input, running bool) []Shown {
	var all []Shown
	for _, n := range in.Networks {
		p := in.wanted(n)
		if p == nil {
			continue
		}
		s := Shown{Key: "net." + n.Name + ".priority", Asked: string(p.Asked), HonouredBy: in.Facts.Links[n.Parent].Queue}
		var notes []string
		if n.Priority == "" {
			notes = append(notes, "from the node's class")
		}
		why, _ := in.unheard(n)
		if why != "" {
			s.HonouredBy = "nothing here"
			notes = append(notes, why)
		}
		if running {
			now, err := p.read()
			switch {
			case err != nil:
				notes = append(notes, err.Error())
			case now == p.Asked:
				s.ReadBack, s.Holds = string(now), true
			case now != vnode.Normal:
				s.ReadBack = string(now)
			case why == "": // the queue was set up after the node's start
				notes = append(notes, "from the next start")
			}
		}
		s.Note = strings.Join(notes, "; ")
		all = append(all, s)
	}
	return all
}
