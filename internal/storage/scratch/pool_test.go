package scratch

import (
	"os"
	"path/filepath"
	"testing"

	"berth/internal/sys/file"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// TestPoolAway: a pool whose disk is away is not forgotten: it may hold volumes. One whose removal was killed is.
func TestPoolAway(t *testing.T) {
	testkit.NeedsRoot(t)
	top := testkit.Dir(t, "/var/tmp")
	s, disk := Pools{filepath.Join(top, "pools")}, filepath.Join(top, "disk")
	if err := os.Mkdir(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	pool, err := s.Add(t.Context(), Pool{Name: "p", Dir: disk})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(disk, disk+".away"); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), "p", nil); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("remove a pool whose disk is away: %v", err)
	}
	if _, err := s.Get("p"); err != nil {
		t.Errorf("the pool is forgotten: %v", err)
	}
	pool.Removing = true // killed after it removed the folder
	if err := file.WriteJSON(s.path("p"), pool); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), "p", nil); err != nil {
		t.Errorf("remove a pool whose folder is removed already: %v", err)
	}
	if _, err := s.Get("p"); refuse.KindOf(err) != refuse.NotFound {
		t.Errorf("the pool is there: %v", err)
	}
}
