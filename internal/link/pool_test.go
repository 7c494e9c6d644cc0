package link

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"berth/internal/refuse"
	"berth/internal/step"
	"berth/internal/vnode"
)

func TestParsePool(t *testing.T) {
	for text, want := range map[string]string{
		"": "",
		"# ours\n02:00:5E:10:00:01 # first\n\n02:00:5e:10:00:03-02:00:5e:10:00:04\n02:00:5e:10:00:02\n": "02:00:5e:10:00:01-02:00:5e:10:00:04\n",
		"02:00:00:00:00:09\n02:00:00:00:00:01 - 02:00:00:00:00:03":                                      "02:00:00:00:00:01-02:00:00:00:00:03\n02:00:00:00:00:09\n",
	} {
		p, err := ParsePool([]byte(text))
		if err != nil || p.Text() != want {
			t.Errorf("%q: %v %q", text, err, p.Text())
		}
	}
	for text, want := range map[string]string{
		"x": `line 1: "x" is not a MAC`, "\n01:00:00:00:00:00": "line 2: 01:00:00:00:00:00 is a multicast address",
		"00:00:00:00:00:00": "is no address", "02:00:00:00:00:02-02:00:00:00:00:01": "its end is below its begin",
		"02:00:00:00:00:00-04:00:00:00:00:00": "the same first byte", "02:00:00:00:00:00:00:01": "is not a MAC",
	} {
		if _, err := ParsePool([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, not %s", text, err, want)
		}
	}
}

// TestPoolIsASet compares a pool with a plain list of its addresses.
func TestPoolIsASet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "berth-pool-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		want := map[string]bool{}
		var p Pool
		for range rapid.IntRange(1, 5).Draw(t, "ranges") {
			first := 0x02005e000000 + rapid.Uint64Range(0, 60).Draw(t, "first")
			r := MACRange{first, first + rapid.Uint64Range(0, 9).Draw(t, "more")}
			for m := r.First; m <= r.Last; m++ {
				want[macText(m)] = true
			}
			if p, err = AddToPool(dir, "lab", []MACRange{r}); err != nil {
				t.Fatal(err)
			}
		}
		again, err := ReadPool(dir, "lab")
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(p, again); d != "" {
			t.Fatal(d)
		}
		all := slices.Collect(p.All())
		if !slices.IsSorted(all) || len(all) != len(want) || p.Size() != uint64(len(want)) {
			t.Fatalf("%d of %d: %v", len(all), len(want), all)
		}
		for _, m := range all {
			if !want[m] || !p.Has(m) {
				t.Fatalf("%s is not in the pool", m)
			}
		}
	})
}

func FuzzParsePool(f *testing.F) {
	f.Add("02:00:5e:10:00:01-02:00:5e:10:00:ff # x\n")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePool([]byte(text))
		if err != nil {
			return
		}
		again, err := ParsePool([]byte(p.Text()))
		if d := cmp.Diff(p, again); err != nil || d != "" {
			t.Errorf("%v: %s", err, d)
		}
	})
}

func TestClaimFromPool(t *testing.T) {
	b := newLab(t)
	pools := filepath.Join(b.dir, "pools")
	if _, err := b.node("a").plan(vnode.Network{Mode: vnode.Bridge, MAC: "pool lab"}); refuse.KindOf(err) != refuse.NotFound {
		t.Errorf("no such pool: %v", err)
	}
	r, err := ParseMACRange("02:00:5e:10:00:01-02:00:5e:10:00:03")
	b.must(err)
	_, err = AddToPool(pools, "lab", []MACRange{r})
	b.must(err)
	claim := func(node string) *ClaimMAC {
		t.Helper()
		in := Input{
			Node: node, Networks: []vnode.Network{{Name: "eth0", Mode: vnode.Bridge, MAC: "pool lab"}},
			MACDir: filepath.Join(b.dir, "macs"), PoolDir: pools, HostLock: b.lock(),
		}
		if in.Facts.Pooled, err = ReadPooled(in); err != nil {
			t.Log(err)
		}
		steps, err := Claims(in)
		b.must(err)
		return steps[0].(*ClaimMAC)
	}
	// Another node has the lowest MAC, as given; a link of the host has the second.
	given := b.claim("other", vnode.Network{Name: "eth0", Mode: vnode.Bridge, MAC: "02:00:5e:10:00:01"})
	b.must(do([]step.Step{given}))
	a := claim("a")
	if a.MAC != "02:00:5e:10:00:02" {
		t.Errorf("planned: %s", a.MAC)
	}
	b.must(do([]step.Step{a}))
	c := claim("c")
	b.must(do([]step.Step{c, claim("a")})) // a's second claim gets the same MAC
	if a.MAC != "02:00:5e:10:00:02" || c.MAC != "02:00:5e:10:00:03" || claim("a").MAC != a.MAC {
		t.Errorf("claimed %s and %s", a.MAC, c.MAC)
	}
	d := claim("d")
	if err := do([]step.Step{d}); refuse.KindOf(err) != refuse.Busy || !strings.Contains(err.Error(), "all of pool lab are taken") {
		t.Errorf("an exhausted pool: %v", err)
	}
	b.must(undo([]step.Step{d}))
	a.MAC = "" // killed before it recorded the MAC
	b.must(undo([]step.Step{a}))
	b.must(do([]step.Step{d}))
	if d.MAC != "02:00:5e:10:00:02" {
		t.Errorf("the one given back is not taken: %s", d.MAC)
	}
	b.must(os.Remove(filepath.Join(pools, "lab"))) // a claim outlives its pool's file
	b.must(d.Verify(t.Context()))
	b.must(undo([]step.Step{c, d, given}))
	if left, _ := os.ReadDir(filepath.Join(b.dir, "macs")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
