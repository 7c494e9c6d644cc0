package netserve

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	dns "golang.org/x/net/dns/dnsmessage"
)

// upstream passes queries on to the host's resolvers: those of its /etc/resolv.conf. It asks from the host's network
// namespace, so a resolver on the host's loopback, such as systemd-resolved's, works too.
//
// It looks at the file before each query, which takes a microsecond. inotify would have to follow each link on the way to
// the file, and miss a file that is mounted over it.
type upstream struct {
	file string

	mu      sync.Mutex
	seen    stamp
	servers []netip.AddrPort
}

type stamp struct {
	dev, ino uint64
	size     int64
	changed  syscall.Timespec
}

// A query goes to at most this many resolvers, as the C library does, for so long each.
const (
	mostResolvers = 3
	patience      = 2 * time.Second
)

// resolvers returns the host's resolvers; without any, the one on its loopback (resolv.conf(5)).
func (u *upstream) resolvers() []netip.AddrPort {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := stamp{}
	if info, err := os.Stat(u.file); err == nil {
		if s, ok := info.Sys().(*syscall.Stat_t); ok {
			now = stamp{dev: s.Dev, ino: s.Ino, size: s.Size, changed: s.Ctim}
		}
	}
	if u.servers != nil && now == u.seen {
		return u.servers
	}
	u.seen = now
	text, _ := readSome(u.file, 64<<10)
	u.servers = nameservers(text)
	return u.servers
}

func nameservers(text string) (all []netip.AddrPort) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "nameserver" || len(all) == mostResolvers {
			continue
		}
		if a, err := netip.ParseAddr(f[1]); err == nil {
			all = append(all, netip.AddrPortFrom(a, 53))
		}
	}
	if len(all) == 0 {
		all = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:53")}
	}
	return all
}

func readSome(file string, most int64) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most))
	return string(b), err
}

// ask asks the host's resolvers, one after the other, until one knows. own are the addresses that this process answers at.
func (u *upstream) ask(ctx context.Context, q *query, network string, own []netip.Addr) []byte {
	var last []byte
	for _, server := range u.resolvers() {
		if slices.Contains(own, server.Addr()) { // it would ask itself
			continue
		}
		packet, code, err := u.exchange(ctx, q, network, server)
		if err != nil {
			continue
		}
		last = packet
		if code == dns.RCodeSuccess || code == dns.RCodeNameError {
			break
		}
	}
	switch {
	case last == nil:
		return q.reply(dns.RCodeServerFailure, true, nil)
	case network == "udp" && len(last) > q.size:
		return q.cut()
	}
	binary.BigEndian.PutUint16(last, q.ID)
	return last
}

// exchange asks one resolver, under a random id and from a port that the kernel chooses, so that answers are hard to forge.
func (u *upstream) exchange(ctx context.Context, q *query, network string, server netip.AddrPort) ([]byte, dns.RCode, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, network, server.String())
	if err != nil {
		return nil, 0, err
	}
	defer conn.Close()
	end, _ := ctx.Deadline()
	_ = conn.SetDeadline(end)
	var random [2]byte
	_, _ = rand.Read(random[:]) // crypto/rand never fails
	id := binary.BigEndian.Uint16(random[:])
	packet := q.onward(id)
	if packet == nil {
		return nil, 0, errors.New("the query cannot be built")
	}
	if network == "tcp" {
		if err := writeFrame(conn, packet); err != nil {
			return nil, 0, err
		}
		if packet, err = readFrame(conn); err != nil {
			return nil, 0, err
		}
		if code, ok := q.matches(packet, id); ok {
			return packet, code, nil
		}
		return nil, 0, errors.New("not an answer")
	}
	if _, err := conn.Write(packet); err != nil {
		return nil, 0, err
	}
	buf := make([]byte, 4096)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return nil, 0, err
		}
		if code, ok := q.matches(buf[:n], id); ok {
			return buf[:n], code, nil
		}
	}
}

// readFrame reads a message with its length before it, as TCP carries them.
func readFrame(r io.Reader) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint16(size[:]))
	_, err := io.ReadFull(r, b)
	return b, err
}

func writeFrame(w io.Writer, b []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...))
	return err
}
