package nat

import (
	"context"
	"encoding/json"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/sys/refuse"
)

// The rules in testdata were listed on hosts where the real programs had made them, from Debian 12: dockerd 20.10.24 (with
// ip6tables), firewalld 1.3.3 with an interface in zone public, and ufw 0.36.2, switched on. "pasted" are those after the
// commands that Berth's message names. nft cannot load the matches of iptables that it does not translate ("xt match icmp6" in
// ufw's rules about neighbour discovery): they are taken out.

// TestForeignFirewalls checks for each of them that it blocks a node's traffic, that Berth refuses the node with the lines to
// paste, that the traffic passes after them, and that the rules are the same before, while and after a node runs.
func TestForeignFirewalls(t *testing.T) {
	for name, c := range map[string]struct {
		paste   []string
		effect  string // what the pasted lines do, where their program is not at hand
		blocked bool   // published ports are blocked too
	}{
		"docker": {paste: []string{
			"iptables -I DOCKER-USER -i berth-nat -j ACCEPT", "iptables -I DOCKER-USER -o berth-nat -j ACCEPT",
			"ip6tables -I FORWARD -i berth-nat -j ACCEPT", "ip6tables -I FORWARD -o berth-nat -j ACCEPT",
		}, effect: "nft insert rule ip filter DOCKER-USER iifname berth-nat counter accept; nft insert rule ip filter DOCKER-USER oifname berth-nat counter accept; " +
			"nft insert rule ip6 filter FORWARD iifname berth-nat counter accept; nft insert rule ip6 filter FORWARD oifname berth-nat counter accept", blocked: true},
		"firewalld": {paste: []string{"firewall-cmd --zone=trusted --add-interface=berth-nat"}, effect: "nft flush ruleset; nft -f testdata/firewalld-pasted.nft"},
		"ufw": {
			paste:  []string{"ufw allow in on berth-nat to any port 53", "ufw route allow in on berth-nat", "ufw route allow out on berth-nat"},
			effect: "nft flush ruleset; nft -f testdata/ufw-pasted.nft", blocked: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.sh("nft -f testdata/" + name + ".nft")
			before := b.rules()
			facts, err := b.ReadFacts(context.Background(), "n1", published("8080:80"), false)
			if err != nil {
				t.Fatal(err)
			}
			err = facts.Check(published("8080:80"))
			if refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), strings.Join(c.paste, " && ")) {
				t.Errorf("refused with %v, not with the lines %q", err, c.paste)
			}

			n := b.node("8080:80")
			b.listen(n.ns, "tcp", ":80")
			b.listen(b.near, "tcp", ":99")
			b.refused("a node reaches outside", n.ns, "tcp", "192.0.2.2:99")
			b.refused("a node reaches outside", n.ns, "tcp", "[2001:db8::2]:99")
			if c.blocked {
				b.refused("outside reaches a published port", b.near, "tcp", "192.0.2.1:8080")
			}
			if diff := cmp.Diff(before, b.rules()); diff != "" {
				t.Errorf("its rules while a node runs (-before +now):\n%s", diff)
			}
			b.undo()
			b.sh("ip link del berth-n1")
			if diff := cmp.Diff(before, b.sh("nft -s list ruleset")); diff != "" {
				t.Errorf("all rules after the node (-before +now):\n%s", diff)
			}

			effect := c.effect
			if _, err := exec.LookPath("iptables-nft"); err == nil && name == "docker" {
				effect = strings.ReplaceAll(strings.Join(c.paste, "; "), "tables ", "tables-nft ")
			}
			b.sh(effect)
			before = b.rules()
			if facts, err = b.ReadFacts(context.Background(), "n2", published("8080:80"), false); err != nil || len(facts.Hinders) > 0 {
				t.Fatalf("after the pasted lines: %v, %v", facts.Hinders, err)
			}
			n = b.node("8080:80")
			b.listen(n.ns, "tcp", ":80")
			b.listen(nil, "udp", Gateway(b.theNetwork.V4).Addr().String()+":53")
			b.sees("a node reaches outside", n.ns, "tcp", "192.0.2.2:99", "192.0.2.1")
			b.sees("a node reaches outside", n.ns, "tcp", "[2001:db8::2]:99", "2001:db8::1")
			b.sees("outside reaches a published port", b.near, "tcp", "192.0.2.1:8080", "192.0.2.2")
			b.sees("outside reaches a published port", b.near, "tcp", "[2001:db8::1]:8080", "2001:db8::2")
			b.sees("names are served", n.ns, "udp", Gateway(b.theNetwork.V4).Addr().String()+":53", n.v4.String())
			if diff := cmp.Diff(before, b.rules()); diff != "" {
				t.Errorf("its rules while a node runs (-before +now):\n%s", diff)
			}
			b.undo()
			if diff := cmp.Diff(before, b.sh("nft -s list ruleset")); diff != "" {
				t.Errorf("all rules after the node (-before +now):\n%s", diff)
			}
		})
	}
}

// TestVerdictMaps: rules of others may look up the verdict in a map.
func TestVerdictMaps(t *testing.T) {
	c := chain{Family: "inet", Table: "t", Name: "forward", Type: "filter", Hook: "forward", Policy: "accept"}
	n := Network{V4: netip.MustParsePrefix("10.88.0.0/16")}
	for _, tc := range []struct {
		rule  string // the first rule of the chain
		drops string
	}{
		{`{"vmap": {"key": {"meta": {"key": "iifname"}}, "data": {"set": [["eth7", {"drop": null}], ["br", {"drop": null}]]}}}`, "what nodes send"},
		{`{"vmap": {"key": {"meta": {"key": "iifname"}}, "data": {"set": [["br", {"accept": null}]]}}}`, ""},
		{`{"vmap": {"key": {"meta": {"key": "oifname"}}, "data": {"set": [["br", {"jump": {"target": "others"}}]]}}}`, "the answers"},
		{`{"vmap": {"key": {"ct": {"key": "state"}}, "data": {"set": [["established", {"accept": null}], ["new", {"goto": {"target": "others"}}]]}}}`, "what nodes send"},
		{`{"vmap": {"key": {"meta": {"key": "mark"}}, "data": {"set": [[1, {"drop": null}]]}}}`, ""},
		{`{"vmap": {"key": 7, "data": "@verdicts"}}`, ""},
	} {
		r := ruleset{chains: []chain{c}, rules: map[string][][]json.RawMessage{
			c.key(): {{json.RawMessage(tc.rule)}}, key("inet", "t", "others"): {{json.RawMessage(`{"drop": null}`)}},
		}}
		drops := ""
		for _, h := range r.hindrances("br", n, false) {
			drops += h.Drops
		}
		if drops != tc.drops {
			t.Errorf("%s drops %q, want %q", tc.rule, drops, tc.drops)
		}
	}
}
