package ids

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/spec/vnode"
)

// TestUsers: two nodes share the same ids, each note says whose it is, and each is given back by itself.
func TestUsers(t *testing.T) {
	ctx, dir := context.Background(), filepath.Join(t.TempDir(), "ids")
	extents := []vnode.IDExtent{
		{From: 1500, Count: 1, As: vnode.SameIDs, Of: vnode.UserIDs},
		{From: 1500, Count: 1, As: vnode.SameIDs, Of: vnode.GroupIDs},
		{From: 100000, Count: 9, As: vnode.SameIDs},
		{From: 200000, Count: 9, As: vnode.PrivateIDs},
	}
	for _, name := range []string{"a", "a-b"} {
		u := &Users{Dir: dir, Node: name, Extents: extents}
		if err := u.Do(ctx); err != nil {
			t.Fatal(err)
		}
		if err := u.Do(ctx); err != nil { // again, as after a kill
			t.Fatal(err)
		}
		if err := u.Verify(ctx); err != nil {
			t.Fatal(err)
		}
	}
	ranges := []vnode.IDRange{{From: 100000, Count: 9}, {From: 1500, Count: 1}}
	got, err := Shared(dir)
	if diff := cmp.Diff(map[string][]vnode.IDRange{"a": ranges, "a-b": ranges}, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
	if got, err := Nodes(dir); err != nil || !cmp.Equal(got, []string{"a", "a", "a-b", "a-b"}) {
		t.Errorf("nodes with claims: %v, %v", got, err)
	}
	data, err := json.Marshal(&Users{Dir: dir, Node: "a", Extents: extents})
	if err != nil {
		t.Fatal(err)
	}
	undo, err := Kinds().Decode("ids.users", data)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := undo.Undo(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := undo.Verify(ctx); err == nil {
		t.Error("verified after undo")
	}
	if diff := cmp.Diff([]string{"same-a-b+100000+9", "same-a-b+1500+1"}, list(t, dir)); diff != "" {
		t.Error(diff)
	}
}

// TestParts: a node's further ranges are claimed, found and given back apart from its first, and all together without a journal.
func TestParts(t *testing.T) {
	ctx, dir, etc := context.Background(), t.TempDir(), few(t, 4)
	bases := map[uint32]bool{}
	for part := range 3 {
		c := &Claim{Dir: dir, Node: "a", Part: part, Etc: etc}
		if err := c.Do(ctx); err != nil {
			t.Fatal(err)
		}
		if err := c.Verify(ctx); err != nil {
			t.Fatal(err)
		}
		bases[c.Base] = true
		if r, ok, err := OfPart(dir, "a", part); !ok || err != nil || r.Base != c.Base {
			t.Errorf("part %d: %v, %v, %v; want %d", part, r, ok, err, c.Base)
		}
	}
	if len(bases) != 3 {
		t.Errorf("3 ranges at %v", bases)
	}
	if err := (&Claim{Dir: dir, Node: "a", Part: 1}).Undo(ctx); err != nil {
		t.Fatal(err)
	}
	if _, ok, _ := OfPart(dir, "a", 2); !ok || len(list(t, dir)) != 4 {
		t.Errorf("after part 1 was given back: %v", list(t, dir))
	}
	if err := (&Users{Dir: dir, Node: "a", Extents: []vnode.IDExtent{{From: 1500, Count: 1, As: vnode.SameIDs}}}).Do(ctx); err != nil {
		t.Fatal(err)
	}
	if err := (&Claim{Dir: dir, Node: "b", Etc: etc}).Do(ctx); err != nil {
		t.Fatal(err)
	}
	if err := GiveBack(ctx, dir, "a"); err != nil {
		t.Fatal(err)
	}
	if left := list(t, dir); len(left) != 2 || left[0] != "node-b" {
		t.Errorf("left: %v", left)
	}
}

func TestGiven(t *testing.T) {
	etc := t.TempDir()
	for name, text := range map[string]string{"passwd": "u:x:1000:1000:::\n", "subuid": "u:100000:65536\n", "subgid": "u:200000:1\nbroken\n"} {
		if err := os.WriteFile(filepath.Join(etc, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Given(etc)
	if diff := cmp.Diff([]vnode.IDRange{{From: 100000, Count: 65536}, {From: 200000, Count: 1}}, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
}
