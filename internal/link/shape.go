package link

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/step"
	"berth/internal/thread"
	"berth/internal/vnode"
)

// Sizes of a rate's bucket and queue, as time at that rate. If the kernel's timer or a busy CPU is late for longer than
// burstTime, the rate is not reached. burstTime is also how much may pass at once after a silence.
const (
	burstTime = 25 * time.Millisecond
	queueTime = 100 * time.Millisecond
)

// leastQueue is how many packets of the maximum size the queue holds at least.
const leastQueue = 32

// The range of rates. At a lower rate a packet would take longer than a second; at a higher one the sizes above do not
// fit the kernel's 32-bit fields for bucket and queue.
const (
	lowestRate  vnode.BitRate = 10_000
	highestRate vnode.BitRate = 200_000_000_000
)

// The handles of Berth's qdiscs. There are two, so that one qdisc can replace the other in one step.
const (
	shaperHandle = 0xbe47 << 16
	otherHandle  = 0xbe48 << 16
)

// shaper is a link whose egress enforces a rate.
type shaper struct {
	h     *netlink.Handle
	own   bool // close closes h
	l     netlink.Link
	feeds netlink.Link // not nil: l is an ifb, to which everything that feeds receives is redirected
	mtu   int          // bytes of the biggest packet, without its Ethernet header
}

func (s *shaper) close() {
	if s.own {
		s.h.Close()
	}
}

// tbf returns the qdisc for a rate.
func (s *shaper) tbf(bits vnode.BitRate) *netlink.Tbf {
	rate := uint64(bits) / 8
	frame := uint64(s.mtu + 14 + 2*4) // Ethernet header, two VLAN tags
	burst := max(over(rate, burstTime), frame+frame/8)
	queue := max(over(rate, queueTime), leastQueue*frame)
	const tick = 64 // nanoseconds: PSCHED_SHIFT
	return &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: s.l.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: shaperHandle},
		Rate:       rate,
		Limit:      uint32(queue),
		Buffer:     uint32(burst*uint64(time.Second)/rate/tick) + 1,
	}
}

// over returns how many bytes pass in d at rate bytes a second.
func over(rate uint64, d time.Duration) uint64 { return rate * uint64(d/time.Millisecond) / 1000 }

// set sets the rate. For a higher rate it changes the qdisc, which keeps its queue. For a lower rate it makes a new
// qdisc and drops the queue: a queued packet may be bigger than the new bucket, and would block all others for ever.
func (s *shaper) set(bits vnode.BitRate) error {
	now, err := s.find()
	if err != nil {
		return err
	}
	q := s.tbf(bits)
	if now != nil && (q.Rate >= now.Rate) == (now.Handle == otherHandle) {
		q.Handle = otherHandle
	}
	if err := s.h.QdiscReplace(q); err != nil {
		return fmt.Errorf("add qdisc tbf to %s: %w", s.l.Attrs().Name, err)
	}
	if s.feeds == nil {
		return nil
	}
	step.Fault("ifb shaped")
	return redirect(s.h, s.feeds, s.l)
}

// clear removes the rate. Without a root qdisc the kernel attaches the link's default one (dev_activate).
func (s *shaper) clear() error {
	if s.feeds != nil {
		if err := unhook(s.h, s.feeds); err != nil {
			return err
		}
		step.Fault("ingress removed")
		return remove(s.h, s.l)
	}
	q, err := s.find()
	if err != nil || q == nil {
		return err
	}
	return delQdisc(s.h, q)
}

// read returns the rate that is set; 0 if none.
func (s *shaper) read() (vnode.BitRate, error) {
	q, err := s.find()
	if err != nil || q == nil {
		return 0, err
	}
	if s.feeds != nil {
		if ok, err := redirected(s.h, s.feeds, s.l); err != nil || !ok {
			return 0, err
		}
	}
	return vnode.BitRate(q.Rate * 8), nil
}

// find returns Berth's qdisc on the link; nil if there is none.
func (s *shaper) find() (*netlink.Tbf, error) {
	all, err := whole(func() ([]netlink.Qdisc, error) { return s.h.QdiscList(s.l) })
	if err != nil {
		return nil, fmt.Errorf("list qdiscs of %s: %w", s.l.Attrs().Name, err)
	}
	for _, q := range all {
		if t, ok := q.(*netlink.Tbf); ok && (t.Handle == shaperHandle || t.Handle == otherHandle) && t.Parent == netlink.HANDLE_ROOT {
			return t, nil
		}
	}
	return nil, nil
}

func delQdisc(h *netlink.Handle, q netlink.Qdisc) error {
	err := h.QdiscDel(q)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) { // EINVAL: no such qdisc
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove qdisc %s: %w", q.Type(), err)
	}
	return nil
}

// ifbPrefix begins the name of an ifb that Berth makes in a node.
const ifbPrefix = "rx."

// ifbName returns the name of the ifb of an interface in the node. It depends on the interface's name only, so a
// virtual function that comes back after a reload of its driver finds its ifb again. No interface in a spec has a dot
// in its name.
func ifbName(l netlink.Link) string {
	name := l.Attrs().Name
	if len(name) > 12 {
		sum := sha256.Sum256([]byte(name))
		name = hex.EncodeToString(sum[:6])
	}
	return ifbPrefix + name
}

