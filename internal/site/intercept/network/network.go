// Package network limits how fast nodes read from a file server and write to it, by shaping the frames between them. It is for
// servers whose disk I/O cannot be told apart by node.
//
// On the server's interface lies HTB with a class for what each node reads; what it writes goes through an ifb with such classes. A
// BPF program finds a frame's class by the node's address, whatever their number. Frames of others pass without a class.
package network

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/host/netif"
	"berth/internal/sys/bpf"
	"berth/internal/sys/fault"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
)

// major is the number of Berth's qdiscs: the kernel's own on a link that was not configured have 0.
const major = 0xbe51

// Rates are the rates at which a node may read and write, in bytes a second of file data, without the headers of frames; 0: no
// limit.
type Rates struct{ Read, Write uint64 }

// Link is an interface of a file server with limits.
type Link struct {
	h       *netlink.Handle
	l, ifb  netlink.Link
	table   *bpf.Map
	rates   map[uint16]Rates        // by class
	told    map[uint16][]netip.Addr // by class
	owner   map[netip.Addr]uint16   // the class of each address in the table
	follows bool                    // the programs look into this table
}

// Open takes an interface over, with the classes that a killed agent left. It refuses an interface that another program shapes.
func Open(name string) (*Link, error) {
	h, err := netif.Host()
	if err != nil {
		return nil, err
	}
	n := &Link{h: h, rates: map[uint16]Rates{}, told: map[uint16][]netip.Addr{}, owner: map[netip.Addr]uint16{}}
	if err := n.open(name); err != nil {
		h.Close()
		return nil, err
	}
	return n, nil
}

func (n *Link) open(name string) (err error) {
	if n.l, err = find(n.h, name); err != nil {
		return err
	}
	if n.l.Attrs().EncapType != "ether" {
		return refuse.Cannotf("name an interface of Ethernet", "interface %s carries %s: its frames cannot be told apart by node", name, n.l.Attrs().EncapType)
	}
	root, err := rootOf(n.h, n.l)
	if err != nil {
		return err
	}
	if root != nil && !own(root) && root.Attrs().Handle>>16 != 0 {
		return refuse.Busyf("interface %s has a qdisc of somebody's at its root: %s (tc qdisc del dev %s root removes it)", name, root.Type(), name)
	}
	if n.ifb, err = n.makeIFB(); err != nil {
		return err
	}
	for _, l := range []netlink.Link{n.ifb, n.l} {
		if err := n.shape(l); err != nil {
			return err
		}
	}
	fault.Point("interface of a file server shaped")
	n.table, err = bpf.NewMap("berth_nodes", 16, 8, mostAddresses)
	return err
}

// find finds an interface by its name.
func find(h *netlink.Handle, name string) (netlink.Link, error) {
	l, err := netif.ByName(h, name)
	if err == nil && l == nil {
		err = refuse.NotFoundf("this host has no interface %s", name)
	}
	return l, err
}

// rootOf returns the qdisc at the root of a link.
func rootOf(h *netlink.Handle, l netlink.Link) (netlink.Qdisc, error) {
	all, err := netif.Dump(func() ([]netlink.Qdisc, error) { return h.QdiscList(l) })
	if err != nil {
		return nil, fmt.Errorf("list qdiscs of %s: %w", l.Attrs().Name, err)
	}
	for _, q := range all {
		if q.Attrs().Parent == netlink.HANDLE_ROOT {
			return q, nil
		}
	}
	return nil, nil
}

func own(q netlink.Qdisc) bool { return q.Attrs().Handle == netlink.MakeHandle(major, 0) }

// shape puts HTB at the root of a link. What has no class passes.
func (n *Link) shape(l netlink.Link) error {
	if root, err := rootOf(n.h, l); err != nil || root != nil && own(root) {
		return err
	}
	q := netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(major, 0)})
	if err := n.h.QdiscReplace(q); err != nil {
		return fmt.Errorf("put htb at the root of %s: %w", l.Attrs().Name, err)
	}
	return nil
}

