package dhcp

import (
	"math"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

func TestStates(t *testing.T) {
	t.Parallel()
	const day = 24 * 3600
	long := Lease{Address: netip.MustParsePrefix("192.0.2.5/24"), Obtained: 1000 * time.Second, Seconds: day, T1: day / 2, T2: day * 7 / 8}
	short := Lease{Address: long.Address, Obtained: 1000 * time.Second, Seconds: 120, T1: 60, T2: 105}
	forever := Lease{Address: long.Address, Seconds: Forever, T1: Forever / 2, T2: Forever / 8 * 7}
	for _, c := range []struct {
		name  string
		lease Lease
		after int // seconds after 1000
		state State
		wait  int // seconds
		left  uint32
	}{
		{"no lease", Lease{}, 0, Ended, 0, 1},
		{"fresh", long, 0, Bound, day / 2, day},
		{"just before T1", long, day/2 - 1, Bound, 1, day/2 + 1},
		{"at T1 half of what is left until T2", long, day / 2, Renewing, day * 3 / 16, day / 2},
		{"just before T2 not beyond it", long, day*7/8 - 10, Renewing, 10, day/8 + 10},
		{"a minute at least", long, day*7/8 - 100, Renewing, 60, day/8 + 100},
		{"at T2 half of what is left", long, day * 7 / 8, Rebinding, day / 16, day / 8},
		{"the last seconds", long, day - 7, Rebinding, 7, 7},
		{"over", long, day, Ended, 0, 1},
		{"a short one at T1", short, 60, Renewing, 45, 60},
		{"a short one at T2", short, 105, Rebinding, 15, 15},
	} {
		now := time.Duration(1000+c.after) * time.Second
		if s, w, l := c.lease.State(now), c.lease.Wait(now), c.lease.Left(now); s != c.state || w != time.Duration(c.wait)*time.Second || l != c.left {
			t.Errorf("%s: %s, wait %v, left %d; want %s, %d s, %d", c.name, s, w, l, c.state, c.wait, c.left)
		}
	}
	if s, w, l := forever.State(math.MaxInt64/2), forever.Wait(time.Hour), forever.Left(time.Hour); s != Bound || w < 24*365*time.Hour || l != Forever {
		t.Errorf("without end: %s, wait %v, left %d", s, w, l)
	}
}

func TestLeaseOf(t *testing.T) {
	t.Parallel()
	before := Lease{Address: netip.MustParsePrefix("192.0.2.5/27"), Router: netip.MustParseAddr("192.0.2.1"), Server: netip.MustParseAddr("192.0.2.2")}
	via, _ := net.ParseMAC("02:00:5e:00:00:01")
	opt := func(o ...dhcpv4.Option) (all []dhcpv4.Modifier) {
		for _, o := range o {
			all = append(all, dhcpv4.WithOption(o))
		}
		return all
	}
	duration := func(code dhcpv4.OptionCode, seconds byte) dhcpv4.Option {
		return dhcpv4.OptGeneric(code, []byte{0, 0, 0, seconds})
	}
	for _, c := range []struct {
		name   string
		gave   string
		before Lease
		has    []dhcpv4.Modifier
		want   Lease
	}{
		{
			"everything", "192.0.2.9",
			Lease{},
			opt(
				dhcpv4.OptSubnetMask(net.CIDRMask(24, 32)), dhcpv4.OptRouter(net.IPv4(192, 0, 2, 254)), dhcpv4.OptServerIdentifier(net.IPv4(192, 0, 2, 253)),
				duration(dhcpv4.OptionIPAddressLeaseTime, 200), duration(dhcpv4.OptionRenewTimeValue, 5), duration(dhcpv4.OptionRebindingTimeValue, 8)),
			Lease{Address: netip.MustParsePrefix("192.0.2.9/24"), Router: netip.MustParseAddr("192.0.2.254"), Server: netip.MustParseAddr("192.0.2.253"), Seconds: 200, T1: 5, T2: 8},
		},
		{"nothing", "192.0.2.9", Lease{}, nil, Lease{Address: netip.MustParsePrefix("192.0.2.9/24"), Seconds: 3600, T1: 1800, T2: 3150}},
		{
			"what is left out is as it was", "192.0.2.5", before, nil,
			Lease{Address: before.Address, Router: before.Router, Server: before.Server, Seconds: 3600, T1: 1800, T2: 3150},
		},
		{
			"times that cannot be", "192.0.2.9",
			Lease{},
			opt(
				duration(dhcpv4.OptionIPAddressLeaseTime, 100), duration(dhcpv4.OptionRenewTimeValue, 90), duration(dhcpv4.OptionRebindingTimeValue, 200)),
			Lease{Address: netip.MustParsePrefix("192.0.2.9/24"), Seconds: 100, T1: 50, T2: 87},
		},
		{
			"too short to be true", "192.0.2.9",
			Lease{},
			opt(duration(dhcpv4.OptionIPAddressLeaseTime, 1)),
			Lease{Address: netip.MustParsePrefix("192.0.2.9/24"), Seconds: leastLease, T1: leastLease / 2, T2: leastLease * 7 / 8},
		},
	} {
		m, err := dhcpv4.New(append(c.has, dhcpv4.WithYourIP(net.ParseIP(c.gave)))...)
		if err != nil {
			t.Fatal(err)
		}
		c.want.Via, c.want.Obtained = via.String(), time.Hour
		got, err := leaseOf(m, c.before, via, time.Hour)
		if d := cmp.Diff(c.want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); err != nil || d != "" {
			t.Errorf("%s: %v\n%s", c.name, err, d)
		}
	}
	for _, gave := range []string{"0.0.0.0", "224.0.0.1", "127.0.0.1", "255.255.255.255"} {
		m, _ := dhcpv4.New(dhcpv4.WithYourIP(net.ParseIP(gave)))
		if _, err := leaseOf(m, Lease{}, via, 0); err == nil {
			t.Errorf("%s was taken", gave)
		}
	}
}

// FuzzParse feeds frames: none may crash the parser, and the message must be part of the frame.
func FuzzParse(f *testing.F) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	sound := frame(mac, everybody, []byte("message"))
	if _, _, ok := parse(sound); ok {
		f.Error("what is for servers was taken for an answer")
	}
	sound[etherLen+ipLen+3] = clientPort
	if from, body, ok := parse(sound); !ok || from.String() != mac.String() || string(body) != "message" {
		f.Errorf("%s %q %v", from, body, ok)
	}
	f.Add(sound)
	f.Add(sound[:len(sound)-3])
	f.Fuzz(func(_ *testing.T, frame []byte) {
		if _, body, ok := parse(frame); ok {
			_, _ = dhcpv4.FromBytes(body)
		}
	})
}
