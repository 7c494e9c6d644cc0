package pull

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"

	"berth/internal/sys/lock"
	"berth/internal/sys/refuse"
)

func TestName(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("0", 64)
	for ref, want := range map[string]string{
		"docker.io/library/debian:12":     "docker.io/library/debian:12",
		"docker.io/debian":                "docker.io/library/debian:latest",
		"docker://registry.example/a/b:c": "registry.example/a/b:c",
		"registry.example:5000/a":         "registry.example:5000/a:latest",
		"localhost/a":                     "localhost/a:latest",
		"[::1]:5000/a":                    "[::1]:5000/a:latest",
		"registry.example/a" + digest:     "registry.example/a" + digest,
		"registry.example/a:b" + digest:   "registry.example/a:b" + digest,
		"debian:12":                       "! docker.io/library/debian:12 is the one of Docker Hub",
		"team/app":                        "! docker.io/team/app is the one of Docker Hub",
		"":                                "! docker.io/library/debian:12",
		"https://registry.example/a":      "! docker.io/library/debian:12",
		"registry.example/a b":            "! docker.io/library/debian:12",
	} {
		got, err := Name(ref)
		if words, bad := strings.CutPrefix(want, "! "); bad {
			if refuse.KindOf(err) != refuse.Invalid || !strings.Contains(err.Error(), words) {
				t.Errorf("Name(%q) = %q, %v", ref, got, err)
			}
			continue
		}
		if got != want || err != nil {
			t.Errorf("Name(%q) = %q, %v; want %q", ref, got, err, want)
		}
	}
}

// FuzzName compares Name with the library: the full name means what the short one does, and is its own full name.
func FuzzName(f *testing.F) {
	for _, s := range []string{"docker.io/debian", "registry.example:1/a/b:c@sha256:" + strings.Repeat("0", 64), "localhost/x", "a.b/c@d:e", "docker://docker.io/x", ":/", "./a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, ref string) {
		full, err := Name(ref)
		if err != nil {
			return
		}
		if again, err := Name(full); err != nil || again != full {
			t.Errorf("Name(%q) = %q, but Name of that is %q, %v", ref, full, again, err)
		}
		want, wantErr := name.ParseReference(strings.TrimPrefix(ref, Transport))
		got, err := name.ParseReference(full)
		if wantErr == nil && (err != nil || got.Name() != want.Name()) {
			t.Errorf("Name(%q) = %q, which means %v, %v; want %v", ref, full, got, err, want)
		}
	})
}

// TestSweep removes old blobs that nobody has locked.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	if n, err := Sweep(dir, 0); n != 0 || err != nil {
		t.Errorf("nothing there: %d, %v", n, err)
	}
	if err := os.MkdirAll(Blobs(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-Stale - time.Hour)
	for _, f := range []string{"old", "locked", "new"} {
		path := filepath.Join(Blobs(dir), f)
		if err := os.WriteFile(path, []byte("12345"), 0o600); err != nil {
			t.Fatal(err)
		}
		if f != "new" {
			if err := os.Chtimes(path, old, old); err != nil {
				t.Fatal(err)
			}
		}
	}
	held, err := lock.Open(t.Context(), filepath.Join(Blobs(dir), "locked"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		age   time.Duration
		freed int64
		left  int
	}{{Stale, 5, 2}, {Stale, 0, 2}, {0, 5, 1}} {
		freed, err := Sweep(dir, c.age)
		left, _ := os.ReadDir(Blobs(dir))
		if freed != c.freed || err != nil || len(left) != c.left {
			t.Errorf("%s: freed %d, %v, left %d", c.age, freed, err, len(left))
		}
	}
	held.Close()
	if freed, err := Sweep(dir, 0); freed != 5 || err != nil {
		t.Errorf("unlocked: %d, %v", freed, err)
	}
}
