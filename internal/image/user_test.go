package image

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/image/users"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// TestFindUser checks that a user is looked up in what the node would see: its own writes above the image's layers.
func TestFindUser(t *testing.T) {
	root, upper := t.TempDir(), t.TempDir()
	write := func(dir, name, text string) {
		t.Helper()
		err := errors.Join(os.MkdirAll(filepath.Join(dir, "etc"), 0o755), os.WriteFile(filepath.Join(dir, "etc", name), []byte(text), 0o600))
		if err != nil {
			t.Fatal(err)
		}
	}
	write(root, "passwd", "root:x:0:0::/:\napp:x:10:20::/:\n")
	write(root, "group", "web:x:30:app\n")
	write(upper, "passwd", "root:x:0:0::/:\napp:x:11:21::/:\nlate:x:12:22::/:\n")
	img := func(user string) Image { return Image{Lowers: []string{root}, Config: Config{User: user}} }
	for _, c := range []struct {
		img        Image
		upper, who string
		want       users.User
		kind       refuse.Kind
	}{
		{img: img("")},
		{img: img("app"), want: users.User{UID: 10, GID: 20, Groups: []uint32{20, 30}}},
		{img: img("app"), who: "77:88", want: users.User{UID: 77, GID: 88, Groups: []uint32{88}}},
		{img: img("app"), upper: upper, want: users.User{UID: 11, GID: 21, Groups: []uint32{21, 30}}},
		{img: img("app"), upper: filepath.Join(upper, "gone"), want: users.User{UID: 10, GID: 20, Groups: []uint32{20, 30}}},
		{img: img(""), upper: upper, who: "late", want: users.User{UID: 12, GID: 22, Groups: []uint32{22}}},
		{img: img(""), who: "late", kind: refuse.Invalid},
		{img: Image{Plain: true}, who: "0:0", want: users.User{Groups: []uint32{0}}},
	} {
		got, err := FindUser(c.img, c.upper, (&vnode.Node{}).HasID, c.who)
		if refuse.KindOf(err) != c.kind || !cmp.Equal(got, c.want) {
			t.Errorf("image's %q, asked %q: %+v, %v; want %+v, %v", c.img.Config.User, c.who, got, err, c.want, c.kind)
		}
	}
}
