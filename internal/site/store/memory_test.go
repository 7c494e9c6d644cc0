package store_test

import (
	"testing"
	"time"

	"berth/internal/site/store"
	"berth/internal/site/store/storetest"
)

func TestMemory(t *testing.T) {
	m := store.NewMemory()
	storetest.Run(t, storetest.Server{
		Open: func(*testing.T) store.Store { return m.Client() },
		Compact: func(t *testing.T, revision int64) {
			if err := m.Compact(t.Context(), revision); err != nil {
				t.Fatal(err)
			}
		},
		Away:   func(*testing.T) func() { return m.Away() },
		Expire: func(_ *testing.T, s store.Store, _ time.Duration) { s.(*store.Memory).Expire() },
	})
}

// TestConflict: whoever lost a race is told what is there now.
func TestConflict(t *testing.T) {
	c := &store.Conflict{Key: "/nodes/a"}
	if text := c.Error(); text != "key /nodes/a is not there any more" {
		t.Error(text)
	}
	c.Now = &store.Entry{Value: []byte("st01"), Revision: 7}
	if text := c.Error(); text != "key /nodes/a has changed: it is st01, of revision 7" {
		t.Error(text)
	}
}
