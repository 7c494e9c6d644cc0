package address_test

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/host/membership"
	"berth/internal/network/address"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// agent is a host's agent of a site in which other nodes have some MACs. It notes what it is asked.
func agent(t *testing.T, taken map[string]bool) (a *membership.Agent, asked func() []string) {
	t.Helper()
	dir := testkit.Dir(t, "") // short enough for a socket
	a = &membership.Agent{Host: "a", Socket: filepath.Join(dir, "s"), Owed: filepath.Join(dir, "owed")}
	l, err := net.Listen("unix", a.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	var lock sync.Mutex
	var requests []string
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			var r membership.Request
			if err := json.NewDecoder(c).Decode(&r); err == nil {
				answer := membership.Answer{}
				lock.Lock()
				requests = append(requests, r.Do+" "+r.Things[0].Value)
				lock.Unlock()
				if r.Do == "claim" && taken[r.Things[0].Value] {
					answer = membership.Answer{Taken: &r.Things[0], By: &membership.Holder{Host: "b", Node: "n9", Since: time.Now()}}
				}
				_ = json.NewEncoder(c).Encode(answer)
			}
			c.Close()
		}
	}()
	return a, func() []string {
		lock.Lock()
		defer lock.Unlock()
		return slices.Clone(requests)
	}
}

// TestMACsOfTheSite: a derived MAC that another node of the site has is passed over, and what was claimed is given up with it.
func TestMACsOfTheSite(t *testing.T) {
	dir := t.TempDir()
	c := &address.ClaimMAC{Dir: filepath.Join(dir, "macs"), Lock: filepath.Join(dir, "lock"), SiteID: "s", Node: "n1", If: "eth0", Auto: true}
	derived := c.Derived()
	a, asked := agent(t, map[string]bool{derived[0].String(): true, derived[1].String(): true})
	c.Site = a
	if err := c.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c.MAC != derived[2] {
		t.Errorf("claimed %s, want the third of %v", c.MAC, derived[:3])
	}
	want := []string{"claim " + derived[0].String(), "claim " + derived[1].String(), "claim " + derived[2].String()}
	if diff := cmp.Diff(want, asked()); diff != "" {
		t.Error(diff)
	}
	if err := c.Undo(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := asked(); len(got) != 4 || got[3] != "release "+derived[0].String() { // and all others: a killed Do may have claimed any
		t.Errorf("asked %v", got)
	}
}

// TestMACsWithoutTheSite: without an agent nothing is claimed on the host either.
func TestMACsWithoutTheSite(t *testing.T) {
	dir := t.TempDir()
	c := &address.ClaimMAC{
		Dir: filepath.Join(dir, "macs"), Lock: filepath.Join(dir, "lock"), SiteID: "s", Node: "n1", If: "eth0", Auto: true,
		Site: &membership.Agent{Host: "a", Socket: filepath.Join(dir, "none"), Owed: filepath.Join(dir, "owed")},
	}
	if err := c.Do(t.Context()); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("without an agent: %v", err)
	}
	if claims, err := os.ReadDir(c.Dir); err != nil || len(claims) != 0 {
		t.Errorf("claimed on the host: %v, %v", claims, err)
	}
}