// findIFB returns the ifb that limits what l receives; nil if there is none.
func findIFB(h *netlink.Handle, l netlink.Link) (netlink.Link, error) {
	ifb, err := byName(h, ifbName(l))
	if err != nil {
		return nil, fmt.Errorf("find ifb of %s: %w", l.Attrs().Name, err)
	}
	if ifb == nil || ifb.Type() != "ifb" {
		return nil, nil
	}
	return ifb, nil
}

func makeIFB(h *netlink.Handle, l netlink.Link) (netlink.Link, error) {
	ifb := &netlink.Ifb{LinkAttrs: attrs(ifbName(l), 0, nil)}
	if err := h.LinkAdd(ifb); err != nil {
		return nil, fmt.Errorf("make ifb for %s: %w", l.Attrs().Name, err)
	}
	step.Fault("ifb made")
	if err := noLinkLocal(h, ifb); err != nil {
		return nil, err
	}
	if err := h.LinkSetUp(ifb); err != nil {
		return nil, fmt.Errorf("set ifb of %s up: %w", l.Attrs().Name, err)
	}
	return ifb, nil
}

func ingressOf(l netlink.Link) netlink.QdiscAttrs {
	return netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_INGRESS, Handle: netlink.MakeHandle(0xffff, 0)}
}

// hook adds a qdisc that carries filters to l, unless l has one. A link has either ingress or clsact; clsact also
// carries egress filters.
func hook(h *netlink.Handle, l netlink.Link, q netlink.Qdisc) error {
	if err := h.QdiscAdd(q); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add qdisc %s to %s: %w", q.Type(), l.Attrs().Name, err)
	}
	return nil
}

// unhook removes the redirection of what l receives, and its qdisc unless that is a clsact, which has other filters.
func unhook(h *netlink.Handle, l netlink.Link) error {
	all, err := whole(func() ([]netlink.Qdisc, error) { return h.QdiscList(l) })
	if err != nil {
		return fmt.Errorf("list qdiscs of %s: %w", l.Attrs().Name, err)
	}
	if !slices.ContainsFunc(all, func(q netlink.Qdisc) bool { return q.Type() == "clsact" }) {
		return delQdisc(h, &netlink.Ingress{QdiscAttrs: ingressOf(l)})
	}
	err = h.FilterDel(&netlink.U32{FilterAttrs: allOf(l, netlink.HANDLE_MIN_INGRESS)})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove the filter of what %s receives: %w", l.Attrs().Name, err)
	}
	return nil
}

// allOf returns the attributes of Berth's filter that matches all packets on one side of l.
func allOf(l netlink.Link, side uint32) netlink.FilterAttrs {
	return netlink.FilterAttrs{LinkIndex: l.Attrs().Index, Parent: side, Priority: 1, Protocol: unix.ETH_P_ALL}
}

// redirect sends everything that l receives through ifb, which returns it to l.
func redirect(h *netlink.Handle, l, ifb netlink.Link) error {
	if ok, err := redirected(h, l, ifb); err != nil || ok {
		return err
	}
	if err := unhook(h, l); err != nil {
		return err
	}
	if err := hook(h, l, &netlink.Ingress{QdiscAttrs: ingressOf(l)}); err != nil {
		return err
	}
	step.Fault("ingress added")
	to := netlink.NewMirredAction(ifb.Attrs().Index)
	f := &netlink.U32{FilterAttrs: allOf(l, netlink.HANDLE_MIN_INGRESS), Actions: []netlink.Action{to}} // no keys: matches all
	if err := h.FilterAdd(f); err != nil {
		return fmt.Errorf("redirect what %s receives to its ifb: %w", l.Attrs().Name, err)
	}
	return nil
}

// redirected reports whether what l receives goes through ifb.
func redirected(h *netlink.Handle, l, ifb netlink.Link) (bool, error) {
	all, err := whole(func() ([]netlink.Filter, error) { return h.FilterList(l, netlink.HANDLE_MIN_INGRESS) })
	if err != nil {
		return false, fmt.Errorf("list filters of %s: %w", l.Attrs().Name, err)
	}
	for _, f := range all {
		u, ok := f.(*netlink.U32)
		if !ok {
			continue
		}
		for _, a := range u.Actions {
			if m, ok := a.(*netlink.MirredAction); ok && m.Ifindex == ifb.Attrs().Index {
				return true, nil
			}
		}
	}
	return false, nil
}

// probeShaping tests each way in a network namespace of its own, which ends with the thread. lacks holds the kernel's
// error for each way that fails.
func probeShaping(ways map[Way]bool) (lacks map[Way]string, err error) {
	err = thread.Own(func() error {
		lacks, err = probeHere(ways)
		return err
	})
	return lacks, err
}

func probeHere(ways map[Way]bool) (map[Way]string, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("make a network namespace to look at traffic control: %w", err)
	}
	h, err := host()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err != nil {
		return nil, fmt.Errorf("find lo: %w", err)
	}
	lacks := map[Way]string{}
	for w := range ways {
		s := &shaper{h: h, l: lo, mtu: defaultMTU}
		if w == Ingress {
			ifb, err := makeIFB(h, lo)
			if err != nil {
				lacks[w] = err.Error()
				continue
			}
			s.l, s.feeds = ifb, lo
		}
		if err := s.set(lowestRate); err != nil {
			lacks[w] = err.Error()
		}
	}
	return lacks, nil
}
