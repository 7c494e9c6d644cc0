package vnode

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestIDLines(t *testing.T) {
	t.Parallel()
	all := []IDExtent{
		{From: 100000, Count: 100000, As: PrivateIDs},
		{From: 1500, Count: 1, As: SameIDs},
		{From: 1501, Count: 2, As: SameIDs, Of: GroupIDs},
		{From: 65536, Count: 10, As: SameIDs},
		{From: 300000, Count: 70000, As: PrivateIDs, Of: UserIDs},
		{From: 40000, Count: 30, As: SameIDs, Of: UserIDs},
	}
	uids := []IDLine{
		{0, 1500, false, 0},
		{1500, 1, true, 0},
		{1501, 38499, false, 1501},
		{40000, 30, true, 0},
		{40030, 25506, false, 40030},
		{65536, 10, true, 0},
		{100000, 65536, false, 65536},
		{165536, 34464, false, 131072},
		{300000, 31072, false, 165536},
		{331072, 38928, false, 196608},
	}
	gids := []IDLine{
		{0, 1500, false, 0},
		{1500, 1, true, 0},
		{1501, 2, true, 0},
		{1503, 64033, false, 1503},
		{65536, 10, true, 0},
		{100000, 65536, false, 65536},
		{165536, 34464, false, 131072},
	}
	if diff := cmp.Diff([][]IDLine{uids, gids}, [][]IDLine{IDLines(all, false), IDLines(all, true)}); diff != "" {
		t.Error(diff)
	}
	if got := MoreRanges(all); got != 3 {
		t.Errorf("%d more ranges, want 3", got)
	}
	if diff := cmp.Diff([]IDLine{{0, OwnIDs, false, 0}}, IDLines(nil, true)); diff != "" {
		t.Error(diff)
	}
	n := &Node{Users: all}
	for _, c := range []struct {
		gid  bool
		id   uint32
		want bool
	}{{false, 0, true}, {true, 65535, true}, {true, 65546, false}, {false, 369999, true}, {true, 369999, false}, {false, 370000, false}} {
		if got := n.HasID(c.gid, c.id); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// extents draws a valid list of extents.
func extents(t *rapid.T) []IDExtent {
	at, all := 100, []IDExtent(nil)
	for range rapid.IntRange(0, 8).Draw(t, "extents") {
		e := IDExtent{
			From: at + rapid.IntRange(0, 30000).Draw(t, "gap"), Count: rapid.IntRange(1, 200000).Draw(t, "count"),
			As: rapid.SampledFrom([]string{SameIDs, PrivateIDs}).Draw(t, "as"), Of: rapid.SampledFrom([]string{"", UserIDs, GroupIDs}).Draw(t, "of"),
		}
		if e.As == PrivateIDs {
			e.From = max(e.From, OwnIDs)
		}
		at = e.Range().End()
		if e.As == PrivateIDs || ReservedIDs(e.Range()) == "" {
			all = append(all, e)
		}
	}
	return rapid.Permutation(all).Draw(t, "order")
}

// TestIDLinesAreAMap: whatever the extents, no id inside and no id outside is mapped twice, 0 to 65535 are mapped, root is the
// node's own, no line crosses from one range to the next, and a valid spec fits in what the kernel takes.
func TestIDLinesAreAMap(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		all := extents(t)
		if problems := Validate(&Node{Name: "n", Image: Image{Kind: HostImage}, Command: []string{"c"}, Users: all}); len(problems) > 0 {
			t.Fatal(problems)
		}
		for _, gid := range []bool{false, true} {
			lines := IDLines(all, gid)
			at, low, own, same := 0, 0, map[[2]int]bool{}, map[[2]int]bool{}
			for _, l := range lines {
				if l.Inside < at || l.Count < 1 {
					t.Fatalf("%+v after %d", l, at)
				}
				at = l.Inside + l.Count
				if l.Inside < OwnIDs {
					if l.Inside != low {
						t.Fatalf("%d to %d are not mapped", low, l.Inside)
					}
					low = at
				}
				if l.Same {
					same[[2]int{l.Inside, at}] = true
					continue
				}
				if l.Own/OwnIDs != (l.Own+l.Count-1)/OwnIDs || l.Own/OwnIDs > MoreRanges(all) {
					t.Fatalf("%+v crosses into another range, of %d", l, MoreRanges(all)+1)
				}
				for o := range own {
					if l.Own < o[1] && o[0] < l.Own+l.Count {
						t.Fatalf("%+v and %v are the same ids outside", l, o)
					}
				}
				own[[2]int{l.Own, l.Own + l.Count}] = true
			}
			if low < OwnIDs || lines[0].Same || len(lines) > mostIDLines || idBytes(lines) > mostIDBytes {
				t.Fatalf("%+v", lines)
			}
			for _, e := range all {
				if e.As == SameIDs && e.has(gid) && !same[[2]int{e.From, e.Range().End()}] {
					t.Fatalf("%s is not in the map", e)
				}
			}
		}
	})
}

func TestKeepsOwners(t *testing.T) {
	t.Parallel()
	low, high := IDExtent{From: 1500, Count: 10, As: SameIDs}, IDExtent{From: 100000, Count: 9, As: SameIDs}
	own, more := IDExtent{From: 200000, Count: 70000, As: PrivateIDs}, IDExtent{From: 300000, Count: 9, As: PrivateIDs}
	for _, c := range []struct {
		old, new []IDExtent
		want     bool
	}{
		{nil, nil, true},
		{nil, []IDExtent{high, own}, true},
		{[]IDExtent{high, own}, []IDExtent{own, more}, true},
		{nil, []IDExtent{low}, false},
		{[]IDExtent{low, high}, []IDExtent{low}, true},
		{[]IDExtent{own, more}, []IDExtent{own}, false},
		{[]IDExtent{own, more}, []IDExtent{more, own}, false},
	} {
		if got := KeepsOwners(c.old, c.new); got != c.want {
			t.Errorf("%s, then %s: %v", Extents(c.old), Extents(c.new), got)
		}
	}
}
