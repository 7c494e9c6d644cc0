package examples

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestBuildDebian makes an image from Debian's packages, which boots systemd and has nothing of this host's, and runs a command of it.
func TestBuildDebian(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.ok("berth image build debian")
	var all []struct {
		Name   string
		Layers []string
		Config struct{ Cmd []string }
	}
	text, _ := p.try("berth image ls --json")
	if err := json.Unmarshal([]byte(text), &all); err != nil || len(all) != 1 {
		t.Fatalf("%v in %s", err, text)
	}
	if all[0].Name != "debian:bookworm" || strings.Join(all[0].Config.Cmd, " ") != "/sbin/init" {
		t.Errorf("stored is %+v", all)
	}
	images := filepath.Join(p.dir, "root/lib/images")
	root := filepath.Join(images, "layers/sha256", strings.TrimPrefix(all[0].Layers[0], "sha256:"))
	for _, own := range []string{"etc/hostname", "etc/resolv.conf", "etc/machine-id"} {
		if text, err := os.ReadFile(filepath.Join(root, own)); err != nil || len(text) > 0 {
			t.Errorf("%s of the image is %q, %v", own, text, err)
		}
	}
	for _, dir := range []string{"builds", "tmp"} {
		if left, err := os.ReadDir(filepath.Join(images, dir)); err != nil || len(left) > 0 {
			t.Errorf("left in %s: %v, %v", dir, left, err)
		}
	}
	said := p.ok(`berth run --image oci:debian:bookworm -- sh -c '. /etc/os-release && echo $VERSION_CODENAME && readlink -f /sbin/init && command -v systemctl && command -v dbus-daemon'`)
	if want := "bookworm\n/usr/lib/systemd/systemd\n/usr/bin/systemctl\n/usr/bin/dbus-daemon\n"; said != want {
		t.Errorf("a node of it says %q, want %q", said, want)
	}
}
