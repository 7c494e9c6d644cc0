package dhcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"
)

// How long an answer is waited for before the question is put again. A server may ping an address for three seconds before
// it offers it, as dnsmasq does.
var (
	askFor   = []time.Duration{time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second}
	renewFor = []time.Duration{2 * time.Second, 4 * time.Second}
)

// Asked is how long Lease waits for servers at most.
const Asked = 10 * time.Second

// ErrSilence says that no server answered, or none confirmed what it had offered.
var ErrSilence = errors.New("no DHCP server answered")

// NAKError says that a server declined.
type NAKError struct {
	Server netip.Addr // who; may be the zero address
	Words  string     // what it said; may be empty
}

func (e *NAKError) Error() string {
	s := "a DHCP server said no (NAK)"
	if e.Server.IsValid() {
		s = fmt.Sprintf("DHCP server %s said no (NAK)", e.Server)
	}
	if e.Words != "" {
		s += fmt.Sprintf(": %q", e.Words)
	}
	return s
}

// Client asks servers on the network of one interface. It needs no address there, and has no socket that what runs in the
// node could be in the way of.
type Client struct {
	f    *os.File // a packet socket
	mac  net.HardwareAddr
	host string
}

// Open opens a client on the interface with this index and MAC, in whose network namespace the calling thread must be.
// What is asked then may be asked from elsewhere. host is the host name that servers are told.
func Open(index int, mac net.HardwareAddr, host string) (*Client, error) {
	f, err := listen(index)
	if err != nil {
		return nil, err
	}
	return &Client{f: f, mac: mac, host: host}, nil
}

// Close ends the client.
func (c *Client) Close() { c.f.Close() }

// message makes a message to servers. The client identifier says what the MAC says too: servers that know either give the
// same address.
func (c *Client) message(kind dhcpv4.MessageType, more ...dhcpv4.Modifier) (*dhcpv4.DHCPv4, error) {
	m, err := dhcpv4.New(append([]dhcpv4.Modifier{
		dhcpv4.WithMessageType(kind), dhcpv4.WithHwAddr(c.mac),
		dhcpv4.WithOption(dhcpv4.OptClientIdentifier(append([]byte{1}, c.mac...))),
	}, more...)...)
	if err != nil {
		return nil, fmt.Errorf("make a DHCP message: %w", err)
	}
	if kind == dhcpv4.MessageTypeDiscover || kind == dhcpv4.MessageTypeRequest {
		m.UpdateOption(dhcpv4.OptHostName(c.host))
		m.UpdateOption(dhcpv4.OptMaxMessageSize(1500))
		m.UpdateOption(dhcpv4.OptParameterRequestList(dhcpv4.OptionSubnetMask, dhcpv4.OptionRouter, dhcpv4.OptionIPAddressLeaseTime,
			dhcpv4.OptionServerIdentifier, dhcpv4.OptionRenewTimeValue, dhcpv4.OptionRebindingTimeValue))
	}
	return m, nil
}

// Lease asks for an address: DISCOVER, OFFER, REQUEST, ACK, in ten seconds at most. The error is ErrSilence, a NAKError, or
// that nothing could be asked.
func (c *Client) Lease(ctx context.Context) (Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, Asked)
	defer cancel()
	discover, err := c.message(dhcpv4.MessageTypeDiscover)
	if err != nil {
		return Lease{}, err
	}
	offer, _, err := c.exchange(ctx, discover, everybody, askFor, func(m *dhcpv4.DHCPv4) bool {
		_, sound := unicast(m.YourIPAddr)
		return sound && m.MessageType() == dhcpv4.MessageTypeOffer
	})
	if err != nil {
		return Lease{}, err
	}
	from := offer.Options.Get(dhcpv4.OptionServerIdentifier)
	request, err := c.message(dhcpv4.MessageTypeRequest, dhcpv4.WithTransactionID(offer.TransactionID),
		dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(offer.YourIPAddr)), dhcpv4.WithGeneric(dhcpv4.OptionServerIdentifier, from))
	if err != nil {
		return Lease{}, err
	}
	l, err := c.request(ctx, request, everybody, askFor, Lease{})
	if errors.Is(err, ErrSilence) {
		err = fmt.Errorf("%w the request for %s, which %s had offered", ErrSilence, offer.YourIPAddr, net.IP(from))
	}
	return l, err
}

// Renew asks for more time, the lease's own server or, in state Rebinding, every server. Errors are as those of Lease.
func (c *Client) Renew(ctx context.Context, l Lease) (Lease, error) {
	m, err := c.message(dhcpv4.MessageTypeRequest, dhcpv4.WithClientIP(l.Address.Addr().AsSlice()))
	if err != nil {
		return Lease{}, err
	}
	way := everybody
	if l.State(Now()) != Rebinding {
		way = l.way()
	}
	way.from = l.Address.Addr()
	return c.request(ctx, m, way, renewFor, l)
}

