package nat

import (
	"encoding/json"
	"net/netip"
	"strconv"
	"strings"
)

// verdict says what happens to a packet.
type verdict int

const (
	goesOn verdict = iota // the next rule decides
	accepted
	dropped
	returned
)

// maybe is the truth of a condition on properties of which some are not known.
type maybe int

const (
	no maybe = iota
	perhaps
	yes
)

// base returns the verdict of a base chain on a packet. A rule whose conditions are not known to hold does nothing: a packet
// is dropped only if a rule for all such packets, or the policy, drops it.
func (r ruleset) base(c chain, p packet) verdict {
	if v := r.chain(c.key(), c, p, 0); v == accepted || v == dropped {
		return v
	}
	if c.Policy == "drop" {
		return dropped
	}
	return accepted
}

// deepest is how many jumps are followed; the kernel allows 16.
const deepest = 16

func (r ruleset) chain(name string, c chain, p packet, depth int) verdict {
	if depth > deepest {
		return goesOn
	}
	for _, rule := range r.rules[name] {
		switch v := r.rule(rule, c, p, depth); v {
		case goesOn:
		case returned:
			return goesOn
		default:
			return v
		}
	}
	return goesOn
}

// expr is one expression of a rule; exactly one key is set.
type expr map[string]json.RawMessage

// rule returns the verdict of one rule on a packet.
func (r ruleset) rule(exprs []json.RawMessage, c chain, p packet, depth int) verdict {
	holds := yes
	for _, raw := range exprs {
		var e expr
		if json.Unmarshal(raw, &e) != nil {
			return goesOn // an expression that this version does not know: the rule counts as one that does nothing
		}
		for kind, value := range e {
			switch kind {
			case "match":
				holds = min(holds, p.matches(value))
			case "xt":
				var x struct{ Type, Name string }
				if json.Unmarshal(value, &x) != nil {
					return goesOn
				}
				switch {
				case x.Type == "match" && x.Name == "conntrack" && p.established: // nearly always: established, related
				case x.Type == "match":
					holds = min(holds, perhaps)
				case x.Name == "REJECT" || x.Name == "DROP":
					return when(holds, dropped)
				}
			case "accept", "drop", "reject", "return", "queue", "jump", "goto":
				return when(holds, r.follow(kind, value, c, p, depth))
			case "vmap":
				return when(holds, r.vmap(value, c, p, depth))
			}
			if holds == no {
				return goesOn
			}
		}
	}
	return goesOn
}

// when returns a verdict that counts only if its rule is known to match.
func when(holds maybe, v verdict) verdict {
	if holds == yes {
		return v
	}
	return goesOn
}

// follow returns the outcome of a rule's verdict.
func (r ruleset) follow(kind string, value json.RawMessage, c chain, p packet, depth int) verdict {
	switch kind {
	case "accept", "queue":
		return accepted
	case "drop", "reject":
		return dropped
	case "return":
		return returned
	}
	var to struct{ Target string }
	if json.Unmarshal(value, &to) != nil {
		return goesOn
	}
	v := r.chain(key(c.Family, c.Table, to.Target), c, p, depth+1)
	if kind == "goto" && v == goesOn {
		return returned
	}
	return v
}

// vmap returns the verdict of a map of verdicts on a packet.
func (r ruleset) vmap(value json.RawMessage, c chain, p packet, depth int) verdict {
	var m struct {
		Key  json.RawMessage
		Data struct{ Set [][2]json.RawMessage }
	}
	if json.Unmarshal(value, &m) != nil {
		return goesOn
	}
	for _, e := range m.Data.Set {
		var v expr
		if p.equals(m.Key, e[0]) != yes || json.Unmarshal(e[1], &v) != nil {
			continue
		}
		for kind, value := range v {
			return r.follow(kind, value, c, p, depth)
		}
	}
	return goesOn
}

// matches reports whether a condition holds.
func (p packet) matches(value json.RawMessage) maybe {
	var m struct {
		Op          string
		Left, Right json.RawMessage
	}
	if json.Unmarshal(value, &m) != nil {
		return perhaps
	}
	is := p.equals(m.Left, m.Right)
	switch m.Op {
	case "==", "in":
		return is
	case "!=":
		return yes - is
	}
	return perhaps
}

