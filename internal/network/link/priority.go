package link

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"berth/internal/host/netif"
	"berth/internal/network/shape"
	"berth/internal/spec/vnode"
	"berth/internal/sys/proof"
	"berth/internal/sys/refuse"
)

// priority returns the step for one network. It returns nil for a normal priority, and for a priority of the class that
// no queue here honours. If the spec itself asks for such a priority, priority refuses it.
func (in *Input) priority(n vnode.Network) (*shape.Priority, error) {
	p := in.wantedPriority(n)
	if p == nil {
		return nil, nil
	}
	why, remedy := in.unhonoured(n)
	if why == "" {
		return p, nil
	}
	if n.Priority != "" {
		return nil, refuse.Cannotf(remedy, "network %s: priority %s would do nothing: %s", n.Name, n.Priority, why)
	}
	return nil, nil
}

// wantedPriority returns the step that a network asks for, by its own priority or its class's; nil for none.
func (in *Input) wantedPriority(n vnode.Network) *shape.Priority {
	p := &shape.Priority{Inside: netif.Inside{NS: in.NS, If: n.Name}, Asked: cmp.Or(n.Priority, in.Priority), Way: netif.Egress}
	if n.Mode == vnode.None || p.Asked == "" || p.Asked == vnode.Normal {
		return nil
	}
	if n.Mode == vnode.Bridge || n.Mode == vnode.NAT {
		p.Way = netif.Peer
	}
	return p
}

// unhonoured returns why nothing would honour a priority, and a remedy; "" if something would.
func (in *Input) unhonoured(n vnode.Network) (why, remedy string) {
	const leave = "leave priority out, or give it a rate"
	switch {
	case n.Mode == vnode.SRIOV:
		return "the adapter itself shares its wire out between functions", leave
	case n.Mode == vnode.Phys:
		return "the node has the adapter alone", "leave priority out"
	case n.Mode == vnode.NAT:
		return "what leaves the bridge of mode nat gets its priority from the host", "name a bridge with an adapter as parent, or leave priority out"
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
		return n.Parent == "" || n.Mode == vnode.SRIOV || n.Mode == vnode.Phys || in.wantedPriority(n) == nil
	})
	if len(nets) == 0 {
		return nil
	}
	h, err := netif.Host()
	if err != nil {
		return err
	}
	defer h.Close()
	all, err := netif.Dump(func() ([]netlink.Qdisc, error) { return h.QdiscList(nil) })
	if err != nil {
		return fmt.Errorf("list qdiscs: %w", err)
	}
	kinds := map[int][]string{} // by index of link
	for _, q := range all {
		i := q.Attrs().LinkIndex
		kinds[i] = append(kinds[i], q.Type())
	}
	links, err := netif.List(h)
	if err != nil {
		return err
	}
	for _, n := range nets {
		l := f.Links[n.Parent]
		if l.Queue = strings.Join(queues(links, kinds, n.Parent, 4), ", "); l.Queue != "" && f.LacksPriority == "" {
			f.LacksPriority = shape.ProbePriority()
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

// ShowPriorities returns the networks' priorities as requested and, if the node runs, reads them back from the kernel.
func ShowPriorities(in Input, running bool) []proof.Limit {
	var all []proof.Limit
	for _, n := range in.Networks {
		p := in.wantedPriority(n)
		if p == nil {
			continue
		}
		s := proof.Limit{Key: proof.NetPriority.Key(n.Name), Asked: string(p.Asked), By: in.Facts.Links[n.Parent].Queue}
		var notes []string
		if n.Priority == "" {
			notes = append(notes, "from the node's class")
		}
		why, _ := in.unhonoured(n)
		if why != "" {
			s.By = proof.NothingHere
			notes = append(notes, why)
		}
		if running {
			now, err := p.Read()
			switch {
			case err != nil && why != "": // there is nothing to read
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
