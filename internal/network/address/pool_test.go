package address

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
)

func TestParsePool(t *testing.T) {
	for text, want := range map[string]string{
		"": "",
		"# ours\n02:00:5E:10:00:01 # first\n\n02:00:5e:10:00:03-02:00:5e:10:00:04\n02:00:5e:10:00:02\n": "02:00:5e:10:00:01-02:00:5e:10:00:04\n",
		"02:00:00:00:00:09\n02:00:00:00:00:01 - 02:00:00:00:00:03":                                      "02:00:00:00:00:01-02:00:00:00:00:03\n02:00:00:00:00:09\n",
	} {
		p, err := parsePool([]byte(text))
		if err != nil || p.Text() != want {
			t.Errorf("%q: %v %q", text, err, p.Text())
		}
	}
	for text, want := range map[string]string{
		"x": `line 1: "x" is not a MAC`, "\n01:00:00:00:00:00": "line 2: 01:00:00:00:00:00 is a multicast address",
		"00:00:00:00:00:00": "is no address", "02:00:00:00:00:02-02:00:00:00:00:01": "its end is below its begin",
		"02:00:00:00:00:00-04:00:00:00:00:00": "the same first byte", "02:00:00:00:00:00:00:01": "is not a MAC",
	} {
		if _, err := parsePool([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, not %s", text, err, want)
		}
	}
}

// TestLostPool: a file that a power cut has emptied is no pool without MACs, and nothing is added to it. Who wants such a pool says so in
// a comment.
func TestLostPool(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "lab")
	for _, text := range []string{"", "\n", "\x00\x00\x00\n", "02:00:5e:10:00:01\n\x00\x00"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := ReadPool(dir, "lab")
		if r, ok := errors.AsType[*refuse.Error](err); !ok || !strings.Contains(r.What, path) || !strings.Contains(r.Remedy, "berth net export") {
			t.Errorf("%q: %v", text, err)
		}
		if p, err := AddToPool(dir, "lab", []MACRange{{1, 1}}); err == nil {
			t.Errorf("%q: added to: %v", text, p)
		}
		if now, err := os.ReadFile(path); err != nil || string(now) != text {
			t.Errorf("%q: it has %q, %v", text, now, err)
		}
	}
	if err := os.WriteFile(path, []byte("# none yet\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if p, err := ReadPool(dir, "lab"); err != nil || p.Size() != 0 {
		t.Errorf("a comment alone: %v, %v", p, err)
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
		want := map[mac.Address]bool{}
		var p Pool
		for range rapid.IntRange(1, 5).Draw(t, "ranges") {
			first := 0x02005e000000 + rapid.Uint64Range(0, 60).Draw(t, "first")
			r := MACRange{first, first + rapid.Uint64Range(0, 9).Draw(t, "more")}
			for m := r.First; m <= r.Last; m++ {
				want[mac.FromNumber(m)] = true
			}
			if p, err = AddToPool(dir, "lab", []MACRange{r}); err != nil {
				t.Fatal(err)
			}
		}
		again, err := ReadPool(dir, "lab")
		if err != nil {
			t.Fatal(err)
		}
		if d := gocmp.Diff(p, again); d != "" {
			t.Fatal(d)
		}
		all := slices.Collect(p.All())
		if !slices.IsSortedFunc(all, func(a, b mac.Address) int { return cmp.Compare(a.Number(), b.Number()) }) || len(all) != len(want) || p.Size() != uint64(len(want)) {
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
		p, err := parsePool([]byte(text))
		if err != nil {
			return
		}
		again, err := parsePool([]byte(p.Text()))
		if d := gocmp.Diff(p, again); err != nil || d != "" {
			t.Errorf("%v: %s", err, d)
		}
	})
}
