package nat

import (
	"context"
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// TestPublishedPortMoves takes a published port from one node and gives it to another, while clients send from the same sockets all the
// time: the kernel remembers each of these flows, and where it led.
func TestPublishedPortMoves(t *testing.T) {
	b := newBed(t)
	ports := []string{"8080:80/udp"}
	first, second := b.node(), b.node()
	publish := func(g guest) *Publish {
		return &Publish{Places: b.Places, If: "eth0", V4: g.v4, V6: g.v6, Ports: ports}
	}
	b.says(first, "first")
	b.says(second, "second")
	clients := map[string]net.Conn{}
	for _, address := range []string{"192.0.2.1:8080", "[2001:db8::1]:8080"} {
		if err := b.within(b.near, func() (err error) { clients[address], err = net.Dial("udp", address); return err }); err != nil {
			t.Fatal(err)
		}
		defer clients[address].Close()
	}
	for address, c := range clients { // before any node is there: the flow leads to the host
		unheard(t, address, c)
	}
	one := publish(first)
	b.do(one)
	for address, c := range clients {
		hears(t, address, c, "first")
	}
	if err := one.Undo(context.Background()); err != nil {
		t.Fatal(err)
	}
	b.do(publish(second))
	for address, c := range clients {
		hears(t, address, c, "second")
	}
}

// says answers datagrams to port 80 of a node with a word.
func (b *bed) says(g guest, word string) {
	b.Helper()
	err := b.within(g.ns, func() error {
		c, err := net.ListenPacket("udp", ":80")
		if err != nil {
			return err
		}
		b.Cleanup(func() { c.Close() })
		go func() {
			for buf := make([]byte, 64); ; {
				_, from, err := c.ReadFrom(buf)
				if err != nil {
					return
				}
				_, _ = c.WriteTo([]byte(word), from)
			}
		}()
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
}

// hears sends until a word is the answer.
func hears(t *testing.T, address string, c net.Conn, want string) {
	t.Helper()
	last := ""
	if !testkit.Happens(func() bool {
		_, _ = c.Write([]byte("x")) // an error of the packet before is no matter
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		buf := make([]byte, 64)
		n, err := c.Read(buf)
		if err == nil {
			last = string(buf[:n])
		}
		return last == want
	}) {
		t.Errorf("%s: the answer is %q, not %q", address, last, want)
	}
}

// unheard sends a datagram, and waits until the host has said that nobody takes it.
func unheard(t *testing.T, address string, c net.Conn) {
	t.Helper()
	if !testkit.Happens(func() bool {
		_, err := c.Write([]byte("x"))
		if err == nil {
			_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			_, err = c.Read(make([]byte, 64))
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	}) {
		t.Errorf("%s: somebody takes it before a node is there", address)
	}
}

// TestIPv6SwitchedOff: a host that keeps IPv6 from new interfaces gives its first node of mode nat IPv4 alone; where the network has IPv6 already,
// the next node is refused before anything is made, unless the bridge is there and has it.
func TestIPv6SwitchedOff(t *testing.T) {
	b := newBed(t)
	n := published()
	b.sh("echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6")
	f, err := b.ReadFacts(t.Context(), "n1", n, false)
	if err != nil || f.Network.V6.IsValid() || f.Check(n) != nil {
		t.Errorf("the first node: %s, %v, %v", f.Network, err, f.Check(n))
	}
	b.sh("echo 0 >/proc/sys/net/ipv6/conf/default/disable_ipv6")
	b.node()
	b.sh("echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6")
	if f, err = b.ReadFacts(t.Context(), "n2", n, false); err != nil || f.Check(n) != nil {
		t.Errorf("beside a node that has it: %v, %v", err, f.Check(n))
	}
	b.sh("ip link del " + b.Bridge) // as after a reboot
	if f, err = b.ReadFacts(t.Context(), "n2", n, false); err != nil {
		t.Fatal(err)
	}
	if err := f.Check(n); refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "net.ipv6.conf.default.disable_ipv6") {
		t.Errorf("the next node: %v", err)
	}
}
