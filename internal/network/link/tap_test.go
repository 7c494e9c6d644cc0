package link

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host/netif"
	"berth/internal/spec/vnode"
	"berth/internal/sys/mac"
	"berth/test/testkit"
)

// adapter is a machine's end of a tap.
type adapter struct {
	*os.File
	own mac.Address
}

// adapter makes the first tap of a stand-in for a machine.
func (s *stand) adapter() *adapter {
	s.t.Helper()
	a := &adapter{}
	testkit.Must(s.t, in(s.open(), func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		r, err := unix.NewIfreq(tapName(0))
		if err == nil {
			r.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, r)
		}
		a.File = os.NewFile(uintptr(fd), "tap")
		return err
	}))
	s.t.Cleanup(func() { a.Close() })
	return a
}

// asks broadcasts the question whose address to is, as a guest with the address from, and waits for the answer.
func (a *adapter) asks(from, to string) error {
	own := a.own.HardwareAddr()
	ask := bytes.Join([][]byte{
		{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, own, {0x08, 0x06}, // Ethernet: to all, ARP
		{0, 1, 8, 0, 6, 4, 0, 1}, own, net.ParseIP(from).To4(), make([]byte, 6), net.ParseIP(to).To4(), make([]byte, 18),
	}, nil)
	if err := a.SetReadDeadline(time.Now().Add(testkit.Bound())); err != nil {
		return err
	}
	if _, err := a.Write(ask); err != nil {
		return err
	}
	frame := make([]byte, 2000)
	for {
		n, err := a.Read(frame)
		if err != nil {
			return err
		}
		if n >= 42 && bytes.Equal(frame[:6], own) && frame[21] == 2 && net.IP(frame[28:32]).Equal(net.ParseIP(to)) {
			return nil
		}
	}
}

// TestTap: a machine's adapter reaches other nodes, also after its interface was lost and made again; the host's kernel has no
// address beside the guest's.
func TestTap(t *testing.T) {
	b := newLab(t)
	if _, err := os.Stat("/dev/net/tun"); errors.Is(err, os.ErrNotExist) {
		t.Skip("needs the kernel's driver tun")
	}
	m, c := b.node("m"), b.node("c")
	m.machine = true
	a := m.adapter()
	ms := m.steps(vnode.Network{Mode: vnode.Bridge, Address: []string{"192.0.2.10/24", "2001:db8::10/64"}})
	m.do(ms)
	cs := c.steps(vnode.Network{Mode: vnode.Bridge, Address: []string{"192.0.2.11/24"}})
	c.do(cs)
	a.own = m.macs["eth0"]
	if err := a.asks("192.0.2.10", "192.0.2.11"); err != nil {
		t.Errorf("from the machine to the container: %v", err)
	}
	for _, name := range []string{"eth0", tapName(0)} {
		if got, err := netif.Read(m.ns, name); err != nil || len(got.Address) > 0 || !got.Up {
			t.Errorf("%s beside the guest: %+v, %v", name, got, err)
		}
	}
	r, err := (&netif.Inside{NS: m.ns, If: "eth0"}).Open()
	testkit.Must(t, err)
	l, err := netif.ByName(r.Handle, "eth0")
	testkit.Must(t, err, r.LinkDel(l))
	r.Close()
	if again, err := Reattach(context.Background(), ms, nil); err != nil || len(again) != 1 {
		t.Fatalf("connected again: %v, %v", again, err)
	}
	if err := a.asks("192.0.2.10", "192.0.2.11"); err != nil {
		t.Errorf("after its interface was made again: %v", err)
	}
	m.undo(ms)
	c.undo(cs)
}
