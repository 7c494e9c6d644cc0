package nat

import (
	"context"
	"strings"
	"testing"

	"berth/internal/sys/step"
)

// TestTableMadeAgainIsWhole removes all rules of the host, as nft flush ruleset of a firewall's start does, and starts one more node: the ports of
// the nodes that run lead to them again, but not those of a node that is being stopped.
func TestTableMadeAgainIsWhole(t *testing.T) {
	b := newBed(t)
	n := b.node("8080:80", "8080:80/udp", "[2001:db8::1]:9443:443")
	stopping := b.node("8081:80")
	if err := stopping.live.SetPhase(step.Removing); err != nil {
		t.Fatal(err)
	}
	boot := b.boot
	b.boot = "the one before"
	b.node("8082:80")
	b.boot = boot
	for _, l := range []struct{ network, address string }{{"tcp", ":80"}, {"udp", ":80"}, {"tcp", ":443"}} {
		b.listen(n.ns, l.network, l.address)
	}
	ports := []string{"8080:80", "8080:80/udp", "[2001:db8::1]:9443:443"}
	if text := b.trouble(ports); text != "" {
		t.Errorf("before: %s", text)
	}
	b.sees("a published port", b.near, "tcp", "192.0.2.1:8080", "192.0.2.2")
	b.sh("nft flush ruleset")
	if text := b.trouble(ports); !strings.Contains(text, "table berth-nat of nftables is gone") {
		t.Errorf("without the table: %q", text)
	}
	b.refused("a port without a table", b.near, "udp", "192.0.2.1:8080")
	b.node()
	b.sees("the port", b.near, "tcp", "192.0.2.1:8080", "192.0.2.2")
	b.sees("the port", b.near, "udp", "192.0.2.1:8080", "192.0.2.2")
	b.sees("the port", b.near, "tcp", "[2001:db8::1]:9443", "2001:db8::2")
	if text := b.trouble(ports); text != "" {
		t.Errorf("after the next start: %s", text)
	}
	if text := b.trouble([]string{"8081:80"}); !strings.Contains(text, "port 8081:80 leads nowhere") {
		t.Errorf("the port of a node that is being stopped: %q", text)
	}
	if text := b.trouble([]string{"8082:80"}); !strings.Contains(text, "port 8082:80 leads nowhere") {
		t.Errorf("the port of a node of another boot: %q", text)
	}
	b.sh("nft delete element inet berth-nat any4 { tcp . 8080 }")
	if text := b.trouble(ports); !strings.Contains(text, "port 8080:80 leads nowhere") {
		t.Errorf("with one port less: %q", text)
	}
}

// trouble is what a look at the table tells of a network with these ports.
func (b *bed) trouble(ports []string) string {
	b.Helper()
	table, err := ReadTable(context.Background(), b.Bridge)
	if err != nil {
		b.Fatal(err)
	}
	return table.Trouble(ports)
}

// TestWhatNFTSays: what nft refuses is told in its words.
func TestWhatNFTSays(t *testing.T) {
	newBed(t)
	if err := apply(t.Context(), "add chain inet berth-none c\n"); err == nil || !strings.HasPrefix(err.Error(), "nft: ") || !absent(err) {
		t.Errorf("a chain of no table: %v", err)
	}
}
