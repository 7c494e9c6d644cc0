package ids

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"berth/internal/sys/refuse"
)

// few returns an /etc whose subuid leaves n ranges free, so that nodes compete for them.
func few(t interface {
	TempDir() string
	Fatal(...any)
}, n int,
) string {
	etc := t.TempDir()
	line := fmt.Sprintf("all:%d:%d\n", First, (slots-n)*Size)
	if err := os.WriteFile(filepath.Join(etc, "subuid"), []byte(line), 0o644); err != nil {
		t.Fatal(err)
	}
	return etc
}

func list(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestClaim(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	c := &Claim{Dir: dir, Node: "a", Etc: t.TempDir()}
	if err := c.Do(ctx); err != nil {
		t.Fatal(err)
	}
	if err := c.Verify(ctx); err != nil {
		t.Fatal(err)
	}
	base := c.Base
	if r, ok, err := OfPart(dir, "a", 0); err != nil || !ok || r != c.Range() {
		t.Errorf("Of: %v, %v, %v", r, ok, err)
	}
	again := &Claim{Dir: dir, Node: "a", Etc: few(t, 1)}
	if err := again.Do(ctx); err != nil || again.Base != base {
		t.Errorf("a second claim got %d, %v; want what the node has, %d", again.Base, err, base)
	}
	// From the first journal record, which has no base.
	data, err := json.Marshal(&Claim{Dir: dir, Node: "a"})
	if err != nil {
		t.Fatal(err)
	}
	undo, err := Kinds().Decode("ids.claim", data)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := undo.Undo(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if left := list(t, dir); left != nil {
		t.Errorf("left: %v", left)
	}
	if _, ok, err := OfPart(dir, "a", 0); ok || err != nil {
		t.Errorf("Of after undo: %v, %v", ok, err)
	}
	if err := c.Verify(ctx); err == nil {
		t.Error("verified after undo")
	}
	if err := c.Do(ctx); err != nil || c.Base != base {
		t.Errorf("claimed again: %d, %v; want the same, %d", c.Base, err, base)
	}
}

func TestFull(t *testing.T) {
	ctx, dir, etc := context.Background(), t.TempDir(), few(t, 1)
	if err := (&Claim{Dir: dir, Node: "a", Etc: etc}).Do(ctx); err != nil {
		t.Fatal(err)
	}
	b := &Claim{Dir: dir, Node: "b", Etc: etc}
	if err := b.Do(ctx); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("got %v", err)
	}
	// b never claimed a's range: undoing b's failed claim leaves it alone.
	if err := b.Undo(ctx); err != nil {
		t.Fatal(err)
	}
	want := []string{"node-a", fmt.Sprintf("range-%d", Last)}
	if diff := cmp.Diff(want, list(t, dir)); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
}

// Undo and the next Do cope with a kill after each call of Do.
func TestCutShort(t *testing.T) {
	ctx := context.Background()
	base := First + first("", "")*Size
	for _, c := range []struct {
		name  string
		links map[string]string
		other bool // the range belongs to another node and stays
	}{
		{"nothing yet", nil, false},
		{"noted", map[string]string{"node-a": fmt.Sprint(base)}, false},
		{"noted, but another was faster", map[string]string{"node-a": fmt.Sprint(base), fmt.Sprintf("range-%d", base): "b"}, true},
		{"claimed", map[string]string{"node-a": fmt.Sprint(base), fmt.Sprintf("range-%d", base): "a"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, to := range c.links {
				if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			claim := &Claim{Dir: dir, Node: "a", Etc: t.TempDir()}
			if err := claim.Do(ctx); err != nil {
				t.Fatal(err)
			}
			if err := claim.Verify(ctx); err != nil {
				t.Error(err)
			}
			if c.other && claim.Base == base {
				t.Error("took another node's range")
			}
			if err := (&Claim{Dir: dir, Node: "a"}).Undo(ctx); err != nil {
				t.Fatal(err)
			}
			if left := list(t, dir); len(left) != 0 && !c.other || len(left) > 1 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

func TestHostIDs(t *testing.T) {
	etc := t.TempDir()
	for name, text := range map[string]string{
		"passwd": "root:x:0:0::/:/bin/sh\nbroken\nbig:x:1073741825:1:::\n",
		"group":  "all:x:7:" + strings.Repeat("member,", 2<<20/7) + "\nstaff:x:1073872896:a,b\n",
		"subgid": "u:1073938432:65537\nu:x:1\nu:1:-1\n",
	} {
		if err := os.WriteFile(filepath.Join(etc, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	taken, err := hostIDs(etc)
	if err != nil {
		t.Fatal(err)
	}
	var got []bool
	for i := range uint32(6) {
		got = append(got, taken.overlap(First+i*Size))
	}
	if diff := cmp.Diff([]bool{true, false, true, true, true, false}, got); diff != "" {
		t.Errorf("overlaps of the first ranges (-want +got):\n%s", diff)
	}
}

// However nodes come and go at the same time, no two have the same range, and none has a range that the host uses.
func TestNoTwoNodesShareARange(t *testing.T) {
	etc := few(t, 6)
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp("", "berth-ids-")
		if err != nil {
			rt.Fatal(err)
		}
		defer os.RemoveAll(dir)
		ctx := context.Background()
		have := map[string]uint32{}
		for range rapid.IntRange(1, 5).Draw(rt, "rounds") {
			names := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g", "h"}), 1, 8, rapid.ID[string]).Draw(rt, "nodes")
			var wg sync.WaitGroup
			var mu sync.Mutex
			had := maps.Clone(have)
			for _, name := range names {
				_, remove := had[name]
				wg.Go(func() {
					c := &Claim{Dir: dir, Node: name, Etc: etc}
					if remove {
						if err := c.Undo(ctx); err != nil {
							rt.Error(err)
						}
					} else if err := c.Do(ctx); err != nil && refuse.KindOf(err) != refuse.Cannot {
						rt.Error(err)
					} else if err != nil {
						_ = c.Undo(ctx)
					}
					mu.Lock()
					defer mu.Unlock()
					delete(have, name)
					if c.Base != 0 {
						have[name] = c.Base
					}
				})
			}
			wg.Wait()
			owner := map[uint32]string{}
			for name, base := range have {
				if other, twice := owner[base]; twice {
					rt.Fatalf("%s and %s both have %d", name, other, base)
				}
				owner[base] = name
				if base < Last-5*Size || base > Last {
					rt.Fatalf("%s has %d, which the host uses", name, base)
				}
				if r, ok, err := OfPart(dir, name, 0); err != nil || !ok || r.Base != base {
					rt.Fatalf("Of %s: %v, %v, %v; want %d", name, r, ok, err, base)
				}
			}
		}
	})
}
