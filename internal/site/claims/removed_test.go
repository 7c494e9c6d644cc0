package claims

import (
	"os"
	"testing"

	"berth/internal/host/membership"
	"berth/internal/site/store"
	"berth/internal/sys/layout"
)

// TestRemovedMeanwhile: a node is being removed. What it had is given up already, and its journal still says that it has it. Reconcile claims
// it, and gives it up once the node is gone.
func TestRemovedMeanwhile(t *testing.T) {
	c := &Claims{Layout: layout.New(t.TempDir()), Host: "a", Store: store.NewMemory()}
	folder := c.Layout.Node("n1").Lib
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	left := func(nodes ...Holding) int {
		t.Helper()
		if err := c.Reconcile(t.Context(), func() ([]Holding, error) { return nodes, nil }); err != nil {
			t.Fatal(err)
		}
		all, _, err := c.Store.List(t.Context(), store.Claims)
		if err != nil {
			t.Fatal(err)
		}
		return len(all) - 1 // the fence
	}
	if n := left(Holding{Node: "n1", Things: []membership.Thing{{Kind: membership.Address, Value: "10.99.0.1"}}}); n != 1 {
		t.Fatalf("%d claims for the node", n)
	}
	if c.adopted() {
		t.Fatal("the node is there")
	}
	if err := os.Remove(folder); err != nil {
		t.Fatal(err)
	}
	if !c.adopted() {
		t.Fatal("nobody gives up what was claimed for the node")
	}
	if n := left(); n != 0 {
		t.Errorf("%d claims are left", n)
	}
}
