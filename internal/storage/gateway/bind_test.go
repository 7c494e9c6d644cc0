package gateway

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/spec/vnode"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
)

func TestBindRefuses(t *testing.T) {
	root := t.TempDir()
	l := layout.New(root)
	other := t.TempDir()
	for _, dir := range []string{l.Lib + "/nodes/other/delta", l.Run, other + "/in"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	link := func(to, name string) string {
		name = filepath.Join(other, name)
		if err := os.Symlink(to, name); err != nil {
			t.Fatal(err)
		}
		return name
	}
	for _, c := range []struct {
		source string
		kind   refuse.Kind
		text   string
	}{
		{"/", refuse.Invalid, "whole root"},
		{"/proc", refuse.Invalid, "host's own"},
		{"/proc/sys/kernel", refuse.Invalid, "host's own"},
		{"/dev", refuse.Invalid, "host's own"},
		{"/dev/null", refuse.Invalid, "use devices"},
		{link("/proc/1", "p"), refuse.Invalid, "(that is, /proc/1)"},
		{link("/", "r"), refuse.Invalid, "(that is, /)"},
		{l.Lib, refuse.Invalid, "Berth's own"},
		{l.Lib + "/nodes/other/delta", refuse.Invalid, "Berth's own"},
		{link(l.Run, "run"), refuse.Invalid, "Berth's own"},
		{root, refuse.Invalid, "Berth's own"},
		{filepath.Dir(layout.New("").Lib), refuse.Invalid, "Berth's own"},
		{other + "/gone", refuse.NotFound, "there is no"},
		{link("nowhere", "dangling"), refuse.NotFound, "there is no"},
		{link("loop", "loop"), refuse.Failed, "find the source"},
	} {
		_, err := Bind{}.Look(t.Context(), vnode.Mount{Source: c.source, Target: "/t", Map: vnode.Identity}, Node{UserNS: true, Layout: l})
		if err == nil || refuse.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v (kind %d), want kind %d with %q", c.source, err, refuse.KindOf(err), c.kind, c.text)
		}
	}
}

func TestBindShowsWhatALinkStandsFor(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/real", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	s, err := Bind{}.Look(t.Context(), vnode.Mount{Source: dir + "/link", Target: "/t", Map: vnode.Identity}, Node{Layout: layout.New(t.TempDir())})
	if err != nil {
		t.Fatal(err)
	}
	if s.Path != dir+"/real" || s.FSType == "" {
		t.Errorf("got %+v", s)
	}
}

func TestBindTakesSockets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	sock, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sock.Close() })
	if _, err := (Bind{}).Look(t.Context(), vnode.Mount{Source: path, Target: "/t", Map: vnode.Identity}, Node{Layout: layout.New(t.TempDir())}); err != nil {
		t.Error(err)
	}
}

func TestFor(t *testing.T) {
	for _, name := range []string{"", "bind"} {
		if g, err := All().For(name); err != nil || g != (Bind{}) {
			t.Errorf("%q: %v, %v", name, g, err)
		}
	}
	if _, err := All().For("virtiofs"); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("virtiofs: %v", err)
	}
}
