package starts

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth/internal/bench/side"
	"berth/internal/spec"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// fakeBerth is a script.
func fakeBerth(t *testing.T, script string) Berth {
	t.Helper()
	self := filepath.Join(t.TempDir(), "berth")
	testkit.Must(t, os.WriteFile(self, []byte("#!/bin/sh\n"+script), 0o755))
	return Berth{Self: self, Root: []string{"--root", "/a b"}}
}

// A machine that is started to be timed is the one that was asked for, in both rows.
func TestMachineStarter(t *testing.T) {
	berth := fakeBerth(t, "echo 'model name : QEMU TCG CPU'")
	guest := &side.Guest{Image: "/a.erofs", Machine: vnode.Machine{Kernel: "/boot/vmlinuz", CPUs: 2, Memory: 1 << 30, Accel: vnode.TCG}}
	dir := t.TempDir()
	s, err := berth.MachineStarter(t.Context(), guest, dir)
	testkit.Must(t, err)
	want := []string{berth.Self, "--root", "/a b", "run", "--image", "file:/a.erofs", "--machine", "kernel=/boot/vmlinuz,cpus=2,memory=1073741824,accel=tcg", "--", "true"}
	if !slices.Equal(s.Once[0], want) || s.Emulated == "" || !s.Slow {
		t.Errorf("%+v, want %q", s, want)
	}
	text, err := os.ReadFile(s.Lasting[0][len(s.Lasting[0])-1])
	testkit.Must(t, err)
	nodes, err := spec.Parse("machine.yaml", text)
	testkit.Must(t, err)
	if n := nodes[0]; len(nodes) != 1 || !n.IsMachine() || n.Machine != guest.Machine || n.Image.Ref != "/a.erofs" || !slices.Contains(s.Lasting[1], n.Name) {
		t.Errorf("%+v of\n%s", n, text)
	}
}

// What an interrupted start leaves is removed; that there is nothing is no fault, that it cannot be removed is.
func TestStartsAreRemoved(t *testing.T) {
	for _, c := range []struct {
		name string
		code int
		want string
	}{{"removed", 0, ""}, {"not there", int(refuse.NotFound), ""}, {"stays", int(refuse.Busy), "it is held"}} {
		calls := filepath.Join(t.TempDir(), "calls")
		berth := fakeBerth(t, fmt.Sprintf("echo \"$@\" >> %s; echo it is held >&2; exit %d\n", calls, c.code))
		undo, err := berth.RemoveLater()
		testkit.Must(t, err)
		err = undo()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		said, err := os.ReadFile(calls)
		testkit.Must(t, err)
		if want := fmt.Sprintf("--root /a b rm --force %s\n--root /a b rm --force %s\n", nodeName(""), nodeName(ofMachine)); string(said) != want {
			t.Errorf("%s: %q, want %q", c.name, said, want)
		}
	}
}
