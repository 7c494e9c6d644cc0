package security

import (
	"archive/tar"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/image/imagetest"
)

// withProbe returns a mount of the probe, for images that do not contain it.
func withProbe() string { return build.probeDir + ":/probe:ro" }

// TestLinksInAnImage checks that a mount whose target is a link in the image stays inside the node or is refused, and that nothing
// is made on the host.
func TestLinksInAnImage(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		source, mark := t.TempDir(), unique(t)
		plant(t, filepath.Join(source, mark), "mounted", 0o644)
		outside := "/etc/" + mark
		for name, link := range map[string]string{
			"absolute": "/etc", "climbing": "../../../../../../../../etc", "dangling": outside, "through a link": "/up/etc",
			"by proc": "/proc/1/root/etc", "by descriptor": "/proc/self/fd/5", "to itself": "data",
		} {
			t.Run(name, func(t *testing.T) {
				dir := imagetest.OCILayout(t, imagetest.Image{Layers: [][]byte{imagetest.Layer(
					t,
					imagetest.Entry{Name: "etc", Type: tar.TypeDir}, imagetest.Entry{Name: "proc", Type: tar.TypeDir},
					imagetest.Entry{Name: "up", Type: tar.TypeSymlink, Link: "../../.."},
					imagetest.Entry{Name: "data", Type: tar.TypeSymlink, Link: link})}})
				args := []string{"run", "--image", "oci-layout:" + dir, "--mount", withProbe(), "--mount", source + ":/data", "--", "/probe/probe", "find", "/", mark}
				stdout, stderr, code := w.Try(args...)
				t.Logf("%d %s%s", code, stdout, stderr)
				if _, err := os.Lstat(outside); err == nil {
					t.Errorf("%s was made on the host", outside)
				}
				if code != 0 { // a refusal is fine too
					return
				}
				found := map[string]string{}
				decode(t, stdout, &found)
				for path, what := range found {
					if what != "read mounted" {
						t.Errorf("%s: %s", path, what)
					}
				}
				if _, err := os.Lstat(filepath.Join("/etc", mark)); err == nil {
					t.Error("the folder is mounted on the host's /etc")
				}
			})
		}
	})
}

// TestMountPointsThatAreLinks checks that an image whose /dev, /proc or /sys is a link is refused, because the runtimes' own mounts
// would follow it.
func TestMountPointsThatAreLinks(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		for _, name := range []string{"dev", "proc", "sys"} {
			for _, link := range []string{"/etc", "../../..", "/probe-dir", "/proc/self/fd"} {
				dir := t.TempDir()
				addProbe(t, dir)
				if err := os.Symlink(link, filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
				_, stderr, code := w.Try("run", "--image", "dir:"+dir, "--", "/probe", "pids")
				if code != 125 || !strings.Contains(stderr, "symbolic link") {
					t.Errorf("/%s is a link to %s: exit code %d: %s", name, link, code, stderr)
				}
			}
			// A file in the place of such a folder is refused too.
			dir := t.TempDir()
			addProbe(t, dir)
			plant(t, filepath.Join(dir, name), "a file", 0o644)
			if _, stderr, code := w.Try("run", "--image", "dir:"+dir, "--", "/probe", "pids"); code == 0 {
				t.Errorf("/%s is a file, and a node runs on it: %s", name, stderr)
			}
		}
	})
}

// TestHostileConfig checks that an image's working folder, user and command do not lead out of the node.
func TestHostileConfig(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		mark := "berth-secret-" + unique(t)
		plant(t, "/etc/"+mark, "the secret", 0o644)
		layer := imagetest.Layer(t, imagetest.Entry{Name: "proc", Type: tar.TypeDir},
			imagetest.Entry{Name: "etc/passwd", Data: "evil:x:4294967295:4294967295::/:/\nodd:x:-1:0::/:/\nplain:x:1000:1000::/:/\n"},
			imagetest.Entry{Name: "cwd", Type: tar.TypeSymlink, Link: "/proc/self/fd/7"})
		run := func(c imagetest.Config, args ...string) (string, string, int) {
			dir := imagetest.OCILayout(t, imagetest.Image{Config: c, Layers: [][]byte{layer}})
			return w.Try(append([]string{"run", "--image", "oci-layout:" + dir, "--mount", withProbe(), "--", "/probe/probe"}, args...)...)
		}
		// CVE-2024-21626: a working folder that is a descriptor of the runtime, open on the host.
		for _, dir := range []string{"/proc/self/fd/3", "/proc/self/fd/7", "/proc/self/fd/8", "/proc/self/fd/9", "/proc/1/cwd", "/cwd", "../..", "/proc/thread-self/fd/7/../../.."} {
			escaped := strings.Repeat("../", 12) + "etc/" + mark
			stdout, _, code := run(imagetest.Config{WorkingDir: dir}, "read", escaped)
			got := map[string]string{}
			if code == 0 {
				decode(t, stdout, &got)
			}
			if strings.HasPrefix(got[escaped], "read") {
				t.Errorf("working folder %s: the node reads the host's file", dir)
			}
		}
		for user, code := range map[string]int{
			"plain": 0, "1000:1000": 0, "evil": 125, "odd": 125, "nobody-here": 125, "4294967295": 125, "-1": 125, "../../etc/passwd": 125, "0\x1b[31m": 125,
		} {
			stdout, stderr, got := run(imagetest.Config{User: user}, "identity")
			if got != code {
				t.Errorf("user %q: exit code %d, not %d: %s", user, got, code, stderr)
			}
			id := map[string]int{}
			if got == 0 {
				decode(t, stdout, &id)
			}
			if got == 0 && id["uid"] != 1000 {
				t.Errorf("user %q runs as %v", user, id)
			}
		}
		for _, command := range []string{"/proc/self/fd/3", "/cwd/../../../../../../bin/true", "../../../../bin/true", "/proc/1/root/bin/true"} {
			dir := imagetest.OCILayout(t, imagetest.Image{Config: imagetest.Config{Cmd: []string{command}}, Layers: [][]byte{layer}})
			if _, stderr, code := w.Try("run", "--image", "oci-layout:"+dir); code != 127 && code != 126 && code != 125 {
				t.Errorf("command %s: exit code %d: %s", command, code, stderr)
			}
		}
	})
}