func (c *Client) request(ctx context.Context, m *dhcpv4.DHCPv4, way way, waits []time.Duration, before Lease) (Lease, error) {
	asked := Now()
	from := m.Options.Get(dhcpv4.OptionServerIdentifier) // of an offer that was taken
	ack, via, err := c.exchange(ctx, m, way, waits, func(m *dhcpv4.DHCPv4) bool {
		is := m.MessageType()
		s := m.Options.Get(dhcpv4.OptionServerIdentifier)
		return (is == dhcpv4.MessageTypeAck || is == dhcpv4.MessageTypeNak) && (from == nil || s == nil || bytes.Equal(s, from))
	})
	if err != nil {
		return Lease{}, err
	}
	if ack.MessageType() == dhcpv4.MessageTypeNak {
		server, _ := unicast(ack.ServerIdentifier())
		return Lease{}, &NAKError{Server: server, Words: ack.Message()}
	}
	return leaseOf(ack, before, via, asked)
}

// Decline tells the server that somebody else has the address already.
func (c *Client) Decline(l Lease) error {
	m, err := c.message(dhcpv4.MessageTypeDecline, dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(l.Address.Addr().AsSlice())),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(l.Server.AsSlice())))
	if err != nil {
		return err
	}
	return c.send(m, everybody)
}

// Release gives a lease back. Servers do not answer that.
func (c *Client) Release(l Lease) error {
	m, err := c.message(dhcpv4.MessageTypeRelease, dhcpv4.WithClientIP(l.Address.Addr().AsSlice()),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(l.Server.AsSlice())))
	if err != nil {
		return err
	}
	way := l.way()
	way.from = l.Address.Addr()
	return c.send(m, way)
}

// way is how a message travels. The MAC is that which the server's last answer came from: nobody need be asked for it, and
// what is sent last, on an interface that is about to go, is not kept back by such a question.
type way struct {
	mac      net.HardwareAddr
	from, to netip.Addr
}

var everybody = way{
	mac:  net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
	from: netip.IPv4Unspecified(), to: netip.AddrFrom4([4]byte{255, 255, 255, 255}),
}

// way leads to the lease's server.
func (l *Lease) way() way {
	mac, err := net.ParseMAC(l.Via)
	if err != nil || !l.Server.Is4() {
		return everybody
	}
	return way{mac: mac, from: netip.IPv4Unspecified(), to: l.Server}
}

func (c *Client) send(m *dhcpv4.DHCPv4, w way) error {
	_, err := c.f.Write(frame(c.mac, w, m.ToBytes()))
	if errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.ENOBUFS) { // as good as lost on the way
		return nil
	}
	if err != nil {
		return fmt.Errorf("send a DHCP message: %w", err)
	}
	return nil
}

// exchange sends a message until an answer comes that is wanted, and returns it and the MAC that it came from.
func (c *Client) exchange(ctx context.Context, m *dhcpv4.DHCPv4, w way, waits []time.Duration, wanted func(*dhcpv4.DHCPv4) bool) (*dhcpv4.DHCPv4, net.HardwareAddr, error) {
	began := time.Now()
	for _, wait := range waits {
		m.NumSeconds = uint16(time.Since(began) / time.Second)
		if err := c.send(m, w); err != nil {
			return nil, nil, err
		}
		answer, via, err := c.hear(ctx, m, time.Now().Add(wait), wanted)
		if answer != nil || err != nil {
			return answer, via, err
		}
	}
	return nil, nil, ErrSilence
}

// hear waits for an answer to m; nil if none comes.
func (c *Client) hear(ctx context.Context, m *dhcpv4.DHCPv4, until time.Time, wanted func(*dhcpv4.DHCPv4) bool) (*dhcpv4.DHCPv4, net.HardwareAddr, error) {
	if err := c.f.SetReadDeadline(until); err != nil {
		return nil, nil, fmt.Errorf("wait for a DHCP server: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = c.f.SetReadDeadline(time.Unix(1, 0)) })()
	buf := make([]byte, 65536)
	for {
		n, err := c.f.Read(buf)
		switch {
		case errors.Is(ctx.Err(), context.Canceled):
			return nil, nil, fmt.Errorf("wait for a DHCP server: %w", ctx.Err())
		case ctx.Err() != nil:
			return nil, nil, ErrSilence
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, nil, nil
		case errors.Is(err, unix.ENETDOWN): // told once, and the socket goes on
			continue
		case err != nil:
			return nil, nil, fmt.Errorf("wait for a DHCP server: %w", err)
		}
		via, body, ok := parse(buf[:n])
		if !ok {
			continue
		}
		a, err := dhcpv4.FromBytes(body)
		if err == nil && a.OpCode == dhcpv4.OpcodeBootReply && a.TransactionID == m.TransactionID && bytes.Equal(a.ClientHWAddr, c.mac) && wanted(a) {
			return a, via, nil
		}
	}
}
