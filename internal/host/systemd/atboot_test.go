package systemd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAtBoot(t *testing.T) {
	u := AtBoot{
		Dir: t.TempDir(), Name: "berth-vfs.service", By: "berth vf enable", About: "Virtual functions", Order: "After=systemd-udevd.service\n",
		Args: []string{"/usr/bin/berth", "--root", "/a b/100%", "vf", "restore"},
	}
	for range 2 {
		if err := u.Write(); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(filepath.Join(u.Dir, "multi-user.target.wants", u.Name))
	for _, want := range []string{
		"# Written by berth vf enable.\n[Unit]\nDescription=Virtual functions\nAfter=systemd-udevd.service\n\n[Service]\n",
		`ExecStart=/usr/bin/berth --root "/a b/100%%" vf restore` + "\n",
	} {
		if err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s %v, want %s", b, err, want)
		}
	}
	for range 2 {
		if err := u.Remove(); err != nil {
			t.Fatal(err)
		}
	}
	left, err := filepath.Glob(filepath.Join(u.Dir, "*.service*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
