package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"berth/test/built"
	"berth/test/testkit"
)

// TestSome runs bench-nodes with 20 nodes: they reach each other and leave nothing behind. TestFullHostOnlyBridge in
// internal/network/link tests nodes on two bridges.
func TestSome(t *testing.T) {
	testkit.NeedsRoot(t)
	if _, err := exec.LookPath("/bin/busybox"); err != nil {
		t.Skip("needs busybox")
	}
	berth := filepath.Join(t.TempDir(), "berth")
	if err := built.Berth(t.Context(), berth); err != nil {
		t.Fatal(err)
	}
	m := &nodes{berth: berth}
	m.Nodes, m.AtOnce = 20, 4
	if err := m.run("/var/tmp", ""); err != nil {
		t.Fatal(err)
	}
	if m.Ports != m.Nodes {
		t.Errorf("%d ports for %d nodes", m.Ports, m.Nodes)
	}
}
