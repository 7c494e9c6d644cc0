package netserve

import (
	"encoding/hex"
	"errors"
	"net/netip"
	"slices"
	"strings"

	dns "golang.org/x/net/dns/dnsmessage"
)

// query is a question of a node that is well formed.
type query struct {
	dns.Header
	dns.Question
	edns  bool // it has an OPT record
	size  int  // the largest answer by UDP that its sender takes
	wants bool // DNSSEC records
}

// largest is how large an answer by UDP may be at most: it fits into a packet on every link.
const largest = 1232

var errDrop = errors.New("not a query")

// parse reads a packet. The error is errDrop for packets that are not answered at all. Otherwise the code says what is
// wrong with the query: RCodeSuccess if nothing is.
func parse(packet []byte) (q query, code dns.RCode, err error) {
	var p dns.Parser
	if q.Header, err = p.Start(packet); err != nil || q.Response {
		return q, 0, errDrop
	}
	if q.Question, err = p.Question(); err != nil {
		return q, 0, errDrop
	}
	q.size = 512
	if q.OpCode != 0 {
		return q, dns.RCodeNotImplemented, nil
	}
	if _, more := p.Question(); !errors.Is(more, dns.ErrSectionDone) {
		return q, dns.RCodeFormatError, nil
	}
	if p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		return q, dns.RCodeFormatError, nil //nolint:nilerr // the code says it
	}
	for {
		h, err := p.AdditionalHeader()
		if errors.Is(err, dns.ErrSectionDone) {
			break
		}
		if err != nil || p.SkipAdditional() != nil {
			return q, dns.RCodeFormatError, nil //nolint:nilerr // the code says it
		}
		if h.Type == dns.TypeOPT {
			q.edns, q.wants = true, h.DNSSECAllowed()
			q.size = min(max(int(h.Class), 512), largest)
		}
	}
	switch {
	case q.Class != dns.ClassINET:
		return q, dns.RCodeRefused, nil
	case q.Type == dns.TypeAXFR || q.Type == 251: // 251: IXFR
		return q, dns.RCodeRefused, nil
	}
	return q, dns.RCodeSuccess, nil
}

// answer answers a packet from the table of the bridge. It returns nothing for a packet that is dropped, and ask, with no
// answer, for a query to pass on to the host's resolvers.
func (t *table) answer(packet []byte) (reply []byte, ask *query) {
	q, code, err := parse(packet)
	if err != nil {
		return nil, nil
	}
	if code != dns.RCodeSuccess {
		return q.reply(code, false, nil), nil
	}
	name := strings.TrimSuffix(lower(q.Name.String()), ".")
	addrs, known := t.names[name]
	ip, reverse := address(name)
	switch {
	case known:
		return q.reply(dns.RCodeSuccess, !t.isolated, q.addresses(addrs)), nil
	case reverse && t.holds(ip):
		host, known := t.reverse[ip]
		if !known {
			return q.reply(dns.RCodeNameError, !t.isolated, nil), nil
		}
		return q.reply(dns.RCodeSuccess, !t.isolated, q.pointer(host)), nil
	case name == Zone:
		return q.reply(dns.RCodeSuccess, !t.isolated, nil), nil
	// A name without a dot is no name of the Internet's; asking for it would only tell others what nodes look for.
	case strings.HasSuffix(name, "."+Zone) || name != "" && !strings.Contains(name, ".") && (q.Type == dns.TypeA || q.Type == dns.TypeAAAA):
		return q.reply(dns.RCodeNameError, !t.isolated, nil), nil
	case t.isolated:
		return q.reply(dns.RCodeRefused, false, nil), nil
	}
	return nil, &q
}

func (t *table) holds(ip netip.Addr) bool {
	return slices.ContainsFunc(t.prefixes, func(p netip.Prefix) bool { return p.Contains(ip) })
}

