package nat

import (
	"context"
	"net"
	"testing"
	"time"

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
