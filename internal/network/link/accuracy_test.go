package link

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"berth/internal/host/netif"
	"berth/internal/network/shape"
	"berth/internal/spec/vnode"
	"berth/internal/sys/step"
	"berth/test/shares"
	"berth/test/testkit"
)

// The share of TCP data in a full Ethernet frame at mtu 1500, without 20 bytes of IPv4 header, 20 of TCP, 12 of TCP
// timestamps and 14 of Ethernet.
const tcpShare = float64(1500-20-20-12) / (1500 + 14)

// flow is a stream of data from one namespace to another; got counts the received bytes.
type flow struct {
	got   atomic.Int64
	began time.Time // before the first byte was sent
	from  net.Conn
	to    net.Listener
}

func startFlow(t testing.TB, from, to *os.File, addr string) *flow {
	t.Helper()
	f := connect(t, from, to, addr)
	go f.send()
	return f
}

// connect makes the connection of a flow.
func connect(t testing.TB, from, to *os.File, addr string) *flow {
	t.Helper()
	f := &flow{began: time.Now()}
	if err := in(to, func() (err error) {
		f.to, err = net.Listen("tcp4", net.JoinHostPort(addr, "0"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.to.Close() })
	go f.receive()
	if err := in(from, func() (err error) {
		f.from, err = net.DialTimeout("tcp4", f.to.Addr().String(), testkit.Bound())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.from.Close() })
	return f
}

// send sends all it can.
func (f *flow) send() {
	data := make([]byte, 256<<10)
	for {
		if _, err := f.from.Write(data); err != nil {
			return
		}
	}
}

func (f *flow) receive() {
	c, err := f.to.Accept()
	if err != nil {
		return
	}
	defer c.Close()
	data := make([]byte, 256<<10)
	for {
		n, err := c.Read(data)
		f.got.Add(int64(n))
		if err != nil {
			return
		}
	}
}

// rate measures for d the received bits per second.
func (f *flow) rate(d time.Duration) float64 {
	first, start := f.got.Load(), time.Now()
	time.Sleep(d)
	return float64(f.got.Load()-first) * 8 / time.Since(start).Seconds()
}

// all returns the received bits per second since the flow began. No pause of this process makes it more than what the kernel let
// through; a window that begins later would count what waited in the receiver's buffer.
func (f *flow) all() float64 {
	got := f.got.Load()
	return float64(got) * 8 / time.Since(f.began).Seconds()
}

// pair is two nodes; the first has the rates that are measured.
type pair struct {
	rates []*shape.Rate // of the first node: tx, rx
	a, c  *stand
}

func (b *lab) pair(nw vnode.Network) *pair {
	b.t.Helper()
	p := &pair{a: b.node("a"), c: b.node("c")}
	nw.Address, nw.Rate = []string{"192.0.2.10/24"}, vnode.NetRate{TX: mbit, RX: mbit}
	as := p.a.steps(nw)
	p.a.do(as)
	p.rates = rateSteps(as)
	nw.Address, nw.Rate = []string{"192.0.2.11/24"}, vnode.NetRate{}
	p.c.do(p.c.steps(nw))
	return p
}

func (p *pair) set(t *testing.T, r *shape.Rate, bits vnode.BitRate) {
	t.Helper()
	c := &shape.RateChange{Rate: *r}
	if c.Bits, c.Asked = bits, bits.String(); bits == 0 {
		c.Asked = vnode.Max
	}
	if err := do([]step.Step{c}); err != nil {
		t.Fatal(err)
	}
	if now, err := c.Read(); err != nil || now != bits {
		t.Errorf("%s: asked for %s, the kernel has %s, %v", r.Key, bits, now, err)
	}
}

// TestRateIsAccurate limits each rate. Where a run measures it is within 3 % at layer 2.
func TestRateIsAccurate(t *testing.T) {
	if testing.Short() {
		t.Skip("needs time: seconds a rate")
	}
	for _, mode := range []string{"bridge", "macvlan"} {
		t.Run(mode, func(t *testing.T) {
			b := newLab(t)
			b.needShaping(netif.Egress, netif.Peer, netif.Ingress)
			nw, ok := b.networks()[mode]
			if !ok {
				t.Skip("needs a kernel with " + mode)
			}
			p := b.pair(nw)
			for i, name := range []string{"tx", "rx"} {
				p.set(t, p.rates[1-i], 0)
				from, to, addr := p.a, p.c, "192.0.2.11"
				if name == "rx" {
					from, to, addr = p.c, p.a, "192.0.2.10"
				}
				if mode == "macvlan" && name == "tx" {
					continue // the same qdisc as with bridge
				}
				for _, want := range []vnode.BitRate{10 * mbit, 100 * mbit, 1000 * mbit} { // no t.Run: it leaves the lab's thread
					p.set(t, p.rates[i], want)
					accurate(t, name, startFlow(t, from.open(), to.open(), addr), float64(want))
				}
			}
		})
	}
}

func accurate(t *testing.T, name string, f *flow, want float64) {
	t.Helper()
	defer f.from.Close()
	if testkit.Measures() {
		time.Sleep(2 * time.Second) // skip the initial burst, and TCP's losses until it has found the rate
	}
	f.within(t, fmt.Sprintf("%s %.0f Mbit/s", name, want/1e6), want, 1/tcpShare)
}

// fast is a rate that a busy machine may not reach at all: without a measurement it is only an upper limit.
const fast = 1000 * mbit

// within measures a flow. frames is how many bits the frames have for one that arrives. Where a run measures there are windows whose
// number was fixed before; all of them together must be within 3 % of the rate, by the interval that has windows as units. A busy
// machine can only lower a rate, and makes the interval wide: what is less is wrong if the interval says so, what is more is wrong
// in any case.
func (f *flow) within(t *testing.T, name string, want, frames float64) {
	t.Helper()
	if !testkit.Measures() {
		time.Sleep(1500 * time.Millisecond)
		got := f.all() * frames
		if want < float64(fast) {
			testkit.Rate(t, name, got/1e6, want/1e6, 0)
		} else if t.Logf("%s: %.0f Mbit/s", name, got/1e6); got > 1.05*want || got == 0 {
			t.Errorf("%s: %.0f Mbit/s", name, got/1e6)
		}
		return
	}
	row := &shares.Row{Kind: shares.Rate, Name: name, Asked: []float64{want / 8}, Seconds: 0.5}
	for range 8 {
		row.Got = append(row.Got, []float64{f.rate(500*time.Millisecond) * frames / 8})
	}
	t.Log(row.Text())
	if p := row.Parts()[0]; p.CI95 == nil || p.Got > 103 || p.CI95[1] < 97 || p.Got < 80 {
		t.Errorf("not within 3 %%: %s", row.Text())
	}
}

// TestRateOfDatagrams counts exactly: each datagram is one frame, also small ones, which are mostly headers.
func TestRateOfDatagrams(t *testing.T) {
	if testing.Short() {
		t.Skip("needs time: seconds a rate")
	}
	b := newLab(t)
	b.needShaping(netif.Egress, netif.Peer)
	p := b.pair(vnode.Network{Mode: vnode.Bridge})
	rate := mbit // a busy machine sends no more of such datagrams
	if testkit.Measures() {
		rate = 10 * mbit
	}
	p.set(t, p.rates[0], rate)
	p.set(t, p.rates[1], 0)
	const payload = 100
	f := startDatagrams(t, p.a.open(), p.c.open(), "192.0.2.11", payload)
	if testkit.Measures() {
		f.rate(500 * time.Millisecond)
	}
	f.within(t, "datagrams, "+rate.String(), float64(rate), float64(payload+8+20+14)/payload)
}

// startDatagrams sends as fast as it can and ignores losses.
func startDatagrams(t *testing.T, from, to *os.File, addr string, payload int) *flow {
	t.Helper()
	f := &flow{began: time.Now()}
	var ln net.PacketConn
	if err := in(to, func() (err error) {
		ln, err = net.ListenPacket("udp4", net.JoinHostPort(addr, "0"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	if err := in(from, func() (err error) {
		f.from, err = net.Dial("udp4", ln.LocalAddr().String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.from.Close() })
	go func() {
		data := make([]byte, 2000)
		for {
			n, _, err := ln.ReadFrom(data)
			if err != nil {
				return
			}
			f.got.Add(int64(n))
		}
	}()
	go func() {
		data := make([]byte, payload)
		for {
			if _, err := f.from.Write(data); err != nil && !isFull(err) {
				return
			}
		}
	}()
	return f
}

func isFull(err error) bool {
	var no syscall.Errno
	return errors.As(err, &no) && (no == syscall.ENOBUFS || no == syscall.EAGAIN)
}

// TestRateFollows changes a rate under a running flow of datagrams: the new rate holds from the first second. TCP would
// adapt later.
func TestRateFollows(t *testing.T) {
	if testing.Short() {
		t.Skip("needs time: a second a change")
	}
	b := newLab(t)
	b.needShaping(netif.Egress, netif.Peer)
	p := b.pair(vnode.Network{Mode: vnode.Bridge})
	const payload = 1400
	const frames = float64(payload+8+20+14) / payload
	window := 300 * time.Millisecond // a rate that does not follow is a multiple of the new one
	if testkit.Measures() {
		window = 800 * time.Millisecond
	}
	const waiting = 8 * 256 << 10 // bits that the receiver's buffer may hold when a window begins: more than the kernel's default
	for i, r := range p.rates {
		p.set(t, p.rates[1-i], 0)
		from, to, addr := p.a, p.c, "192.0.2.11"
		if i == 1 {
			from, to, addr = p.c, p.a, "192.0.2.10"
		}
		p.set(t, r, 10*mbit)
		f := startDatagrams(t, from.open(), to.open(), addr, payload)
		for _, want := range []vnode.BitRate{10 * mbit, 100 * mbit, 20 * mbit, 0, 10 * mbit} {
			p.set(t, r, want)
			time.Sleep(200 * time.Millisecond)
			began := time.Now()
			got := f.rate(window) * frames
			took := time.Since(began).Seconds()
			t.Logf("%s %s: %.1f Mbit/s at first", r.Key, want, got/1e6)
			most := 1.05*float64(want) + waiting/took
			if testkit.Measures() {
				most = 1.1 * float64(want) // with the bucket; TestRateIsAccurate measures longer
			}
			if want == 0 {
				want = 60 * mbit // no limit: expect more than twice the last rate
			} else if got > most {
				t.Errorf("%s %s: %.1f Mbit/s", r.Key, want, got/1e6)
			}
			if !testkit.Measures() {
				testkit.Eventually(t, fmt.Sprintf("%s %s: more than half of it", r.Key, want), func() bool {
					return f.rate(200*time.Millisecond)*frames > 0.5*float64(want)
				})
				continue
			}
			best := got // a busy machine can only lower it
			for range 3 {
				best = max(best, f.rate(200*time.Millisecond)*frames)
			}
			if best < 0.9*float64(want) {
				t.Errorf("%s %s: no more than %.1f Mbit/s", r.Key, want, best/1e6)
			}
		}
		f.from.Close()
	}
}
