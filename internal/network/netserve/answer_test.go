package netserve

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	dns "golang.org/x/net/dns/dnsmessage"
)

var lan = Bridge{
	Name: "br", At: []netip.Addr{netip.MustParseAddr("10.9.0.1")},
	Prefixes: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/24"), netip.MustParsePrefix("fd00:9::/64")},
}

func entry(node string, names string, addresses ...string) *Entry {
	n := Named{Bridge: lan, Names: strings.Fields(node + " " + names)}
	for _, a := range addresses {
		n.Addresses = append(n.Addresses, netip.MustParseAddr(a))
	}
	return &Entry{Node: node, Names: []Named{n}}
}

func known() *table {
	nodes := map[string]*Entry{}
	for _, e := range []*Entry{
		entry("web", "www.example.org www", "10.9.0.2", "fd00:9::2"),
		entry("DB", "", "10.9.0.3"),
		entry("thief", "db www", "10.9.0.66"),
		entry("localhost", "", "10.9.0.4"),
	} {
		nodes[e.Node] = e
	}
	return tables(nodes)["br"]
}

func question(t testing.TB, name string, kind dns.Type, change func(*dns.Message)) []byte {
	t.Helper()
	m := dns.Message{
		Header:    dns.Header{ID: 7, RecursionDesired: true},
		Questions: []dns.Question{{Name: dns.MustNewName(name), Type: kind, Class: dns.ClassINET}},
	}
	if change != nil {
		change(&m)
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// said is an answer as text: its code, and its records.
func said(t testing.TB, b []byte) string {
	t.Helper()
	if b == nil {
		return "nothing"
	}
	var m dns.Message
	if err := m.Unpack(b); err != nil {
		t.Fatalf("the answer cannot be read: %v", err)
	}
	if !m.Response || m.ID != 7 {
		t.Errorf("not an answer to this query: %+v", m.Header)
	}
	s := strings.TrimPrefix(m.RCode.String(), "RCode")
	for _, a := range m.Answers {
		switch r := a.Body.(type) {
		case *dns.AResource:
			s += " " + netip.AddrFrom4(r.A).String()
		case *dns.AAAAResource:
			s += " " + netip.AddrFrom16(r.AAAA).String()
		case *dns.PTRResource:
			s += " " + r.PTR.String()
		}
		if a.Header.TTL != 0 {
			s += " to be kept"
		}
	}
	return s
}

func TestAnswer(t *testing.T) {
	for _, c := range []struct {
		name string
		kind dns.Type
		want string
	}{
		{"web.", dns.TypeA, "Success 10.9.0.2"},
		{"WeB.berth.", dns.TypeAAAA, "Success fd00:9::2"},
		{"www.example.org.", dns.TypeA, "Success 10.9.0.2"},
		{"www.", dns.TypeA, "Success 10.9.0.66 10.9.0.2"}, // a host name is no claim: both have it
		{"db.", dns.TypeA, "Success 10.9.0.3"},            // a node's own name is
		{"db.berth.", dns.TypeAAAA, "Success"},
		{"localhost.", dns.TypeA, "NameError"}, // the loopback address is in everybody's hosts file
		{"localhost.berth.", dns.TypeA, "Success 10.9.0.4"},
		{"web.", dns.TypeMX, "Success"},
		{"gone.", dns.TypeA, "NameError"},
		{"gone.berth.", dns.TypeTXT, "NameError"},
		{"berth.", dns.TypeSOA, "Success"},
		{"2.0.9.10.in-addr.arpa.", dns.TypePTR, "Success web.berth."},
		{"9.0.9.10.in-addr.arpa.", dns.TypePTR, "NameError"},
		{"2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.9.0.0.0.0.0.d.f.ip6.arpa.", dns.TypePTR, "Success web.berth."},
		{"1.2.0.192.in-addr.arpa.", dns.TypePTR, "asks on"},
		{"example.org.", dns.TypeA, "asks on"},
		{"notberth.", dns.TypeNS, "asks on"},
		{".", dns.TypeNS, "asks on"},
		{"example.org.", dns.TypeAXFR, "Refused"},
	} {
		reply, ask := known().answer(question(t, c.name, c.kind, nil))
		got := said(t, reply)
		if ask != nil {
			got = "asks on"
		}
		if got != c.want {
			t.Errorf("%s %v: %s, want %s", c.name, c.kind, got, c.want)
		}
	}
	alone := known()
	alone.isolated = true
	for name, want := range map[string]string{"web.": "Success 10.9.0.2", "gone.berth.": "NameError", "example.org.": "Refused"} {
		if reply, ask := alone.answer(question(t, name, dns.TypeA, nil)); ask != nil || said(t, reply) != want {
			t.Errorf("a bridge without a way out: %s: %s, want %s", name, said(t, reply), want)
		}
	}
}

// TestBadQueries gives what no resolver of a node's sends.
func TestBadQueries(t *testing.T) {
	for _, c := range []struct {
		what, want string
		change     func(*dns.Message)
	}{
		{"an answer", "nothing", func(m *dns.Message) { m.Response = true }},
		{"no question", "nothing", func(m *dns.Message) { m.Questions = nil }},
		{"two questions", "FormatError", func(m *dns.Message) { m.Questions = append(m.Questions, m.Questions[0]) }},
		{"an update", "NotImplemented", func(m *dns.Message) { m.OpCode = 5 }},
		{"CHAOS", "Refused", func(m *dns.Message) { m.Questions[0].Class = dns.ClassCHAOS }},
	} {
		if reply, ask := known().answer(question(t, "web.", dns.TypeA, c.change)); ask != nil || said(t, reply) != c.want {
			t.Errorf("%s: %s, want %s", c.what, said(t, reply), c.want)
		}
	}
}

// TestEDNS: an answer has an OPT record where the query has one, and what goes to the host's resolvers has a bounded size.
func TestEDNS(t *testing.T) {
	opt := func(m *dns.Message) {
		h := dns.ResourceHeader{}
		if err := h.SetEDNS0(65000, dns.RCodeSuccess, true); err != nil {
			t.Fatal(err)
		}
		m.Additionals = append(m.Additionals, dns.Resource{Header: h, Body: &dns.OPTResource{Options: []dns.Option{{Code: 8, Data: []byte("who asks")}}}})
	}
	reply, _ := known().answer(question(t, "web.", dns.TypeA, opt))
	_, ask := known().answer(question(t, "example.org.", dns.TypeA, opt))
	for what, b := range map[string][]byte{"the answer": reply, "the query": ask.onward(9)} {
		var m dns.Message
		if err := m.Unpack(b); err != nil {
			t.Fatal(err)
		}
		if len(m.Additionals) != 1 || m.Additionals[0].Header.Class != largest || len(m.Additionals[0].Body.(*dns.OPTResource).Options) != 0 {
			t.Errorf("%s has %+v", what, m.Additionals)
		}
	}
}

func TestNameservers(t *testing.T) {
	got := fmt.Sprint(nameservers("# x\nnameserver 127.0.0.53\nnameserver fe80::1%eth0\nnameserver what\noptions edns0\nnameserver 192.0.2.1\nnameserver 192.0.2.2\n"))
	if d := cmp.Diff("[127.0.0.53:53 [fe80::1%eth0]:53 192.0.2.1:53]", got); d != "" {
		t.Error(d)
	}
	if got := fmt.Sprint(nameservers("search example.org\n")); got != "[127.0.0.1:53]" {
		t.Error(got)
	}
}

// FuzzAnswer: a packet of a hostile node is answered with at most one well-formed answer that is not much larger, or asks the
// host's resolvers one well-formed question.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte{})
	f.Add(question(f, "web.", dns.TypeA, nil))
	f.Add(question(f, "example.org.", dns.TypeAAAA, nil))
	f.Add(question(f, "2.0.9.10.in-addr.arpa.", dns.TypePTR, nil))
	f.Add(append(question(f, "web.", dns.TypeA, nil), 0xc0, 0x0c, 0xff, 0xff))
	t := known()
	f.Fuzz(func(tt *testing.T, packet []byte) {
		reply, ask := t.answer(packet)
		if reply != nil && ask != nil {
			tt.Fatal("answered and asked on")
		}
		if ask != nil {
			reply = ask.onward(1)
			if code, ok := ask.matches(ask.reply(dns.RCodeSuccess, true, nil), ask.ID); !ok || code != dns.RCodeSuccess {
				tt.Fatal("an answer to the query does not match it")
			}
		}
		var m dns.Message
		if reply == nil {
			return
		}
		if err := m.Unpack(reply); err != nil || len(m.Questions) != 1 {
			tt.Fatalf("not well formed: %v", err)
		}
		if len(reply) > 512 {
			tt.Fatalf("%d bytes", len(reply))
		}
	})
}
