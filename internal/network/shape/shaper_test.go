package shape

import (
	"errors"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"berth/internal/host/netif"
	"berth/internal/spec/vnode"
	"berth/internal/sys/mac"
	"berth/internal/sys/thread"
	"berth/test/testkit"
)

// TestDefaultQueueComesBack uses a link with a default queue, which veth and macvlan do not have.
func TestDefaultQueueComesBack(t *testing.T) {
	testkit.NeedsRoot(t)
	lacks, err := ProbeRates(map[netif.Way]bool{netif.Egress: true, netif.Ingress: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, why := range lacks {
		t.Skipf("needs a kernel that holds a rate: %s", why)
	}
	if err := thread.Own(func() error { return defaultQueueComesBack(t) }); err != nil {
		t.Error(err)
	}
}

func defaultQueueComesBack(t *testing.T) error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	h, err := netif.Host()
	if err != nil {
		return err
	}
	defer h.Close()
	ifb := &netlink.Ifb{LinkAttrs: netif.Attrs("ifb0", 0, mac.Address{})}
	if err := errors.Join(h.LinkAdd(ifb), h.LinkSetUp(ifb)); err != nil {
		return err
	}
	const mbit = 1_000_000
	s := &shaper{h: h, l: ifb, mtu: 1500}
	before := rootQdiscs(h, ifb)
	if err := errors.Join(s.set(mbit), s.set(2*mbit)); err != nil {
		return err
	}
	if got := rootQdiscs(h, ifb); got != "tbf" {
		t.Errorf("with a rate: %q", got)
	}
	err = s.clear()
	if got := rootQdiscs(h, ifb); got != before || got == "" {
		t.Errorf("after the rate: %q, before %q", got, before)
	}
	return err
}

// rootQdiscs returns the kinds of a link's qdiscs.
func rootQdiscs(h *netlink.Handle, l netlink.Link) string {
	all, err := h.QdiscList(l)
	if err != nil {
		return err.Error()
	}
	var kinds []string
	for _, q := range all {
		kinds = append(kinds, q.Type())
	}
	return strings.Join(kinds, " ")
}

// TestBucket checks for every allowed rate that the kernel's 32-bit fields suffice and that the bucket holds the
// biggest packet.
func TestBucket(t *testing.T) {
	lo := &netlink.Device{LinkAttrs: netif.Attrs("x", 0, mac.Address{})}
	rapid.Check(t, func(t *rapid.T) {
		bits := vnode.BitRate(rapid.Int64Range(int64(Lowest), int64(Highest)).Draw(t, "bits"))
		mtu := rapid.IntRange(68, 65536).Draw(t, "mtu")
		q := (&shaper{l: lo, mtu: mtu}).tbf(bits)
		burst := float64(q.Buffer) * 64e-9 * float64(q.Rate) // as the kernel computes it
		switch {
		case q.Rate != uint64(bits)/8:
			t.Fatalf("rate %d of %s", q.Rate, bits)
		case burst < float64(mtu+14):
			t.Fatalf("a bucket of %.0f bytes lets no packet of mtu %d through", burst, mtu)
		case burst+1 < float64(q.Rate)*0.0249, burst > max(float64(q.Rate)*0.0251, 1.2*float64(mtu+22))+float64(q.Rate)*64e-9:
			t.Fatalf("bucket of %.0f bytes at %s", burst, bits)
		case uint64(q.Limit)+1000 < q.Rate/10:
			t.Fatalf("queue of %d bytes at %s", q.Limit, bits)
		}
	})
}
