package nat

import (
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTraffic leads connections through the rules: what must pass, as whom, and what must not.
func TestTraffic(t *testing.T) {
	b := newBed(t)
	before, settings := b.sh("nft list ruleset; ip -o addr | grep -v fe80"), b.settings()
	n := b.node("8080:80", "8080:80/udp", "192.0.2.1:9000-9002:90-92", "[2001:db8::1]:9443:443", "53:53/udp")
	other := b.node("8081:80")
	for _, l := range []struct{ network, address string }{{"tcp", ":80"}, {"udp", ":80"}, {"tcp", ":91"}, {"tcp", ":443"}, {"udp", ":53"}} {
		b.listen(n.ns, l.network, l.address)
	}
	b.listen(other.ns, "tcp", ":80")
	for _, ns := range []struct{ network, address string }{{"tcp", ":99"}, {"udp", ":99"}} {
		b.listen(b.near, ns.network, ns.address)
	}
	b.listen(nil, "tcp", ":22")
	gw4, gw6 := Gateway(b.theNetwork.V4).Addr().String(), Gateway(b.theNetwork.V6).Addr().String()
	b.listen(nil, "udp", net.JoinHostPort(gw4, "53"))
	b.listen(nil, "tcp", net.JoinHostPort(gw6, "53"))

	for _, network := range []string{"tcp", "udp"} {
		b.sees("a node reaches outside as the host", n.ns, network, "192.0.2.2:99", "192.0.2.1")
		b.sees("a node reaches outside as the host", n.ns, network, "[2001:db8::2]:99", "2001:db8::1")
		b.sees("outside reaches a published port", b.near, network, "192.0.2.1:8080", "192.0.2.2")
		b.sees("outside reaches a published port", b.near, network, "[2001:db8::1]:8080", "2001:db8::2")
	}
	b.sees("a second neighbour does too", b.far, "tcp", "198.51.100.1:8080", "198.51.100.2")
	b.sees("a port of a range, on one address", b.near, "tcp", "192.0.2.1:9001", "192.0.2.2")
	b.sees("the same by way of the other link", b.far, "tcp", "192.0.2.1:9001", "198.51.100.2")
	b.refused("that port on another address", b.far, "tcp", "198.51.100.1:9001")
	b.sees("a port on one IPv6 address", b.near, "tcp", "[2001:db8::1]:9443", "2001:db8::2")
	b.refused("that port by IPv4", b.near, "tcp", "192.0.2.1:9443")
	b.sees("the host itself", nil, "tcp", "192.0.2.1:8080", "192.0.2.1")
	b.sees("nodes reach each other", n.ns, "tcp", net.JoinHostPort(other.v4.String(), "80"), n.v4.String())
	b.sees("a node reaches a port that another publishes", n.ns, "tcp", "192.0.2.1:8081", gw4)
	// With br_netfilter the kernel translates on the bridge, and does not send a frame back to the port that it came from.
	b.sh("for f in /proc/sys/net/bridge/bridge-nf-call-ip*tables; do if [ -e $f ]; then echo 0 >$f; fi; done")
	b.sees("without br_netfilter a port that another publishes", n.ns, "tcp", "192.0.2.1:8081", gw4)
	b.sees("without br_netfilter its own", n.ns, "tcp", "192.0.2.1:8080", gw4)
	b.sees("and by IPv6", n.ns, "tcp", "[2001:db8::1]:8081", gw6)

	b.sees("names are served on the bridge, whatever is published", n.ns, "udp", net.JoinHostPort(gw4, "53"), n.v4.String())
	b.sees("names are served on the bridge", n.ns, "tcp", net.JoinHostPort(gw6, "53"), n.v6.String())
	for _, address := range []string{"192.0.2.1:22", "198.51.100.1:22", "[2001:db8::1]:22", net.JoinHostPort(gw4, "22"), net.JoinHostPort(gw6, "22"), "[fe80::1%eth0]:22"} {
		b.refused("a node reaches an address of the host", n.ns, "tcp", address)
	}

	// The metadata service of a cloud is reached by the host, not by nodes.
	b.in(b.near, "ip addr add 169.254.169.254/32 dev eth0; ip addr add fd00:ec2::254/128 dev eth0 nodad")
	b.sh("ip route add 169.254.169.254 dev up0 src 192.0.2.1; ip route add fd00:ec2::254 via 2001:db8::2")
	b.sees("the host reaches the metadata service", nil, "tcp", "169.254.169.254:99", "192.0.2.1")
	for _, address := range []string{"169.254.169.254:99", "[fd00:ec2::254]:99"} {
		b.refused("a node reaches the metadata service", n.ns, "tcp", address)
	}
	b.sh("ip route del 169.254.169.254; ip route del fd00:ec2::254")

	b.refused("a neighbour reaches a node's own address", b.near, "tcp", net.JoinHostPort(n.v4.String(), "80"))
	b.refused("a neighbour reaches a node's own address", b.near, "tcp", net.JoinHostPort(n.v6.String(), "80"))
	b.refused("the host is a router for its neighbours", b.far, "tcp", "192.0.2.2:99")
	b.refused("the host is a router for its neighbours", b.far, "tcp", "[2001:db8::2]:99")

	b.undo()
	b.sh("ip link del berth-n1; ip link del berth-n2")
	if diff := cmp.Diff(before+settings, b.sh("nft list ruleset; ip -o addr | grep -v fe80")+b.settings()); diff != "" {
		t.Errorf("left (-before +after):\n%s", diff)
	}
}
