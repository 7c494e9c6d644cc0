package link

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/network/address"
	"berth/internal/spec/vnode"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
	"berth/test/testkit"
)

func TestClaimFromPool(t *testing.T) {
	b := newLab(t)
	pools := filepath.Join(b.dir, "pools")
	if _, err := b.node("a").plan(vnode.Network{Mode: vnode.Bridge, MAC: "pool lab"}); refuse.KindOf(err) != refuse.NotFound {
		t.Errorf("no such pool: %v", err)
	}
	r, err := address.ParseMACRange("02:00:5e:10:00:01-02:00:5e:10:00:03")
	testkit.Must(b.t, err)
	_, err = address.AddToPool(pools, "lab", []address.MACRange{r})
	testkit.Must(b.t, err)
	claim := func(node string) *address.ClaimMAC {
		t.Helper()
		in := Input{
			Node: node, Networks: []vnode.Network{{Name: "eth0", Mode: vnode.Bridge, MAC: "pool lab"}},
			MACDir: filepath.Join(b.dir, "macs"), PoolDir: pools, HostLock: b.lock(),
		}
		if err := in.Facts.ReadClaims(in); err != nil {
			t.Log(err)
		}
		steps, err := Claims(in)
		testkit.Must(b.t, err)
		return steps[0].(*address.ClaimMAC)
	}
	// Another node has the lowest MAC, as given; a link of the host has the second.
	given := b.claim("other", vnode.Network{Name: "eth0", Mode: vnode.Bridge, MAC: "02:00:5e:10:00:01"})
	testkit.Must(b.t, do([]step.Step{given}))
	a := claim("a")
	if a.MAC != mac.Must("02:00:5e:10:00:02") {
		t.Errorf("planned: %s", a.MAC)
	}
	testkit.Must(b.t, do([]step.Step{a}))
	c := claim("c")
	testkit.Must(b.t, do([]step.Step{c, claim("a")})) // a's second claim gets the same MAC
	if a.MAC != mac.Must("02:00:5e:10:00:02") || c.MAC != mac.Must("02:00:5e:10:00:03") || claim("a").MAC != a.MAC {
		t.Errorf("claimed %s and %s", a.MAC, c.MAC)
	}
	d := claim("d")
	if err := do([]step.Step{d}); refuse.KindOf(err) != refuse.Busy || !strings.Contains(err.Error(), "all of pool lab are taken") {
		t.Errorf("an exhausted pool: %v", err)
	}
	testkit.Must(b.t, undo([]step.Step{d}))
	a.MAC = mac.Address{} // killed before it recorded the MAC
	testkit.Must(b.t, undo([]step.Step{a}))
	testkit.Must(b.t, do([]step.Step{d}))
	if d.MAC != mac.Must("02:00:5e:10:00:02") {
		t.Errorf("the one given back is not taken: %s", d.MAC)
	}
	testkit.Must(b.t, os.Remove(filepath.Join(pools, "lab"))) // a claim outlives its pool's file
	testkit.Must(b.t, d.Verify(t.Context()))
	testkit.Must(b.t, undo([]step.Step{c, d, given}))
	if left, _ := os.ReadDir(filepath.Join(b.dir, "macs")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
