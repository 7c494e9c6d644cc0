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

// How long to wait for an answer before each retry. A server may ping an address for three seconds before it offers it,
// as dnsmasq does.
var (
	askFor   = []time.Duration{time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second}
	renewFor = []time.Duration{2 * time.Second, 4 * time.Second}
)

// Asked is how long Lease waits for servers at most.
const Asked = 10 * time.Second

// ErrSilence says that no server answered, or that the server whose offer was taken did not confirm it.
var ErrSilence = errors.New("no DHCP server answered")

// NAKError says that a server declined (DHCPNAK).
type NAKError struct {
	Server netip.Addr // the zero address if the server did not say
	Words  string     // the server's message; may be empty
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

// Client speaks with the servers on the network of one interface. It needs no address there. It uses a packet socket
// outside the node, which programs in the node cannot disturb.
type Client struct {
	f    *os.File // a packet socket
	mac  net.HardwareAddr
	host string
}

// Open opens a client on the interface with this index and MAC. The calling thread must be in the interface's network
// namespace; the client's methods may be called from any thread. host is the host name that servers are told.
func Open(index int, mac net.HardwareAddr, host string) (*Client, error) {
	f, err := listen(index)
	if err != nil {
		return nil, err
	}
	return &Client{f: f, mac: mac, host: host}, nil
}

// Close closes the client's socket.
func (c *Client) Close() { c.f.Close() }

// message makes a message to servers. The client identifier contains the MAC, so servers that go by either give the
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

// Lease asks for an address (DISCOVER, OFFER, REQUEST, ACK) and takes ten seconds at most. The error is ErrSilence, a
// NAKError, or why the client could not ask.
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

// Renew asks for more time: the lease's own server or, in state Rebinding, every server. Errors are as those of Lease.
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
	from := m.Options.Get(dhcpv4.OptionServerIdentifier) // set if m takes an offer
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

// Decline tells the server that another host uses the address already.
func (c *Client) Decline(l Lease) error {
	m, err := c.message(dhcpv4.MessageTypeDecline, dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(l.Address.Addr().AsSlice())),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(l.Server.AsSlice())))
	if err != nil {
		return err
	}
	return c.send(m, everybody)
}

// Release gives a lease back. Servers do not answer.
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

// way is the addresses of a message. mac is the MAC that the server's last answer came from, so no ARP request is
// needed. A last message, sent just before the interface is removed, is then not delayed by ARP.
type way struct {
	mac      net.HardwareAddr
	from, to netip.Addr
}

var everybody = way{
	mac:  net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
	from: netip.IPv4Unspecified(), to: netip.AddrFrom4([4]byte{255, 255, 255, 255}),
}

// way returns the way to the lease's server.
func (l *Lease) way() way {
	mac, err := net.ParseMAC(l.Via)
	if err != nil || !l.Server.Is4() {
		return everybody
	}
	return way{mac: mac, from: netip.IPv4Unspecified(), to: l.Server}
}

func (c *Client) send(m *dhcpv4.DHCPv4, w way) error {
	_, err := c.f.Write(frame(c.mac, w, m.ToBytes()))
	if errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.ENOBUFS) { // treated as lost on the way
		return nil
	}
	if err != nil {
		return fmt.Errorf("send a DHCP message: %w", err)
	}
	return nil
}

// exchange sends m, and repeats it after each wait, until a wanted answer comes. It returns the answer and the MAC that
// sent it.
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

// hear waits for an answer to m until a time; nil if none comes.
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
		case errors.Is(err, unix.ENETDOWN): // reported once; the socket stays usable
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
