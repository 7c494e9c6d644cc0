package image

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/image/imagetest"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// TestPacked: a packed image says of its command, its users and its init what the stored one does.
func TestPacked(t *testing.T) {
	testkit.NeedsRoot(t)
	if _, err := exec.LookPath("mkfs.erofs"); err != nil {
		t.Skip("no mkfs.erofs: install Debian's package erofs-utils")
	}
	s := newStore(t)
	layer := imagetest.Layer(t, E{Name: "sbin/init", Mode: 0o755, Data: "\x7fELF"}, E{Name: "usr/lib/systemd/systemd", Mode: 0o755, Data: "\x7fELF"},
		E{Name: "etc/passwd", Data: "root:x:0:0::/:/bin/sh\nweb:x:33:34::/:/bin/sh\n"}, E{Name: "etc/group", Data: "web:x:34:\n"})
	config := imagetest.Config{Entrypoint: []string{"/sbin/init"}, Env: []string{"A=1"}, User: "web", WorkingDir: "/srv", StopSignal: "SIGTERM"}
	archive := imagetest.OCIArchive(t, imagetest.Image{Config: config, Layers: [][]byte{layer}})
	if _, err := s.Import(t.Context(), archive, As{Name: "x"}, nil); err != nil {
		t.Fatal(err)
	}
	stored, err := s.Resolve(vnode.Image{Kind: vnode.OCIImage, Ref: "x"})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "x.erofs")
	r, err := s.Pack(t.Context(), "x", file)
	if err != nil {
		t.Fatal(err)
	}
	img, err := s.Resolve(vnode.Image{Kind: vnode.FileImage, Ref: file})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(stored.Config, img.Config); diff != "" {
		t.Error(diff)
	}
	upper := t.TempDir()
	for _, command := range [][]string{{"/sbin/init"}, {"/usr/lib/systemd/systemd"}, {"/bin/none"}} {
		for _, up := range []string{"", upper, filepath.Join(upper, "gone")} {
			if a, b := InitKind(stored, up, command), InitKind(img, up, command); a != b {
				t.Errorf("%s is %q, packed %q", command, a, b)
			}
		}
	}
	u, err := FindUser(img, upper, (&vnode.Node{}).HasID, "")
	if err != nil || u.UID != 33 || u.GID != 34 {
		t.Errorf("its user is %+v, %v", u, err)
	}
	all, err := s.ListPacked()
	if err != nil || len(all) != 1 || !cmp.Equal(all[0], r) || r.Name != "file:"+file || r.From != "x" {
		t.Errorf("listed: %+v, %v; packed: %+v", all, err, r)
	}
	used := func(_ string, layers []string) ([]string, error) {
		if cmp.Equal(layers, img.Layers) {
			return []string{"n1"}, nil
		}
		return nil, nil
	}
	if err := s.Remove(t.Context(), "file:"+file, used); refuse.KindOf(err) != refuse.Busy || !strings.Contains(err.Error(), "n1") {
		t.Errorf("remove what is used: %v", err)
	}
	unused := func(string, []string) ([]string, error) { return nil, nil }
	if err := s.Remove(t.Context(), "file:"+file, unused); err != nil {
		t.Error(err)
	}
	if _, err := s.Resolve(vnode.Image{Kind: vnode.FileImage, Ref: file}); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("forgotten, and resolved: %v", err)
	}
	if _, err := s.Resolve(vnode.Image{Kind: vnode.FileImage, Ref: "/srv/x.tar"}); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("an archive as file: %v", err)
	}
}
