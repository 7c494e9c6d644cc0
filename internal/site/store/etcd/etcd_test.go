package etcd_test

import (
	"os/exec"
	"path/filepath"
	"testing"

	"berth/internal/site/store"
	"berth/internal/site/store/etcd"
	"berth/internal/site/store/storetest"
	"berth/test/built"
)

// TestDebian runs the suite on the etcd that Debian brings.
func TestDebian(t *testing.T) {
	program, err := exec.LookPath("etcd")
	if err != nil {
		t.Skip("no etcd: package etcd-server")
	}
	suite(t, program)
}

// TestCurrent runs the suite on the etcd of go.mod, built as a program.
func TestCurrent(t *testing.T) {
	suite(t, current(t))
}

// current makes the etcd of go.mod.
func current(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := built.Etcd(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "etcd")
}

func suite(t *testing.T, program string) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a longer run: half a minute of an etcd")
	}
	t.Parallel()
	p, endpoint := storetest.Etcd(t, program)
	open := func(t *testing.T) *etcd.Store {
		t.Helper()
		s, err := etcd.Open(etcd.Config{Endpoints: []string{endpoint}})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	admin := open(t)
	defer admin.Close()
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
