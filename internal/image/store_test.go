package image

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"

	"berth/internal/image/imagetest"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
	"berth/test/testkit"
)

func TestImportRefuses(t *testing.T) {
	good := twoLayers(t)
	foreign := twoLayers(t)
	foreign.Arch = "riscv64"
	file := func(data []byte) string {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	damaged := imagetest.OCILayout(t, good)
	blobs, err := filepath.Glob(damaged + "/blobs/sha256/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range blobs { // files with gzip's magic are the layers
		if data, _ := os.ReadFile(b); strings.HasPrefix(string(data), "\x1f\x8b") {
			if err := os.WriteFile(b, imagetest.Gzip(t, imagetest.Layer(t, E{Name: "bad"})), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	outside := imagetest.Layer(t, E{Name: "manifest.json", Data: `[{"Config":"c","Layers":["../../../../etc/passwd"]}]`},
		E{Name: "c", Data: `{"rootfs":{"diff_ids":["sha256:` + strings.Repeat("0", 64) + `"]}}`})
	climbing := imagetest.Layer(t, E{Name: "manifest.json", Data: `[{"Config":"c","Layers":["l"]}]`},
		E{Name: "c", Data: `{"rootfs":{"diff_ids":["sha256:../../../x"]}}`}, E{Name: "l"})
	for name, c := range map[string]struct {
		archive, as string
		kind        refuse.Kind
		says        string
	}{
		"no such file":     {"/nonexistent/a.tar", "x", refuse.NotFound, "no archive"},
		"empty":            {file(nil), "x", refuse.Invalid, "empty"},
		"not a tar":        {file([]byte(strings.Repeat("x", 2000))), "x", refuse.Invalid, "damaged"},
		"not an image":     {file(imagetest.Layer(t, E{Name: "x"})), "x", refuse.Invalid, "neither"},
		"no name":          {imagetest.DockerArchive(t, "", good), "", refuse.Invalid, "no name"},
		"bad name":         {imagetest.DockerArchive(t, "", good), "a\nb", refuse.Invalid, "not an image name"},
		"another machine":  {imagetest.OCIArchive(t, foreign), "x", refuse.Cannot, "riscv64"},
		"damaged layer":    {damaged, "x", refuse.Invalid, "damaged"},
		"layer outside":    {file(outside), "x", refuse.Invalid, "lacks its layer"},
		"digest climbs":    {file(climbing), "x", refuse.Invalid, "hash"},
		"device in layer":  {imagetest.OCIArchive(t, imagetest.Image{Layers: [][]byte{imagetest.Layer(t, E{Name: "d", Type: '3'})}}), "x", refuse.Invalid, "device nodes"},
		"no layers":        {imagetest.OCIArchive(t, imagetest.Image{}), "x", refuse.Invalid, "no layers"},
		"folder, no image": {t.TempDir(), "x", refuse.Invalid, "neither"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			_, err := s.Import(t.Context(), c.archive, As{Name: c.as}, nil)
			if refuse.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got kind %d: %v; want %d about %q", refuse.KindOf(err), err, c.kind, c.says)
			}
			for _, d := range []string{s.tmp(), s.layers(), s.records()} {
				if left, _ := os.ReadDir(d); len(left) > 0 {
					t.Errorf("left in %s: %v", d, left)
				}
			}
		})
	}
}

func TestImportZstdLayer(t *testing.T) {
	s := newStore(t)
	layer := imagetest.Layer(t, E{Name: "a", Data: "x"})
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer enc.Close()
	packed := enc.EncodeAll(layer, nil)
	archive := filepath.Join(t.TempDir(), "a.tar")
	data := imagetest.Layer(t, E{Name: "manifest.json", Data: `[{"Config":"c","RepoTags":["z:1"],"Layers":["l"]}]`},
		E{Name: "c", Data: `{"rootfs":{"diff_ids":["` + imagetest.Digest(layer) + `"]}}`}, E{Name: "l", Data: string(packed)})
	if err := os.WriteFile(archive, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Import(t.Context(), archive, As{Name: ""}, nil); err != nil || r.Name != "z:1" {
		t.Errorf("%+v %v", r, err)
	}
}

func TestRemoveKeepsWhatIsUsed(t *testing.T) {
	s := newStore(t)
	shared := imagetest.Layer(t, E{Name: "shared"})
	old, newer := imagetest.Layer(t, E{Name: "old"}), imagetest.Layer(t, E{Name: "newer"})
	for _, c := range []struct {
		name   string
		layers [][]byte
	}{{"a", [][]byte{shared, old}}, {"b", [][]byte{shared}}, {"a", [][]byte{shared, newer}}} {
		if _, err := s.Import(t.Context(), imagetest.OCIArchive(t, imagetest.Image{Layers: c.layers}), As{Name: c.name}, nil); err != nil {
			t.Fatal(err)
		}
	}
	left := func() []string {
		var names []string
		dirs, err := os.ReadDir(s.layers())
		if err != nil {
			t.Fatal(err)
		}
		for l, n := range map[string]string{imagetest.Digest(shared): "shared", imagetest.Digest(old): "old", imagetest.Digest(newer): "newer"} {
			for _, d := range dirs {
				if "sha256:"+d.Name() == l {
					names = append(names, n)
				}
			}
		}
		slices.Sort(names)
		return names
	}
	runs := func(layer []byte) Users { // a node that runs on one layer
		return func(_ string, layers []string) ([]string, error) {
			if slices.Contains(layers, imagetest.Digest(layer)) {
				return []string{"wn-1"}, nil
			}
			return nil, nil
		}
	}
	named := func(name string, _ []string) ([]string, error) {
		if name == "a" {
			return []string{"wn-2"}, nil
		}
		return nil, nil
	}
	if err := s.Remove(t.Context(), "a", named); refuse.KindOf(err) != refuse.Busy || !strings.Contains(err.Error(), "wn-2") {
		t.Errorf("named by a node: %v", err)
	}
	if err := s.Remove(t.Context(), "a", runs(newer)); refuse.KindOf(err) != refuse.Busy {
		t.Errorf("its layer in use: %v", err)
	}
	// A node still runs on a layer of an earlier import of the same name.
	if err := s.Remove(t.Context(), "b", runs(old)); err != nil {
		t.Errorf("b: %v", err)
	}
	if diff := cmp.Diff([]string{"newer", "old", "shared"}, left()); diff != "" {
		t.Error(diff)
	}
	if err := s.Collect(t.Context(), nobody); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"newer", "shared"}, left()); diff != "" {
		t.Error(diff)
	}
}

func TestSweep(t *testing.T) {
	s := newStore(t)
	if err := s.Sweep(t.Context()); err != nil {
		t.Errorf("of no store: %v", err)
	}
	unlock, err := s.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(s.tmp(), "x/y"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := s.Sweep(t.Context()); err != nil {
		t.Errorf("while an import runs: %v", err)
	}
	if _, err := os.Stat(filepath.Join(s.tmp(), "x/y")); err != nil {
		t.Errorf("swept a running import: %v", err)
	}
	unlock()
	if err := s.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(s.tmp()); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestImportInterrupted cancels an import midway: it leaves nothing, and the next one works.
func TestImportInterrupted(t *testing.T) {
	s := newStore(t)
	archive := imagetest.OCIArchive(t, twoLayers(t))
	ctx, cancel := context.WithCancel(t.Context())
	_, err := s.Import(ctx, archive, As{Name: "x"}, func(int64, int64) { cancel() })
	if !isContext(err) {
		t.Errorf("got %v", err)
	}
	if left, _ := os.ReadDir(s.tmp()); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if _, err := s.Import(t.Context(), archive, As{Name: "x"}, nil); err != nil {
		t.Error(err)
	}
}

func TestResolve(t *testing.T) {
	s := newStore(t)
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/", link); err != nil {
		t.Fatal(err)
	}
	for ref, kind := range map[string]refuse.Kind{
		"host": 0, "dir:" + dir: 0, "dir:/nonexistent": refuse.NotFound, "dir:relative": refuse.Invalid,
		"dir:/": refuse.Invalid, "dir:" + link: refuse.Invalid, "dir:" + filepath.Dir(s.lib): refuse.Invalid, "dir:/proc/version": refuse.Invalid,
		"oci:none": refuse.NotFound, "oci-layout:" + dir: refuse.Invalid, "oci-layout:/nonexistent": refuse.NotFound, "file:/x": refuse.Cannot,
	} {
		r, err := vnode.ParseImage(ref)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Resolve(r); refuse.KindOf(err) != kind {
			t.Errorf("%s: got kind %d (%v), want %d", ref, refuse.KindOf(err), err, kind)
		}
	}
}

// TestUnpackStep starts several nodes from one layout that is not unpacked yet.
func TestUnpackStep(t *testing.T) {
	s := newStore(t)
	ref := vnode.Image{Kind: vnode.OCILayoutImage, Ref: imagetest.OCILayout(t, twoLayers(t))}
	img, err := s.Resolve(ref)
	if err != nil || len(img.Missing) != 2 {
		t.Fatal(img, err)
	}
	steps := s.Steps(img)
	if text := fmt.Sprint(steps[0]); text != "unpack 2 layers of "+ref.String() {
		t.Errorf("the step is %q", text)
	}
	data, err := json.Marshal(steps[0])
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		again, err := Kinds().Decode(steps[0].Kind(), data)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			if err := again.Do(t.Context()); err != nil {
				t.Error(err)
			}
			if err := again.Verify(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if img, err = s.Resolve(ref); err != nil || len(img.Missing) != 0 || len(s.Steps(img)) != 0 {
		t.Error(img, err)
	}
	if err := s.Remove(t.Context(), ref.String(), nobody); err != nil {
		t.Errorf("the unpacked layout is no image of the store: %v", err)
	}
}

func TestInitKind(t *testing.T) {
	testkit.NeedsRoot(t)
	s := newStore(t)
	busybox := imagetest.BusyboxImage(t)
	busybox.Layers = append(busybox.Layers, imagetest.Layer(t,
		E{Name: "lib/systemd/systemd", Mode: 0o755, Data: "\x7fELF"}, E{Name: "sbin/boot", Type: '2', Link: "../lib/systemd/systemd"},
		E{Name: "opt/sbin/init", Mode: 0o755, Data: "\x7fELF"}, E{Name: "init", Mode: 0o755, Data: "#!/bin/sh\n"},
		E{Name: "ring", Type: '2', Link: "bin/../ring"}, E{Name: "bin/.wh.sh"},
	))
	if _, err := s.Import(t.Context(), imagetest.OCIArchive(t, busybox), As{Name: "b"}, nil); err != nil {
		t.Fatal(err)
	}
	img, err := s.Resolve(vnode.Image{Kind: vnode.OCIImage, Ref: "b"})
	if err != nil {
		t.Fatal(err)
	}
	for command, want := range map[string]string{
		"": "", "/sbin/init": "busybox", "init": "busybox", "/bin/busybox init": "busybox", "/bin/busybox sh": "", "/bin/ls": "",
		"/lib/systemd/systemd": "systemd", "/sbin/boot": "systemd", "/opt/sbin/init": "sysv", "/init": "", "/ring": "", "/bin/sh": "", "/nothing": "",
	} {
		if got := InitKind(img, "", strings.Fields(command)); got != want {
			t.Errorf("%q is %q, want %q", command, got, want)
		}
	}
	dir := Image{Lowers: []string{imagetest.BusyboxDir(t)}}
	if got := InitKind(dir, "", []string{"/sbin/init"}); got != "busybox" {
		t.Errorf("in a folder: %q", got)
	}
}

// TestInitInDelta: how the node's own writes change the init kind of a command that names an init, and of one that does
// not.
func TestInitInDelta(t *testing.T) {
	testkit.NeedsRoot(t)
	s := newStore(t)
	layer := imagetest.Layer(t, E{Name: "sbin/init", Mode: 0o755, Data: "\x7fELF"}, E{Name: "lib/systemd/systemd", Mode: 0o755, Data: "\x7fELF"},
		E{Name: "bin/busybox", Mode: 0o755, Data: "\x7fELF"}, E{Name: "opt/app", Mode: 0o755, Data: "\x7fELF"})
	if _, err := s.Import(t.Context(), imagetest.OCIArchive(t, imagetest.Image{Layers: [][]byte{layer}}), As{Name: "x"}, nil); err != nil {
		t.Fatal(err)
	}
	img, err := s.Resolve(vnode.Image{Kind: vnode.OCIImage, Ref: "x"})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		wrote   []E // with white-outs as in a layer, which become overlay's
		command string
		want    string
	}{
		"nothing":             {nil, "/sbin/init", "sysv"},
		"systemd installed":   {[]E{{Name: "usr/lib/systemd/systemd", Mode: 0o755, Data: "\x7fELF"}, {Name: "usr/sbin/init", Type: '2', Link: "../lib/systemd/systemd"}}, "/usr/sbin/init", "systemd"},
		"by an absolute link": {[]E{{Name: "sbin/init", Type: '2', Link: "/lib/systemd/systemd"}}, "init", "systemd"},
		"busybox":             {[]E{{Name: "sbin/init", Type: '2', Link: "/bin/busybox"}}, "/sbin/init", "busybox"},
		"now a script":        {[]E{{Name: "sbin/init", Mode: 0o755, Data: "#!/bin/sh\n"}}, "/sbin/init", ""},
		"removed":             {[]E{{Name: "sbin/.wh.init"}}, "/sbin/init", ""},
		"its folder anew":     {[]E{{Name: "sbin/.wh..wh..opq"}}, "/sbin/init", ""},
		"its target removed":  {[]E{{Name: "sbin/init", Type: '2', Link: "/lib/systemd/systemd"}, {Name: "lib/.wh.systemd"}}, "/sbin/init", ""},
		"a link out":          {[]E{{Name: "sbin/init", Type: '2', Link: "../../../../../../bin/busybox"}}, "/sbin/init", "busybox"},
		"no FIFO":             {[]E{{Name: "sbin/init", Type: '6'}}, "/sbin/init", ""},
		"not asked for":       {[]E{{Name: "opt/app", Type: '2', Link: "/lib/systemd/systemd"}}, "/opt/app", ""},
		"nor by an argument":  {[]E{{Name: "opt/app", Type: '2', Link: "/bin/busybox"}}, "/opt/app init", ""},
	} {
		t.Run(name, func(t *testing.T) {
			upper, err := unpackTo(t, imagetest.Layer(t, c.wrote...))
			if err != nil {
				t.Fatal(err)
			}
			if got := InitKind(img, upper, strings.Fields(c.command)); got != c.want {
				t.Errorf("%q is %q, want %q", c.command, got, c.want)
			}
		})
	}
	if got := InitKind(img, t.TempDir()+"/gone", []string{"/sbin/init"}); got != "sysv" {
		t.Errorf("without a delta: %q", got)
	}
}

// TestLongWays: neither a deep tree nor links that lead back and forth make a start slow.
func TestLongWays(t *testing.T) {
	testkit.NeedsRoot(t)
	deep := strings.Repeat("d/", 150)
	dir, err := unpackTo(t, imagetest.Layer(t,
		E{Name: deep + "f"}, E{Name: "up", Type: '2', Link: deep + strings.Repeat("../", 150) + "f"}, E{Name: "f"}, E{Name: "near", Type: '2', Link: "d/../f"},
	))
	if err != nil {
		t.Fatal(err)
	}
	tr, err := openTree([]string{dir})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.close()
	for name, kind := range map[string]refuse.Kind{"near": 0, deep + "f": 0, "up": refuse.Invalid, strings.Repeat("./", 300) + "f": refuse.Invalid} {
		if _, _, err := tr.resolve(name); refuse.KindOf(err) != kind {
			t.Errorf("%.20s: %v", name, err)
		}
	}
}

func TestRecordNames(t *testing.T) {
	for _, name := range []string{"a", "a/b:c", "..", ".", "oci-layout:/a b/c", strings.Repeat("x/", 400)} {
		if f := recordFile(name); strings.Contains(f, "/") || len(f) > 255 || checkName(name) != nil {
			t.Errorf("%q: %q, %v", name, f, checkName(name))
		}
	}
}

var _ = []step.Step{&Delta{}, &Skeleton{}, &Unpack{}}

func TestCancelledLock(t *testing.T) {
	s := newStore(t)
	unlock, err := s.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.lock(ctx); !isContext(err) {
		t.Errorf("got %v", err)
	}
}
