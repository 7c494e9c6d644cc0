package nat

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Other tables of nftables (docker's, firewalld's, ufw's) may drop what this table accepts: each base chain of a hook decides
// by itself, and one drop is enough. So their chains are read, and a few packets of a node are led through them.

// Hindrance is a base chain of others that drops packets of nodes.
type Hindrance struct {
	Chain  string   // "chain FORWARD of table ip filter"
	Drops  string   // packets that it drops
	Remedy []string // commands that let them pass
}

// packet is a packet of a node, as far as its properties are known.
type packet struct {
	what             string
	hook             string
	v6               bool
	iif, oif         string // "": any interface but the bridge
	saddr, daddr     netip.Addr
	proto            string // "": not known
	dport            int
	established, nat bool
}

// ruleset is the tables of one listing.
type ruleset struct {
	chains []chain
	rules  map[string][][]json.RawMessage // by family, table and chain
}

func (c chain) key() string { return key(c.Family, c.Table, c.Name) }

func key(family, table, name string) string { return family + " " + table + " " + name }

// readForeign lists the tables of others that have a base chain in a hook where packets of nodes pass.
func readForeign(ctx context.Context, own string) (ruleset, error) {
	r := ruleset{rules: map[string][][]json.RawMessage{}}
	heads, err := list(ctx, "list", "chains")
	if err != nil {
		return r, err
	}
	read := map[string]bool{}
	for _, o := range heads {
		c := o.Chain
		if c == nil || c.Table == own || c.Type != "filter" || c.Hook != "forward" && c.Hook != "input" || read[c.Family+c.Table] ||
			!slices.Contains([]string{"ip", "ip6", "inet"}, c.Family) {
			continue
		}
		read[c.Family+c.Table] = true
		all, err := list(ctx, "-t", "list", "table", c.Family, c.Table)
		if err != nil {
			if absent(err) { // removed meanwhile
				continue
			}
			return r, err
		}
		r.add(all)
	}
	return r, nil
}

func (r *ruleset) add(all []object) {
	for _, o := range all {
		switch {
		case o.Chain != nil:
			r.chains = append(r.chains, *o.Chain)
		case o.Rule != nil:
			k := key(o.Rule.Family, o.Rule.Table, o.Rule.Chain)
			r.rules[k] = append(r.rules[k], o.Rule.Expr)
		}
	}
}

// hindrances returns the base chains that drop packets of the nodes on a bridge. It is pure.
func (r ruleset) hindrances(bridge string, n Network, ports bool) (all []Hindrance) {
	for _, c := range r.chains {
		if c.Type != "filter" || c.Table == bridge {
			continue
		}
		var drops []string
		for _, p := range packets(bridge, n, ports) {
			if p.hook != c.Hook || p.v6 && c.Family == "ip" || !p.v6 && c.Family == "ip6" {
				continue
			}
			if r.base(c, p) == dropped && !slices.Contains(drops, p.what) {
				drops = append(drops, p.what)
			}
		}
		if len(drops) > 0 {
			all = append(all, Hindrance{
				Chain: fmt.Sprintf("chain %s of table %s %s", c.Name, c.Family, c.Table), Drops: strings.Join(drops, ", "), Remedy: r.remedy(c, bridge),
			})
		}
	}
	return all
}

// packets returns the packets that must pass.
func packets(bridge string, n Network, ports bool) (all []packet) {
	for _, p := range []netip.Prefix{n.V4, n.V6} {
		if !p.IsValid() {
			continue
		}
		v6, node := p.Addr().Is6(), at(p, 2).Addr()
		all = append(all,
			packet{what: "what nodes send", hook: "forward", v6: v6, iif: bridge, saddr: node},
			packet{what: "the answers", hook: "forward", v6: v6, oif: bridge, daddr: node, established: true},
			packet{what: "what nodes ask the name server", hook: "input", v6: v6, iif: bridge, saddr: node, daddr: Gateway(p).Addr(), proto: "udp", dport: 53})
		if ports {
			all = append(all, packet{what: "what comes to published ports", hook: "forward", v6: v6, oif: bridge, daddr: node, nat: true})
		}
	}
	return all
}

// remedy returns the commands that let packets of the bridge pass a chain, in the words of the program that made it.
func (r ruleset) remedy(c chain, bridge string) []string {
	has := func(name string) bool {
		return slices.ContainsFunc(r.chains, func(o chain) bool { return o.Family == c.Family && o.Table == c.Table && o.Name == name })
	}
	iptables := map[string]string{"ip": "iptables", "ip6": "ip6tables"}[c.Family]
	if c.Name != strings.ToUpper(c.Name) { // iptables makes INPUT and FORWARD
		iptables = ""
	}
	const dns = " -p udp --dport 53 -j ACCEPT"
	switch {
	case strings.HasPrefix(c.Table, "firewalld"):
		return []string{"firewall-cmd --zone=trusted --add-interface=" + bridge}
	case has("ufw-user-forward") || has("ufw6-user-forward"):
		if c.Hook == "input" {
			return []string{"ufw allow in on " + bridge + " to any port 53"}
		}
		return []string{"ufw route allow in on " + bridge, "ufw route allow out on " + bridge}
	case iptables != "" && c.Hook == "input":
		return []string{iptables + " -I " + c.Name + " -i " + bridge + dns}
	case iptables != "":
		to := c.Name
		if has("DOCKER-USER") {
			to = "DOCKER-USER"
		}
		return []string{iptables + " -I " + to + " -i " + bridge + " -j ACCEPT", iptables + " -I " + to + " -o " + bridge + " -j ACCEPT"}
	}
	rule := fmt.Sprintf("nft insert rule %s %s %s", c.Family, c.Table, c.Name)
	if c.Hook == "input" {
		return []string{fmt.Sprintf("%s iifname %s udp dport 53 accept", rule, bridge)}
	}
	return []string{fmt.Sprintf("%s iifname %s accept", rule, bridge), fmt.Sprintf("%s oifname %s accept", rule, bridge)}
}
