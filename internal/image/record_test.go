package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/image/imagetest"
	"berth/internal/sys/refuse"
)

// TestBrokenRecord breaks one of two records in several ways. The other image is listed and works, the broken one is
// reported with its remedy, and no layer is lost.
func TestBrokenRecord(t *testing.T) {
	for name, c := range map[string]struct {
		change func(good string) string
		why    string
	}{
		"empty":       {func(string) string { return "" }, "its file is empty"},
		"cut off":     {func(good string) string { return good[:len(good)/2] }, "its file is damaged"},
		"garbled":     {func(string) string { return "\x00\x01\x02" }, "its file is damaged"},
		"not ours":    {func(string) string { return "{}" }, "its file is damaged"},
		"other name":  {func(good string) string { return strings.Replace(good, `"bad/x:1"`, `"good"`, 1) }, "its file is damaged"},
		"bad layer":   {func(good string) string { return strings.Replace(good, "sha256:", "sha256:../", 2) }, "its file is damaged"},
		"newer berth": {func(good string) string { return strings.Replace(good, `"version": 1`, `"version": 99`, 1) }, "a newer berth wrote it"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			images := map[string][]byte{"good": imagetest.Layer(t, E{Name: "g"}), "bad/x:1": imagetest.Layer(t, E{Name: "b"})}
			archives := map[string]string{}
			for n, layer := range images {
				archives[n] = imagetest.OCIArchive(t, imagetest.Image{Layers: [][]byte{layer}})
				if _, err := s.Import(t.Context(), archives[n], As{Name: n}, nil); err != nil {
					t.Fatal(err)
				}
			}
			good, err := os.ReadFile(s.record("bad/x:1"))
			if err != nil {
				t.Fatal(err)
			}
			spoil := func() {
				if err := os.WriteFile(s.record("bad/x:1"), []byte(c.change(string(good))), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			spoil()
			list := func() (got []string) {
				all, err := s.List()
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range all {
					got = append(got, strings.TrimSpace(r.Name+" "+r.Broken))
				}
				return got
			}
			if diff := cmp.Diff([]string{"bad/x:1 " + c.why, "good"}, list()); diff != "" {
				t.Error(diff)
			}
			if _, err := s.Get("good"); err != nil {
				t.Error(err)
			}
			_, err = s.Get("bad/x:1")
			if refuse.KindOf(err) != refuse.Failed || !strings.Contains(err.Error(), c.why) || !strings.Contains(err.Error(), "berth image rm bad/x:1") {
				t.Errorf("the broken one: %v", err)
			}
			layers := func() int {
				all, err := os.ReadDir(s.layers())
				if err != nil {
					t.Fatal(err)
				}
				return len(all)
			}
			if err := s.Remove(t.Context(), "good", nobody); err != nil {
				t.Error(err)
			}
			if err := s.Collect(t.Context(), nobody); err != nil {
				t.Error(err)
			}
			if layers() != 2 {
				t.Errorf("%d layers while nobody knows whose they are", layers())
			}
			// The two remedies: import again, and remove (also if a node that cannot start names the image).
			if _, err := s.Import(t.Context(), archives["bad/x:1"], As{Name: "bad/x:1"}, nil); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff([]string{"bad/x:1"}, list()); diff != "" {
				t.Error(diff)
			}
			spoil()
			named := func(name string, _ []string) ([]string, error) {
				if name != "" {
					return []string{"wn-1"}, nil
				}
				return nil, nil
			}
			if err := s.Remove(t.Context(), "bad/x:1", named); err != nil {
				t.Error(err)
			}
			if got := list(); len(got) > 0 || layers() != 0 {
				t.Errorf("left: %v and %d layers", got, layers())
			}
		})
	}
}

// TestStrayRecord: a file that cannot belong to any image is reported with its path.
func TestStrayRecord(t *testing.T) {
	s := newStore(t)
	if _, err := s.Import(t.Context(), imagetest.OCIArchive(t, twoLayers(t)), As{Name: "x"}, nil); err != nil {
		t.Fatal(err)
	}
	stray := filepath.Join(s.records(), "copy of x.json")
	if err := os.Link(s.record("x"), stray); err != nil {
		t.Fatal(err)
	}
	all, err := s.List()
	if err != nil || len(all) != 2 || !strings.Contains(all[0].Broken, "remove "+stray) {
		t.Errorf("%+v, %v", all, err)
	}
}

func TestPick(t *testing.T) {
	a, b := twoLayers(t), twoLayers(t)
	b.Config.Cmd = []string{"/b"}
	b.Layers = b.Layers[:1]
	untagged := imagetest.OCIArchive(t, a, b) // images without names
	tagged := imagetest.DockerArchives(t, map[string]imagetest.Image{"team/a:latest": a, "team/b:2": b})
	digest := func(archive string, layers int) string { // digest of the image with this many layers
		src, err := openSource(t.Context(), archive, t.TempDir(), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		defer src.close()
		all, err := ociImages(&documents{source: src, left: maxDocuments})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range all {
			if len(f.layers) == layers {
				return f.digest
			}
		}
		t.Fatal("no such image")
		return ""
	}
	two := digest(untagged, 2)
	for name, c := range map[string]struct {
		archive string
		as      As
		layers  int // of the image found; 0: refused
		says    string
		kind    refuse.Kind
	}{
		"by name":          {tagged, As{Name: "x", Pick: "team/b:2"}, 1, "x", 0},
		"without latest":   {tagged, As{Name: "x", Pick: "team/a"}, 2, "x", 0},
		"its own name":     {tagged, As{Pick: "team/b:2"}, 1, "team/b:2", 0},
		"NAME still picks": {tagged, As{Name: "team/b:2"}, 1, "team/b:2", 0},
		"none said":        {tagged, As{Name: "x"}, 0, "several images: team/a:latest, team/b:2; say which: berth image import ARCHIVE NAME --pick IMAGE", refuse.Invalid},
		"not there":        {tagged, As{Name: "x", Pick: "team/c"}, 0, "holds no image team/c; it holds team/a:latest, team/b:2", refuse.NotFound},
		"pick before NAME": {tagged, As{Name: "team/b:2", Pick: "team/a"}, 2, "team/b:2", 0},
		"by digest":        {untagged, As{Name: "x", Pick: two}, 2, "x", 0},
		"by short digest":  {untagged, As{Name: "x", Pick: two[len("sha256:") : len("sha256:")+12]}, 2, "x", 0},
		"too short":        {untagged, As{Name: "x", Pick: two[:len("sha256:")+5]}, 0, "holds no image", refuse.NotFound},
		"digests as names": {untagged, As{Name: "x"}, 0, two[:len("sha256:")+12], refuse.Invalid},
		"digest, no name":  {untagged, As{Pick: two}, 0, "no name", refuse.Invalid},
		"of only one":      {imagetest.DockerArchive(t, "a:1", a), As{Name: "x", Pick: "b:1"}, 0, "it holds a:1", refuse.NotFound},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := newStore(t).Import(t.Context(), c.archive, c.as, nil)
			if c.layers == 0 {
				if refuse.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.says) {
					t.Errorf("got %v, want %q", err, c.says)
				}
				return
			}
			if err != nil || len(r.Layers) != c.layers || r.Name != c.says {
				t.Errorf("got %s with %d layers, %v", r.Name, len(r.Layers), err)
			}
		})
	}
}
