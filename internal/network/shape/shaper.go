package shape

import (
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/host/netif"
	"berth/internal/spec/vnode"
	"berth/internal/sys/fault"
	"berth/internal/sys/thread"
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
	Lowest  vnode.BitRate = 10_000
	Highest vnode.BitRate = 200_000_000_000
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
	fault.Point("ifb shaped")
	return Redirect(s.h, s.feeds, s.l)
}

// clear removes the rate. Without a root qdisc the kernel attaches the link's default one (dev_activate).
func (s *shaper) clear() error {
	if s.feeds != nil {
		if err := unhook(s.h, s.feeds); err != nil {
			return err
		}
		fault.Point("ingress removed")
		return netif.Delete(s.h, s.l)
	}
	q, err := s.find()
	if err != nil || q == nil {
		return err
	}
	return netif.DeleteQdisc(s.h, q)
}

// read returns the rate that is set; 0 if none.
func (s *shaper) read() (vnode.BitRate, error) {
	q, err := s.find()
	if err != nil || q == nil {
		return 0, err
	}
	if s.feeds != nil {
		if ok, err := Redirected(s.h, s.feeds, s.l); err != nil || !ok {
			return 0, err
		}
	}
	return vnode.BitRate(q.Rate * 8), nil
}

// find returns Berth's qdisc on the link; nil if there is none.
func (s *shaper) find() (*netlink.Tbf, error) {
	all, err := netif.Dump(func() ([]netlink.Qdisc, error) { return s.h.QdiscList(s.l) })
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

// ProbeRates tests each way in a network namespace of its own, which ends with the thread. lacks holds the kernel's
// error for each way that fails.
func ProbeRates(ways map[netif.Way]bool) (lacks map[netif.Way]string, err error) {
	err = thread.Own(func() error {
		lacks, err = probeHere(ways)
		return err
	})
	return lacks, err
}

func probeHere(ways map[netif.Way]bool) (map[netif.Way]string, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("make a network namespace to look at traffic control: %w", err)
	}
	h, err := netif.Host()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err != nil {
		return nil, fmt.Errorf("find lo: %w", err)
	}
	lacks := map[netif.Way]string{}
	for w := range ways {
		s := &shaper{h: h, l: lo, mtu: 1500}
		if w == netif.Ingress {
			ifb, err := makeIFB(h, lo)
			if err != nil {
				lacks[w] = err.Error()
				continue
			}
			s.l, s.feeds = ifb, lo
		}
		if err := s.set(Lowest); err != nil {
			lacks[w] = err.Error()
		}
	}
	return lacks, nil
}