func ifbName(index int) string { return fmt.Sprintf("berth.%d", index) }

// findIFB finds the ifb of the interface with an index; nil if there is none.
func findIFB(h *netlink.Handle, index int) (netlink.Link, error) {
	l, err := netif.ByName(h, ifbName(index))
	if err != nil || l == nil || l.Type() != "ifb" {
		return nil, err
	}
	return l, nil
}

// makeIFB makes the link through which the nodes' writes go, if it is not there, and sets it up: one that is down drops all.
func (n *Link) makeIFB() (netlink.Link, error) {
	l, err := findIFB(n.h, n.l.Attrs().Index)
	if err != nil {
		return nil, err
	}
	if l != nil {
		if err := n.h.LinkSetUp(l); err != nil {
			return nil, fmt.Errorf("set the ifb of %s up: %w", n.l.Attrs().Name, err)
		}
		return l, nil
	}
	ifb := &netlink.Ifb{LinkAttrs: netif.Attrs(ifbName(n.l.Attrs().Index), 0, mac.Address{})}
	ifb.MTU, ifb.TxQLen = n.l.Attrs().MTU, 1000
	if err := n.h.LinkAdd(ifb); err != nil {
		return nil, fmt.Errorf("make an ifb for %s: %w", n.l.Attrs().Name, err)
	}
	fault.Point("ifb of a file server made")
	if err := n.h.LinkSetUp(ifb); err != nil {
		return nil, fmt.Errorf("set the ifb of %s up: %w", n.l.Attrs().Name, err)
	}
	return ifb, nil
}

// Hold gives a node, whose class has a number from 1 on, its rates and its addresses.
func (n *Link) Hold(class uint16, addresses []netip.Addr, r Rates) error {
	was := n.sides(class, n.rates[class])
	for i, c := range n.sides(class, r) {
		if c.rate == 0 {
			continue
		}
		// HTB keeps what a class has sent in advance as time: a packet of 64 KiB at a small rate stops it for long, also when the rate is
		// raised (net/sched/sch_htb.c, htb_change_class). A new class owes nothing.
		if old := was[i].rate; old > 0 && old < c.rate && old < slowRate {
			if err := n.remove(c); err != nil {
				return err
			}
		}
		if err := n.h.ClassReplace(c.htb); err != nil {
			return fmt.Errorf("limit class %d on %s: %w", class, c.on.Attrs().Name, err)
		}
	}
	numbers := [2]uint32{}
	for i, c := range n.sides(class, r) {
		if c.rate != 0 {
			numbers[i] = c.htb.Handle
		}
	}
	for _, a := range n.told[class] {
		if n.owner[a] == class && !slices.Contains(addresses, a) { // else another node has the address by now
			if err := n.table.Delete(key(a)); err != nil {
				return fmt.Errorf("forget the address %s: %w", a, err)
			}
			delete(n.owner, a)
		}
	}
	n.rates[class], n.told[class] = r, addresses
	for _, a := range addresses {
		if err := n.table.Put(key(a), value(numbers[0], numbers[1])); err != nil {
			return fmt.Errorf("tell the programs on %s of the address %s: %w", n.l.Attrs().Name, a, err)
		}
		n.owner[a] = class
	}
	if !n.follows {
		return nil // the programs of an earlier agent use the classes: Follow removes those that are not needed
	}
	for _, c := range n.sides(class, r) {
		if c.rate == 0 {
			if err := n.remove(c); err != nil {
				return err
			}
		}
	}
	return nil
}

// Drop removes a node's limits.
func (n *Link) Drop(class uint16) error {
	err := n.Hold(class, nil, Rates{})
	if err == nil {
		delete(n.rates, class)
		delete(n.told, class)
	}
	return err
}

// slowRate is from which rate on a packet of 64 KiB takes less than 0.3 s.
const slowRate = 220_000

