package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/site/store"
	"berth/internal/site/store/embedded"
	"berth/internal/site/store/etcd"
	"berth/internal/site/store/storetest"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// TestMain runs an embedded etcd for the suite, which stops and kills its process.
func TestMain(m *testing.M) {
	dir := os.Getenv("BERTH_TEST_EMBEDDED")
	if dir == "" {
		os.Exit(m.Run())
	}
	s, err := embedded.Start(context.Background(), embedded.Config{Dir: dir})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	<-s.Err()
}

func TestEmbedded(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs a longer run: half a minute of an etcd")
	}
	dir := testkit.Dir(t, "")
	p := storetest.Start(t, []string{"BERTH_TEST_EMBEDDED=" + dir}, os.Args[0])
	open := func(t *testing.T) *etcd.Store {
		t.Helper()
		return client(t, etcd.Config{Endpoints: []string{"unix:" + filepath.Join(dir, "socket")}})
	}
	admin := open(t)
	storetest.Ready(t, admin)
	storetest.Run(t, storetest.Server{
		Open: func(t *testing.T) store.Store { return open(t) },
		Compact: func(t *testing.T, revision int64) {
			if err := admin.Compact(t.Context(), revision); err != nil {
				t.Fatal(err)
			}
		},
		Away: p.Away, Kill: p.Kill, Expire: p.Expire,
	})
}

func client(t *testing.T, c etcd.Config) *etcd.Store {
	t.Helper()
	s, err := etcd.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func serve(t *testing.T, c embedded.Config) (*embedded.Server, *etcd.Store) {
	t.Helper()
	s, err := embedded.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	own, err := s.Client()
	if err != nil {
		t.Fatal(err)
	}
	return s, own
}

// TestRestore: what was backed up is there after the data were lost, later changes are not, and a watch from before is told.
func TestRestore(t *testing.T) {
	t.Parallel()
	dir := testkit.Dir(t, "")
	s, c := serve(t, embedded.Config{Dir: dir})
	put := func(value string) int64 {
		t.Helper()
		revision, err := c.Commit(t.Context(), nil, []store.Op{{Key: store.Key(store.Claims, "name", "n1"), Value: []byte(value)}})
		if err != nil {
			t.Fatal(err)
		}
		return revision
	}
	put("kept")
	backup := filepath.Join(t.TempDir(), "backup")
	beside, err := embedded.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := beside.Backup(t.Context(), backup); err != nil {
		t.Fatal(err)
	}
	backupToDevices(t, beside)
	beside.Close()
	last := put("later")
	c.Close()
	s.Close()
	if err := embedded.Restore(backup, dir); refuse.KindOf(err) != refuse.Busy {
		t.Errorf("a restore over data: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "data")); err != nil {
		t.Fatal(err)
	}
	if err := embedded.Restore(backup, dir); err != nil {
		t.Fatal(err)
	}
	s, c = serve(t, embedded.Config{Dir: dir})
	defer s.Close()
	defer c.Close()
	e, err := c.Get(t.Context(), store.Key(store.Claims, "name", "n1"))
	if err != nil || string(e.Value) != "kept" {
		t.Errorf("after the restore: %s, %v", e.Value, err)
	}
	changes, err := c.Watch(t.Context(), store.Root, last)
	if err != nil {
		t.Fatal(err)
	}
	if b := <-changes; !errors.Is(b.Err, store.ErrCompacted) {
		t.Errorf("a watch from before the restore: %+v", b)
	}
	if now := put("new"); now <= last {
		t.Errorf("revision %d after %d", now, last)
	}
}

// backupToDevices: a backup goes into a FIFO, and into a device as into /dev/null. Both stay.
func backupToDevices(t *testing.T, s *etcd.Store) {
	t.Helper()
	if os.Geteuid() != 0 {
		return // no devices for others
	}
	null, fifo := filepath.Join(t.TempDir(), "null"), filepath.Join(t.TempDir(), "fifo")
	if err := errors.Join(unix.Mknod(null, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))), unix.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	came := make(chan int, 1)
	go func() {
		text, _ := os.ReadFile(fifo)
		came <- len(text)
	}()
	for path, is := range map[string]os.FileMode{null: os.ModeDevice | os.ModeCharDevice, fifo: os.ModeNamedPipe} {
		if err := s.Backup(t.Context(), path); err != nil {
			t.Error(err)
		}
		if st, err := os.Lstat(path); err != nil || st.Mode().Type() != is {
			t.Fatalf("%s is %v now, %v", path, st.Mode(), err)
		}
	}
	if n := <-came; n == 0 {
		t.Error("nothing came through the FIFO")
	}
}

// TestLostPassword: a file that a power cut has emptied is no empty password.
func TestLostPassword(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "password")
	for _, text := range []string{"", "\x00\x00"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := embedded.Open(dir)
		if r, ok := errors.AsType[*refuse.Error](err); !ok || !strings.Contains(r.What, path) || !strings.Contains(r.Remedy, "backup") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestEndIsQuiet: what etcd says when it is ended, with a client that watches and has a session, is no warning of this program.
func TestEndIsQuiet(t *testing.T) {
	t.Parallel()
	var said testkit.Output
	s, own := serve(t, embedded.Config{Dir: testkit.Dir(t, ""), Log: func(format string, a ...any) { fmt.Fprintf(&said, format+"\n", a...) }})
	storetest.Ready(t, own)
	_, err := own.Watch(t.Context(), "/", 0)
	testkit.Must(t, err, own.Session(t.Context(), time.Minute))
	before := said.String()
	s.Close()
	if now := said.String(); now != before {
		t.Errorf("it said at its end:\n%s", strings.TrimPrefix(now, before))
	}
}
