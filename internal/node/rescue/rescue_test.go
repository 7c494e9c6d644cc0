package rescue

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/host"
	"berth/internal/network/address"
	"berth/internal/network/link"
	"berth/internal/network/nat"
	"berth/internal/node/records"
	"berth/internal/storage/scratch"
	"berth/internal/sys/layout"
	"berth/internal/sys/step"
)

// TestRestore: an empty record of a pool, and an empty site id, are written anew as the journals of nodes have them; without a node
// that has them they stay, with an error that says what to do.
func TestRestore(t *testing.T) {
	nodes := records.Nodes{Layout: layout.New(t.TempDir()), Host: host.Host{Proc: t.TempDir(), Sys: t.TempDir()}, Kinds: step.Join(link.Kinds(), scratch.Kinds())}
	write := func(path, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	pool, other := filepath.Join(nodes.Layout.Scratch(), "p.json"), filepath.Join(nodes.Layout.Scratch(), "other.json")
	write(pool, "")
	write(other, "")
	write(nodes.Layout.SiteID(), "")
	if did, err := Records(t.Context(), nodes, nil); len(did) > 0 || !errors.Is(err, address.ErrNoSiteID) || !strings.Contains(err.Error(), nodes.Layout.SiteID()) {
		t.Errorf("without a node: %v, %v", did, err)
	}
	record := scratch.Pool{Name: "p", ID: "0a0b0c0d", Dir: "/srv"}
	volume, err := json.Marshal(&scratch.Volume{Pools: nodes.Layout.Scratch(), Pool: record, Node: "n", Target: "/x"})
	if err != nil {
		t.Fatal(err)
	}
	lib, run := nodes.Layout.NAT()
	network := nat.Network{V4: netip.MustParsePrefix("10.210.0.0/22")}
	claim, err := json.Marshal(&nat.ClaimAddress{Places: nat.Places{Lib: lib, Run: run}, Node: "n", If: "eth1", Network: network, V4: netip.MustParseAddr("10.210.0.2")})
	if err != nil {
		t.Fatal(err)
	}
	write(filepath.Join(lib, "network"), "")
	write(nodes.Layout.Node("n").Claims(), `{"berth":3,"boot":"before","node":"n"}
{"begin":0,"kind":"link.claim-mac","step":{"site_id":"the site","node":"n","ifname":"eth0","mac":"02:00:00:00:00:01"}}
{"done":0}
`+fmt.Sprintf(`{"begin":1,"kind":"nat.claim-address","step":%s}`, claim)+`
{"done":1}
`+fmt.Sprintf(`{"begin":2,"kind":"scratch.volume","step":%s}`, volume)+`
{"done":2}
{"phase":"up"}
`)
	did, err := Records(t.Context(), nodes, []string{"n"})
	if err != nil || len(did) != 2 || !strings.Contains(did[0], "scratch pool p anew") || !strings.Contains(did[1], "mode nat anew") {
		t.Errorf("did %v, %v", did, err)
	}
	var stored nat.Network
	if text, err := os.ReadFile(filepath.Join(lib, "network")); err != nil || json.Unmarshal(text, &stored) != nil || stored != network {
		t.Errorf("the network is %+v, %v", stored, err)
	}
	if id, err := address.SiteID(nodes.Layout); id != "the site" || err != nil {
		t.Errorf("the site's id is %q, %v", id, err)
	}
	pools := scratch.Pools{Dir: nodes.Layout.Scratch()}
	if p, err := pools.Get("p"); p != record || err != nil {
		t.Errorf("the pool is %+v, %v", p, err)
	}
	listed, err := pools.List(t.Context())
	if err != nil || len(listed) != 2 || listed[0].Name != "other" || !strings.Contains(listed[0].Trouble, other) {
		t.Errorf("listed are %+v, %v", listed, err)
	}
}
