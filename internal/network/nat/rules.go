package nat

import (
	"context"
	"fmt"
	"strings"
)

// table returns the script that makes the table of a root, or brings it to this state. Published ports stay.
//
// Everything that Berth filters is about its bridge, and passes on what else the host forwards: an accept of this table ends
// only this table, a drop ends the packet.
func table(bridge string, n Network, lent []string) string {
	var s script
	gw4 := Gateway(n.V4).Addr()
	s.chain("prerouting", "type nat hook prerouting priority -100; policy accept;")
	s.chain("output", "type nat hook output priority -100; policy accept;")
	s.chain("postrouting", "type nat hook postrouting priority 100; policy accept;")
	s.chain("input", "type filter hook input priority 0; policy accept;")
	s.chain("forward", "type filter hook forward priority 0; policy accept;")
	s.chain("publish", "")
	s.chain("host", "")
	s.chain("from", "")
	s.chain("to", "")
	s.maps = append(s.maps,
		"map any4 { type inet_proto . inet_service : ipv4_addr . inet_service; }",
		"map one4 { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service; }",
		"map any6 { type inet_proto . inet_service : ipv6_addr . inet_service; }",
		"map one6 { type ipv6_addr . inet_proto . inet_service : ipv6_addr . inet_service; }")

	// Names and relays are served on the bridge's own address: no published port covers it.
	s.rule("prerouting", "ip daddr %s return", gw4)
	s.rule("output", "ip daddr { 127.0.0.0/8, %s } return", gw4)
	s.rule("publish", "dnat ip to ip daddr . meta l4proto . th dport map @one4")
	s.rule("publish", "meta nfproto ipv4 dnat ip to meta l4proto . th dport map @any4")
	s.rule("postrouting", "ip saddr %s oifname != %q masquerade", n.V4, bridge)
	// A node reaches a port that another node publishes: the answer must come back through the host.
	s.rule("postrouting", "ip saddr %s oifname %q ct status dnat masquerade", n.V4, bridge)
	s.rule("input", "iifname %q jump host", bridge)
	s.rule("host", "ct state established,related accept")
	s.rule("host", "ip daddr %s meta l4proto { tcp, udp } th dport 53 accept", gw4)
	s.rule("forward", "iifname %q jump from", bridge)
	s.rule("forward", "oifname %q jump to", bridge)
	s.rule("from", "ip daddr 169.254.0.0/16 reject with icmpx admin-prohibited")
	if n.V6.IsValid() {
		gw6 := Gateway(n.V6).Addr()
		s.rule("prerouting", "ip6 daddr %s return", gw6)
		s.rule("output", "ip6 daddr { ::1, %s } return", gw6)
		s.rule("publish", "dnat ip6 to ip6 daddr . meta l4proto . th dport map @one6")
		s.rule("publish", "meta nfproto ipv6 dnat ip6 to meta l4proto . th dport map @any6")
		s.rule("postrouting", "ip6 saddr %s oifname != %q masquerade", n.V6, bridge)
		s.rule("postrouting", "ip6 saddr %s oifname %q ct status dnat masquerade", n.V6, bridge)
		s.rule("host", "ip6 daddr %s meta l4proto { tcp, udp } th dport 53 accept", gw6)
		s.rule("host", "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept")
		// The metadata services of Amazon and Google.
		s.rule("from", "ip6 daddr { fe80::/10, fd00:ec2::254, fd20:ce::254 } reject with icmpx admin-prohibited")
	}
	s.rule("prerouting", "fib daddr type local jump publish")
	s.rule("output", "fib daddr type local jump publish")
	s.rule("host", "reject with icmpx admin-prohibited")
	s.rule("from", "accept")
	s.rule("to", "ct state established,related accept")
	s.rule("to", "ct status dnat accept")
	s.rule("to", "drop")
	// Where Berth let the host forward, it forwards for nodes, and is no router for its neighbours. Published ports and
	// answers of other engines pass.
	for _, dev := range lent {
		s.rule("forward", "iifname %q oifname != { %q, %q } ct state new ct status ! dnat drop", dev, dev, bridge)
	}
	return s.text(bridge)
}

// script is a table in the making.
type script struct {
	chains []string
	heads  map[string]string
	rules  map[string][]string
	maps   []string
}

func (s *script) chain(name, head string) {
	if s.heads == nil {
		s.heads, s.rules = map[string]string{}, map[string][]string{}
	}
	s.chains = append(s.chains, name)
	s.heads[name] = head
}

func (s *script) rule(chain, format string, a ...any) {
	s.rules[chain] = append(s.rules[chain], fmt.Sprintf(format, a...))
}

// text returns the script. In one transaction it adds what is missing, empties the chains, and fills them.
func (s *script) text(name string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "table %s %s {\n", family, name)
	for _, m := range s.maps {
		fmt.Fprintf(&b, "\t%s\n", m)
	}
	for _, c := range s.chains {
		fmt.Fprintf(&b, "\tchain %s { %s }\n", c, s.heads[c])
	}
	b.WriteString("}\n")
	for _, c := range s.chains {
		fmt.Fprintf(&b, "flush chain %s %s %s\n", family, name, c)
	}
	fmt.Fprintf(&b, "table %s %s {\n", family, name)
	for _, c := range s.chains {
		fmt.Fprintf(&b, "\tchain %s {\n", c)
		for _, r := range s.rules[c] {
			fmt.Fprintf(&b, "\t\t%s\n", r)
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}\n")
	return b.String()
}

// count returns how many rules a table of nft's listing has.
func count(ctx context.Context, name string) (int, error) {
	all, err := list(ctx, "-t", "list", "table", family, name)
	n := 0
	for _, o := range all {
		if o.Rule != nil {
			n++
		}
	}
	return n, err
}

// removeTable removes the table. A table that is not there is no error.
func removeTable(ctx context.Context, name string) error {
	if err := apply(ctx, fmt.Sprintf("delete table %s %s\n", family, name)); err != nil && !absent(err) {
		return fmt.Errorf("remove table %s: %w", name, err)
	}
	return nil
}

// ruleCount is how many rules the table of a root has at least.
func ruleCount(bridge string, n Network) int {
	return strings.Count(table(bridge, n, nil), "\n\t\t")
}
