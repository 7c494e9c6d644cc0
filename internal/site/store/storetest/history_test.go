package storetest

import (
	"strings"
	"testing"
	"time"

	"berth/internal/site/store"
)

// TestHistoryFindsTheft: the checker finds a claim that passes from a node to another one, whatever is right before and after.
func TestHistoryFindsTheft(t *testing.T) {
	m := store.NewMemory()
	key := store.Key(store.Claims, "mac", "02:00:00:00:00:01")
	put := func(value string) {
		t.Helper()
		if _, err := m.Commit(t.Context(), nil, []store.Op{{Key: key, Value: []byte(value), Delete: value == ""}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, value := range []string{`{"host":"a","node":"n1"}`, "", `{"host":"b","node":"n1"}`} {
		put(value)
	}
	h, err := ReadHistory(t.Context(), m)
	if err != nil || len(h.Violations) != 0 || h.Claimed != 2 || h.Released != 1 || h.Held[key] != "b/n1" {
		t.Errorf("given up and taken: %+v, %v", h, err)
	}
	put(`{"host":"a","node":"n2"}`)
	put("")
	h, err = ReadHistory(t.Context(), m)
	if err != nil || len(h.Violations) != 1 || !strings.Contains(h.Violations[0], "was b/n1's and went to a/n2") {
		t.Errorf("taken: %+v, %v", h, err)
	}
}

func TestTwice(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	holds := []Hold{{"m", "a/n1", at(0), at(2)}, {"m", "b/n1", at(2), at(5)}, {"o", "b/n2", at(0), at(9)}}
	if found := Twice(holds); len(found) != 0 {
		t.Errorf("one after the other: %v", found)
	}
	if found := Twice(append(holds, Hold{"m", "a/n3", at(4), at(6)})); len(found) != 1 {
		t.Errorf("at the same time: %v", found)
	}
}