// equals compares a property of the packet with a value, or with several.
func (p packet) equals(left, right json.RawMessage) maybe {
	has, known := p.property(left)
	if !known {
		return perhaps
	}
	if len(has) == 0 {
		return no
	}
	var some []json.RawMessage
	var set struct{ Set []json.RawMessage }
	switch {
	case json.Unmarshal(right, &some) == nil:
	case json.Unmarshal(right, &set) == nil && set.Set != nil:
		some = set.Set
	default:
		some = []json.RawMessage{right}
	}
	best := no
	for _, one := range some {
		for _, h := range has {
			best = max(best, is(h, one))
		}
	}
	return best
}

// property returns the values that a property of the packet has. It is not known if ok is false.
func (p packet) property(left json.RawMessage) (values []string, ok bool) {
	var l struct {
		Meta, CT struct{ Key string }
		Payload  struct{ Protocol, Field string }
		FIB      struct {
			Result string
			Flags  json.RawMessage
		}
	}
	if json.Unmarshal(left, &l) != nil {
		return nil, false
	}
	ip, proto := "ip", "ipv4"
	if p.v6 {
		ip, proto = "ip6", "ipv6"
	}
	switch l.Meta.Key + l.CT.Key {
	case "iifname", "iif":
		return named(p.iif), true
	case "oifname", "oif":
		return named(p.oif), true
	case "nfproto":
		return []string{proto}, true
	case "protocol":
		return []string{ip}, true
	case "l4proto":
		return named(p.proto), p.proto != ""
	case "state":
		if p.established {
			return []string{"established"}, true
		}
		return []string{"new"}, true
	case "status":
		return named(map[bool]string{true: "dnat"}[p.nat]), !p.established
	}
	if l.FIB.Result == "type" && strings.Trim(string(l.FIB.Flags), `[]" `) == "daddr" {
		return []string{map[string]string{"input": "local", "forward": "unicast"}[p.hook]}, true
	}
	switch l.Payload.Protocol {
	case "ip", "ip6":
		if l.Payload.Protocol != ip {
			return nil, true
		}
		addr := map[string]netip.Addr{"saddr": p.saddr, "daddr": p.daddr}[l.Payload.Field]
		return []string{addr.String()}, addr.IsValid()
	case "tcp", "udp", "th":
		if l.Payload.Protocol != p.proto && l.Payload.Protocol != "th" {
			return nil, p.proto != ""
		}
		return []string{strconv.Itoa(p.dport)}, l.Payload.Field == "dport" && p.proto != ""
	}
	return nil, false
}

// otherLink stands for an interface that is not the bridge, and whose name is not known.
const otherLink = "\x00"

func named(s string) []string {
	if s == "" {
		return []string{otherLink}
	}
	return []string{s}
}

// is compares a value of the packet with one of a rule: a word, a number, a name of a link that ends with *, a prefix or a
// range.
func is(has string, want json.RawMessage) maybe {
	var text string
	var number json.Number
	var other struct {
		Prefix *struct {
			Addr string
			Len  int
		}
		Range []json.Number
	}
	switch {
	case json.Unmarshal(want, &text) == nil:
		pattern, many := strings.CutSuffix(text, "*")
		switch {
		case strings.HasPrefix(text, "@"):
			return perhaps
		case has == otherLink && text == "lo":
			return no
		case has == otherLink:
			return perhaps
		case text == has || many && strings.HasPrefix(has, pattern):
			return yes
		}
		return no
	case json.Unmarshal(want, &number) == nil:
		return truth(number.String() == has)
	case json.Unmarshal(want, &other) != nil:
		return perhaps
	}
	if other.Prefix != nil {
		addr, err := netip.ParseAddr(has)
		of, err2 := netip.ParseAddr(other.Prefix.Addr)
		if err != nil || err2 != nil {
			return perhaps
		}
		return truth(netip.PrefixFrom(of, other.Prefix.Len).Contains(addr))
	}
	n, err := strconv.Atoi(has)
	if len(other.Range) != 2 || err != nil {
		return perhaps
	}
	low, err := other.Range[0].Int64()
	high, err2 := other.Range[1].Int64()
	if err != nil || err2 != nil {
		return perhaps
	}
	return truth(low <= int64(n) && int64(n) <= high)
}

func truth(b bool) maybe {
	if b {
		return yes
	}
	return no
}
