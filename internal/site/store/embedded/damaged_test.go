package embedded_test

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/site/store"
	"berth/internal/site/store/embedded"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// filled makes the data of an etcd with some keys, and a backup of them.
func filled(t *testing.T) (dir, backup string) {
	t.Helper()
	dir, backup = testkit.Dir(t, ""), filepath.Join(t.TempDir(), "backup")
	s, c := serve(t, embedded.Config{Dir: dir})
	defer s.Close()
	defer c.Close()
	for range 50 {
		if _, err := c.Commit(t.Context(), nil, []store.Op{{Key: store.Key(store.Claims, "name", "n1"), Value: make([]byte, 1000)}}); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Must(t, c.Backup(t.Context(), backup))
	return dir, backup
}

// TestRestoreCut: a backup that is not whole is refused in words that help, and leaves nothing behind that would keep a good one out.
func TestRestoreCut(t *testing.T) {
	t.Parallel()
	_, backup := filled(t)
	whole, err := os.ReadFile(backup)
	testkit.Must(t, err)
	dir := filepath.Join(testkit.Dir(t, ""), "store")
	changed := append([]byte{}, whole...)
	changed[len(changed)/2] ^= 1
	zeros := append([]byte{}, whole[:len(whole)-sha256.Size]...)
	clear(zeros[2*4096 : len(zeros)-4096])
	sum := sha256.Sum256(zeros)
	for what, text := range map[string][]byte{
		"pages are zero, and the checksum fits": append(zeros, sum[:]...), "nothing": nil, "cut": whole[:len(whole)-100], "cut to the size of a backup": whole[:8192+32], "changed": changed, "not a backup": []byte("hello"),
	} {
		cut := filepath.Join(t.TempDir(), "cut")
		testkit.Must(t, os.WriteFile(cut, text, 0o600))
		err := embedded.Restore(cut, dir)
		if refuse.KindOf(err) != refuse.Invalid || !strings.Contains(err.Error(), cut) || strings.Contains(err.Error(), "--skip") || strings.Contains(err.Error(), ".damaged") {
			t.Errorf("%s: %v", what, err)
		}
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("%s: left %v", what, left)
		}
	}
	if err := embedded.Restore(backup+"-none", dir); refuse.KindOf(err) != refuse.NotFound {
		t.Errorf("none: %v", err)
	}
	testkit.Must(t, os.MkdirAll(filepath.Join(dir, "restore", "member"), 0o700)) // of a restore that was killed
	testkit.Must(t, embedded.Restore(backup, dir))
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
}

// TestDamagedData: an agent says of a damaged cluster state that it is damaged and what to do, and does not die of it.
func TestDamagedData(t *testing.T) {
	t.Parallel()
	made, _ := filled(t)
	logs, err := filepath.Glob(filepath.Join(made, "data/member/wal/*.wal"))
	if err != nil || len(logs) == 0 {
		t.Fatal(logs, err)
	}
	log := strings.TrimPrefix(logs[len(logs)-1], made)
	const db = "/data/member/snap/db"
	for what, damage := range map[string]func(dir string) error{
		"the database is cut":             func(dir string) error { return os.Truncate(dir+db, 3*4096) },
		"the database is cut in a page":   func(dir string) error { return os.Truncate(dir+db, 5000) },
		"the database is something else":  func(dir string) error { return os.WriteFile(dir+db, make([]byte, 1<<20), 0o600) },
		"pages of the database are zero":  func(dir string) error { return overwrite(dir+db, 2*4096, make([]byte, 40*4096)) },
		"a page's number is changed":      func(dir string) error { return misleads(dir + db) },
		"the log is cut":                  func(dir string) error { return os.Truncate(dir+log, 3000) },
		"the log is cut at its beginning": func(dir string) error { return os.Truncate(dir+log, 100) },
		"the log is changed":              func(dir string) error { return overwrite(dir+log, 3000, []byte("this is no log")) },
		"the log is gone":                 func(dir string) error { return os.RemoveAll(dir + "/data/member/wal") },
	} {
		dir := filepath.Join(testkit.Dir(t, ""), "store")
		testkit.Must(t, os.CopyFS(dir+"/data", os.DirFS(made+"/data")), damage(dir))
		_, err := embedded.Start(t.Context(), embedded.Config{Dir: dir})
		if err == nil || !strings.Contains(err.Error(), dir+"/data is damaged") || !strings.Contains(err.Error(), "berthd --restore") {
			t.Errorf("%s: %v", what, err)
		}
		testkit.Must(t, os.RemoveAll(dir)) // a log alone has 64 MiB
	}
	s, c := serve(t, embedded.Config{Dir: made}) // as it was
	c.Close()
	s.Close()
}

// misleads gives etcd's keys, of a database, a page that is far behind its end: in the page that the database begins with (of its two heads, each names
// one; bbolt/internal/common/meta.go), the name of their bucket stands before the number of its page.
func misleads(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for head := range 2 {
		at := binary.NativeEndian.Uint64(text[head*4096+32:]) * 4096
		i := bytes.Index(text[at:at+4096], []byte("key"))
		if i < 0 {
			return errors.New("there are no keys in the database")
		}
		binary.NativeEndian.PutUint64(text[int(at)+i+3:], 1<<30)
	}
	return os.WriteFile(path, text, 0o600)
}

func overwrite(path string, at int64, with []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(with, at)
	return errors.Join(err, f.Close())
}

// TestTakenAddress: an address that something else listens at is said as what it is.
func TestTakenAddress(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	defer taken.Close()
	ca := &authority{dir: t.TempDir()}
	ca.issue(t, "ca", "ca")
	ca.issue(t, "a", "host")
	_, err = embedded.Start(t.Context(), embedded.Config{
		Dir: testkit.Dir(t, ""), Listen: taken.Addr().String(), CA: ca.path("ca.crt"), Cert: ca.path("a.crt"), Key: ca.path("a.key"),
	})
	if refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "store.embedded.listen") || strings.Contains(err.Error(), "backup") {
		t.Errorf("a taken address: %v", err)
	}
}

// TestHandshakeIsTold: who reaches the cluster state and does not take its certificate learns why, and not that nobody answered.
func TestHandshakeIsTold(t *testing.T) {
	t.Parallel()
	ca, another := &authority{dir: t.TempDir()}, &authority{dir: t.TempDir()}
	for _, a := range []*authority{ca, another} {
		a.issue(t, "ca", "ca")
		a.issue(t, "a", "host")
	}
	s, own := serve(t, embedded.Config{
		Dir: testkit.Dir(t, ""), Listen: "127.0.0.1:0", CA: ca.path("ca.crt"), Cert: ca.path("a.crt"), Key: ca.path("a.key"),
		Allowed: func(*x509.Certificate) error { return nil },
	})
	defer s.Close()
	defer own.Close()
	_, err := another.as(t, "a", "https://"+s.Addr()).Get(t.Context(), store.Root)
	if !errors.Is(err, store.ErrAway) || !strings.Contains(err.Error(), "signed by unknown authority") {
		t.Errorf("got %v", err)
	}
}