// side is one direction of a node.
type side struct {
	on   netlink.Link
	rate uint64
	htb  *netlink.HtbClass
}

// sides are the two directions: what a node reads, and what it writes.
func (n *Link) sides(class uint16, r Rates) [2]side {
	var both [2]side
	for i, c := range []side{{on: n.l, rate: r.Read}, {on: n.ifb, rate: r.Write}} {
		bits := framed(c.rate, n.l.Attrs().MTU) * 8
		attrs := netlink.ClassAttrs{LinkIndex: c.on.Attrs().Index, Parent: netlink.MakeHandle(major, 0), Handle: netlink.MakeHandle(major, class)}
		// A packet that the card will cut has up to 64 KiB; 10 ms of the rate keep a fast one going between two timers.
		// It is kept as time, of a minute at most.
		burst := uint32(min(max(128<<10, c.rate/100), 20*max(c.rate, 1)))
		c.htb = netlink.NewHtbClass(attrs, netlink.HtbClassAttrs{Rate: bits, Ceil: bits, Buffer: burst, Cbuffer: burst, Quantum: 64 << 10})
		both[i] = c
	}
	return both
}

// framed is how many bytes of frames carry a rate of data by TCP: a frame has the heads of Ethernet (14 bytes), IP (20) and TCP (32
// with its time stamp).
func framed(rate uint64, mtu int) uint64 {
	return uint64(float64(rate) * float64(mtu+14) / float64(mtu-52))
}

// data is the inverse of framed.
func data(rate uint64, mtu int) uint64 {
	return uint64(float64(rate)*float64(mtu-52)/float64(mtu+14) + 0.5)
}

// remove removes a class. That it is not there is no error.
func (n *Link) remove(c side) error {
	if err := n.h.ClassDel(c.htb); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove class %d on %s: %w", c.htb.Handle&0xffff, c.on.Attrs().Name, err)
	}
	return nil
}

// Follow makes the programs look at the addresses that Hold told, in place of those of an earlier agent, and removes classes of
// nodes that are not held. It is called when all nodes are held; again it does nothing.
func (n *Link) Follow() error {
	if n.follows {
		return nil
	}
	if err := n.attach(); err != nil {
		return err
	}
	n.follows = true
	for i, on := range []netlink.Link{n.l, n.ifb} {
		all, err := classes(n.h, on)
		if err != nil {
			return err
		}
		for number, c := range all {
			if r := n.rates[number]; i == 0 && r.Read == 0 || i == 1 && r.Write == 0 {
				if err := n.remove(side{on: on, htb: c}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Close lets go of the interface. Limits stay.
func (n *Link) Close() error {
	n.h.Close()
	return n.table.Close()
}

// Index is the number of an interface.
func Index(name string) (int, error) {
	h, err := netif.Host()
	if err != nil {
		return 0, err
	}
	defer h.Close()
	l, err := find(h, name)
	if err != nil {
		return 0, err
	}
	return l.Attrs().Index, nil
}

// Remove removes everything of Berth's from the interface with an index, whatever its name is now. It is no error if there is nothing,
// or no such interface.
func Remove(index int) error {
	h, err := netif.Host()
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := netif.ByIndex(h, index)
	if err == nil && l != nil {
		err = clean(h, l)
	}
	if err != nil {
		return err
	}
	ifb, err := findIFB(h, index)
	if err != nil || ifb == nil {
		return err
	}
	return netif.Delete(h, ifb)
}

// clean removes filters and qdiscs.
func clean(h *netlink.Handle, l netlink.Link) error {
	root, err := rootOf(h, l)
	if err != nil {
		return err
	}
	if err := unhook(h, l); err != nil {
		return err
	}
	if root != nil && own(root) {
		return netif.DeleteQdisc(h, root)
	}
	return nil
}

// closing closes files.
func closing(all ...*os.File) {
	for _, f := range all {
		if f != nil {
			_ = f.Close() // of programs that are attached, or not needed
		}
	}
}
