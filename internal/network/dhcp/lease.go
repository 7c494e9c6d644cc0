// Package dhcp leases IPv4 addresses for nodes over their interfaces, from outside the node (RFC 2131): a node has
// neither the raw socket nor the right to set an address that a DHCP client needs. It speaks with servers; package address
// applies the leases.
package dhcp

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"
)

// Lease is an address that a server gave for a limited time. The zero Lease has ended.
type Lease struct {
	Address  netip.Prefix  `json:"address"`
	Router   netip.Addr    `json:"router,omitzero"` // for the default route
	Server   netip.Addr    `json:"server,omitzero"`
	Via      string        `json:"via"`         // MAC that the server's answer came from: the server's own, or a relay's
	Obtained time.Duration `json:"obtained_ns"` // since boot: when the request was sent
	Seconds  uint32        `json:"seconds"`     // duration from Obtained; Forever: it does not end
	T1       uint32        `json:"t1"`          // seconds from Obtained until the server is asked for more time
	T2       uint32        `json:"t2"`          // seconds from Obtained until every server is asked
}

// Forever is the Seconds of a lease that does not end (RFC 2131, 3.3).
const Forever = math.MaxUint32

// State is the state of a lease, which decides what is to be done about it.
type State string

// The states, after RFC 2131, 4.4. In Renewing the lease's server is asked for more time, in Rebinding every server.
const (
	Bound     State = "bound"
	Renewing  State = "renewing"
	Rebinding State = "rebinding"
	Ended     State = "ended"
)

// Now returns the time since boot, a clock that cannot be set.
func Now() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // cannot fail: the clock exists and t is valid memory
	return time.Duration(t.Nano())
}

func (l *Lease) after(seconds uint32) time.Duration {
	if l.Seconds == Forever {
		return math.MaxInt64
	}
	return l.Obtained + time.Duration(seconds)*time.Second
}

// State returns the lease's state at a time since boot.
func (l *Lease) State(now time.Duration) State {
	switch {
	case !l.Address.IsValid() || now >= l.after(l.Seconds):
		return Ended
	case now >= l.after(l.T2):
		return Rebinding
	case now >= l.after(l.T1):
		return Renewing
	}
	return Bound
}

// patience is the least time between two unanswered requests for more time (RFC 2131, 4.4.5).
const patience = time.Minute

// Wait returns how long to wait before a server is asked again: in Bound until T1; after an unanswered request half of
// the time until T2, then half of the time until the end, and patience at least.
func (l *Lease) Wait(now time.Duration) time.Duration {
	until := l.after(l.Seconds)
	switch l.State(now) {
	case Ended:
		return 0
	case Bound:
		return l.after(l.T1) - now
	case Renewing:
		until = l.after(l.T2)
	}
	return min(until-now, max((until-now)/2, patience))
}

// Left returns how much of the lease is left, in whole seconds: at least 1, as 0 has another meaning for the kernel.
func (l *Lease) Left(now time.Duration) uint32 {
	if l.Seconds == Forever {
		return Forever
	}
	return uint32(max((l.after(l.Seconds)-now)/time.Second, 1))
}

// leastLease is the shortest lease that is accepted, in seconds, because asking takes time too.
const leastLease = 10

// leaseOf reads a server's answer. Values that a renewal's answer leaves out are copied from before.
func leaseOf(ack *dhcpv4.DHCPv4, before Lease, via net.HardwareAddr, asked time.Duration) (Lease, error) {
	l := Lease{Router: before.Router, Server: before.Server, Via: via.String(), Obtained: asked}
	addr, ok := unicast(ack.YourIPAddr)
	if !ok {
		return l, fmt.Errorf("a DHCP server gave %s, which is no address for an interface", ack.YourIPAddr)
	}
	bits, size := ack.SubnetMask().Size()
	if size == 0 || bits == 0 {
		if bits = before.Address.Bits(); addr != before.Address.Addr() {
			bits, _ = ack.YourIPAddr.DefaultMask().Size()
		}
	}
	l.Address = netip.PrefixFrom(addr, bits)
	if s, ok := unicast(ack.ServerIdentifier()); ok {
		l.Server = s
	}
	for _, r := range ack.Router() {
		if r, ok := unicast(r); ok && r != addr {
			l.Router = r
			break
		}
	}
	l.Seconds = max(seconds(ack.IPAddressLeaseTime(time.Hour)), leastLease)
	l.T1, l.T2 = seconds(ack.IPAddressRenewalTime(0)), seconds(ack.IPAddressRebindingTime(0))
	if l.T2 == 0 || l.T2 > l.Seconds {
		l.T2 = uint32(uint64(l.Seconds) * 7 / 8)
	}
	if l.T1 == 0 || l.T1 > l.T2 {
		l.T1 = min(l.Seconds/2, l.T2)
	}
	return l, nil
}

func seconds(d time.Duration) uint32 { return uint32(d / time.Second) }

// unicast returns ip and whether one host can have that address.
func unicast(ip net.IP) (netip.Addr, bool) {
	a, ok := netip.AddrFromSlice(ip.To4())
	return a, ok && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}
