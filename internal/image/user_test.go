package image

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"berth/internal/refuse"
)

func TestUser(t *testing.T) {
	root := t.TempDir()
	etc := filepath.Join(root, "etc")
	err := errors.Join(os.Mkdir(etc, 0o755),
		os.WriteFile(filepath.Join(etc, "passwd"), []byte("root:x:0:0::/:\napp:x:10:20::/:\nbad:x:::/:\nshort:x\n"), 0o600),
		os.WriteFile(filepath.Join(etc, "group"), []byte("web:x:30:app\n"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	for user, want := range map[string]struct {
		uid, gid uint32
		kind     refuse.Kind
	}{
		"": {}, "root": {}, "app": {10, 20, 0}, "10": {10, 20, 0}, "77": {77, 0, 0}, "app:web": {10, 30, 0}, "77:88": {77, 88, 0}, ":web": {0, 30, 0},
		"nobody": {0, 0, refuse.Invalid}, "bad": {0, 0, refuse.Invalid}, "short": {0, 0, refuse.Invalid}, "app:none": {0, 0, refuse.Invalid},
		"70000": {0, 0, refuse.Invalid}, "-1": {0, 0, refuse.Invalid},
	} {
		uid, gid, err := User(Image{Lowers: []string{root}, Config: Config{User: user}})
		if refuse.KindOf(err) != want.kind || err == nil && (uid != want.uid || gid != want.gid) {
			t.Errorf("%q: %d:%d %v, want %+v", user, uid, gid, err, want)
		}
	}
}
