package node

import (
	"errors"
	"strings"
	"testing"

	"berth/internal/sys/layout"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
)

// TestWhyNot: a runtime that fails in a node that is ending says nothing; the node's end is why.
func TestWhyNot(t *testing.T) {
	self, err := proc.Self()
	if err != nil {
		t.Fatal(err)
	}
	b := Open(layout.New(t.TempDir()), Beside{})
	silent := errors.New("run the command with crun: exit status 255")
	if err := b.whyNot(t.Context(), silent, "n", self, 0); !errors.Is(err, silent) {
		t.Errorf("of a node that runs: %v", err)
	}
	err = b.whyNot(t.Context(), silent, "n", proc.ID{PID: self.PID, Start: self.Start + 1}, 0)
	if refuse.KindOf(err) != refuse.Busy || !strings.HasPrefix(err.Error(), "node n ended while the command was being started") {
		t.Errorf("of a node that has ended: %v", err)
	}
	if err := b.whyNot(t.Context(), nil, "n", proc.ID{}, 0); err != nil {
		t.Errorf("without an error: %v", err)
	}
}