func (q *query) addresses(all []netip.Addr) (records []dns.ResourceBody) {
	for _, a := range all {
		switch {
		case a.Is4() && q.Type == dns.TypeA:
			records = append(records, &dns.AResource{A: a.As4()})
		case a.Is6() && q.Type == dns.TypeAAAA:
			records = append(records, &dns.AAAAResource{AAAA: a.As16()})
		}
	}
	return records
}

func (q *query) pointer(host string) []dns.ResourceBody {
	name, err := dns.NewName(host)
	if err != nil || q.Type != dns.TypePTR {
		return nil
	}
	return []dns.ResourceBody{&dns.PTRResource{PTR: name}}
}

// reply builds an answer. Its records live for 0 seconds, because nodes come and go.
func (q *query) reply(code dns.RCode, recursion bool, records []dns.ResourceBody) []byte {
	m := dns.Message{
		Header: dns.Header{
			ID: q.ID, Response: true, OpCode: q.OpCode, RecursionDesired: q.RecursionDesired, RecursionAvailable: recursion,
			Authoritative: code == dns.RCodeSuccess || code == dns.RCodeNameError, CheckingDisabled: q.CheckingDisabled, RCode: code,
		},
		Questions: []dns.Question{q.Question},
	}
	for _, r := range records {
		m.Answers = append(m.Answers, dns.Resource{Header: dns.ResourceHeader{Name: q.Name, Class: dns.ClassINET}, Body: r})
	}
	return q.pack(m)
}

// pack adds an OPT record where the query had one.
func (q *query) pack(m dns.Message) []byte {
	if q.edns {
		opt := dns.Resource{Body: &dns.OPTResource{}}
		if err := opt.Header.SetEDNS0(largest, dns.RCodeSuccess, q.wants); err != nil {
			return nil
		}
		m.Additionals = append(m.Additionals, opt)
	}
	b, err := m.Pack()
	if err != nil {
		return nil
	}
	return b
}

// onward builds the query that the host's resolvers get. Nothing of the node's own packet goes there but what it asks.
func (q *query) onward(id uint16) []byte {
	return q.pack(dns.Message{
		Header: dns.Header{
			ID: id, RecursionDesired: q.RecursionDesired, CheckingDisabled: q.CheckingDisabled, AuthenticData: q.AuthenticData,
		},
		Questions: []dns.Question{q.Question},
	})
}

// cut is an answer that tells the node to ask by TCP.
func (q *query) cut() []byte {
	return q.pack(dns.Message{
		Header:    dns.Header{ID: q.ID, Response: true, Truncated: true, RecursionDesired: q.RecursionDesired, RecursionAvailable: true},
		Questions: []dns.Question{q.Question},
	})
}

// matches reports whether a packet is an answer to the query with this id, and the code of that answer.
func (q *query) matches(packet []byte, id uint16) (code dns.RCode, ok bool) {
	var p dns.Parser
	h, err := p.Start(packet)
	if err != nil || !h.Response || h.ID != id {
		return 0, false
	}
	asked, err := p.Question()
	if err != nil || asked.Type != q.Type || asked.Class != q.Class || lower(asked.Name.String()) != lower(q.Name.String()) {
		return 0, false
	}
	return h.RCode, true
}

// address reads the name of an address in in-addr.arpa or ip6.arpa.
func address(name string) (netip.Addr, bool) {
	if digits, ok := strings.CutSuffix(name, ".in-addr.arpa"); ok {
		parts := strings.Split(digits, ".")
		slices.Reverse(parts)
		a, err := netip.ParseAddr(strings.Join(parts, "."))
		return a, err == nil && a.Is4()
	}
	digits, ok := strings.CutSuffix(name, ".ip6.arpa")
	if !ok || len(digits) != 63 {
		return netip.Addr{}, false
	}
	parts := strings.Split(digits, ".")
	slices.Reverse(parts)
	b, err := hex.DecodeString(strings.Join(parts, ""))
	if err != nil || len(b) != 16 {
		return netip.Addr{}, false
	}
	return netip.AddrFrom16([16]byte(b)), true
}
