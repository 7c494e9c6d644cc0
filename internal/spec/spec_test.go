package spec

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// files returns the files that match a pattern. It fails the test if there are none.
func files(t testing.TB, pattern string) []string {
	t.Helper()
	list, err := filepath.Glob(pattern)
	if err != nil || len(list) == 0 {
		t.Fatalf("no file is %s: %v", pattern, err)
	}
	return list
}

func read(t testing.TB, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestBroken compares the whole message of each broken spec with the .want file beside it.
func TestBroken(t *testing.T) {
	t.Parallel()
	for _, file := range files(t, "testdata/broken/*.yaml") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			nodes, err := Parse(filepath.Base(file), read(t, file))
			if err == nil || refuse.KindOf(err) != refuse.Invalid {
				t.Fatalf("got %d nodes and error %v, want a refusal", len(nodes), err)
			}
			var problems Problems
			if !errors.As(err, &problems) || len(problems) == 0 {
				t.Errorf("the error holds no Problems")
			}
			testkit.Golden(t, strings.TrimSuffix(file, ".yaml")+".want", err.Error()+"\n")
		})
	}
}

// TestGood reads the examples and other valid specs, and reads again what Marshal writes of them.
func TestGood(t *testing.T) {
	t.Parallel()
	for _, file := range append(files(t, "testdata/good/*.yaml"), files(t, "../../examples/*.yaml")...) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			nodes, err := Parse(file, read(t, file))
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range nodes {
				roundTrip(t, n)
			}
		})
	}
}

// TestMarshalText compares what Marshal writes for every key with a golden file.
func TestMarshalText(t *testing.T) {
	t.Parallel()
	nodes, err := Parse("full.yaml", read(t, "../../examples/full.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	testkit.Golden(t, "testdata/full.golden.yaml", roundTrip(t, nodes[0]))
}

// roundTrip writes and reads a node, and returns its text.
func roundTrip(t interface {
	Helper()
	Fatalf(string, ...any)
}, want *vnode.Node,
) string {
	t.Helper()
	text, err := Marshal(want)
	if err != nil {
		t.Fatalf("marshal: %v", err)
	}
	got, err := Parse("text", text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if diff := cmp.Diff([]*vnode.Node{want}, got); diff != "" {
		t.Fatalf("%s\n%s", diff, text)
	}
	return string(text)
}

func TestParseForms(t *testing.T) {
	t.Parallel()
	const byteOrderMark = "\ufeff"
	nodes, err := Parse("forms.yaml", append([]byte(byteOrderMark), read(t, "testdata/good/forms.yaml")...))
	if err != nil {
		t.Fatal(err)
	}
	image := vnode.Image{Kind: vnode.DirImage, Ref: "/srv/root"}
	want := []*vnode.Node{
		{
			Name: "block", Image: image, Command: []string{"/bin/sh", "-c", "echo one\necho two\n", "10", "true", "1.10"},
			CPU:    vnode.CPU{Max: 2000, Set: "3"},
			Memory: vnode.Memory{Max: 1 << 30},
			Network: []vnode.Network{
				{MAC: "02:00:5e:10:00:01", Address: []string{"2001:db8::10/64", "192.0.2.10/24"}},
			},
			Devices: []vnode.Device{{Path: "/dev/fuse"}, {Path: "/dev/kvm", Access: "r"}},
		},
		{Name: "json", Image: image, PIDs: 100, RLimits: vnode.RLimits{"core": 1<<64 - 1}},
		{Name: "marker", Image: image, CPU: vnode.CPU{Set: "0-2,7"}},
		{Name: "123", Image: image},
	}
	if diff := cmp.Diff(want, nodes); diff != "" {
		t.Error(diff)
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	for image, want := range map[string]string{
		"host":                     "host",
		"oci:images/worker":        "oci:images/worker",
		"oci-layout:images/worker": "oci-layout:/specs/images/worker",
		"dir:../root":              "dir:/root",
		"dir:/srv/root":            "dir:/srv/root",
		"file:root.tar":            "file:/specs/root.tar",
	} {
		n := &vnode.Node{}
		n.Image, _ = vnode.ParseImage(image)
		Resolve(n, "/specs")
		if got := n.Image.String(); got != want {
			t.Errorf("%s: got %s, want %s", image, got, want)
		}
	}
}

func TestSuggest(t *testing.T) {
	t.Parallel()
	allowed := []string{"name", "image", "memory", "in", "mac"}
	for word, want := range map[string]string{
		"name": "name", "memroy": "memory", "Name": "name", "im": "in", "imgae": "image", "imagee": "image",
		"x": "", "": "", "speed": "", "é": "", strings.Repeat("name", 1000): "",
	} {
		if got, _ := hint(word, allowed); got != want {
			t.Errorf("%.20q: got %q, want %q", word, got, want)
		}
	}
}
