package security

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/image/imagetest"
)

// standardDevices returns the device nodes that every node has.
func standardDevices() map[string]string {
	return map[string]string{
		"/dev/null": "c 1:3", "/dev/zero": "c 1:5", "/dev/full": "c 1:7", "/dev/random": "c 1:8", "/dev/urandom": "c 1:9",
		"/dev/tty": "c 5:0", "/dev/pts/ptmx": "c 5:2",
	}
}

// TestDevices checks that a node has the standard devices only, and that other device names do not open.
func TestDevices(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		got := map[string]string{}
		w.probe(t, &got, "devices")
		if diff := cmp.Diff(standardDevices(), got); diff != "" {
			t.Error(diff)
		}
		got = map[string]string{}
		w.probe(t, &got, "read", "/dev/mem", "/dev/kmsg", "/dev/vda", "/dev/sda", "/dev/loop0", "/dev/fuse", "/dev/kvm", "/dev/net/tun",
			"/dev/core", "/dev/console", "/dev/tty0", "/dev/input/event0")
		for path, what := range got {
			if what != "ENOENT" && path != "/dev/core" || strings.HasPrefix(what, "read") {
				t.Errorf("%s: %s", path, what)
			}
		}
	})
}

// TestDevicesOfAnImage checks that device nodes in an image folder do not open. Without a user namespace only the node's cgroup
// denies them, and it allows the standard devices.
func TestDevicesOfAnImage(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		dir := imagetest.BusyboxDir(t)
		addProbe(t, dir)
		if err := os.Mkdir(filepath.Join(dir, "nodes"), 0o755); err != nil {
			t.Fatal(err)
		}
		var root unix.Stat_t
		if err := unix.Stat("/", &root); err != nil {
			t.Fatal(err)
		}
		var paths []string
		for name, n := range map[string]struct {
			mode uint32
			dev  uint64
		}{"disk": {unix.S_IFBLK, root.Dev}, "mem": {unix.S_IFCHR, unix.Mkdev(1, 1)}, "null": {unix.S_IFCHR, unix.Mkdev(1, 3)}} {
			path := filepath.Join(dir, "nodes", name)
			if err := unix.Mknod(path, n.mode|0o666, int(n.dev)); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, 0o666); err != nil {
				t.Fatal(err)
			}
			paths = append(paths, "/nodes/"+name)
		}
		for _, flags := range [][]string{nil, {"--no-user-namespace"}} {
			got := map[string]string{}
			args := append([]string{"run", "--image", "dir:" + dir}, flags...)
			decode(t, w.OK(t, append(append(args, "--", "/probe", "read"), paths...)...), &got)
			for path, what := range got {
				if what != "EACCES" && what != "EPERM" && (flags == nil || path != "/nodes/null") {
					t.Errorf("%v: %s: %s", flags, path, what)
				}
			}
		}
	})
}

// addProbe copies the probe into an image folder.
func addProbe(t *testing.T, dir string) {
	t.Helper()
	program, err := os.ReadFile(build.probe)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "probe"), program, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestDevicesRefused checks that device paths in specs, links included, cannot give a node a device that opens the host.
func TestDevicesRefused(t *testing.T) {
	w := anyRuntime(t)
	link := filepath.Join(t.TempDir(), "zero")
	if err := os.Symlink("/dev/mem", link); err != nil {
		t.Fatal(err)
	}
	disk := "/dev/" + rootDisk(t)
	for _, device := range []string{
		"/dev/mem", "/dev/kmsg", "/dev/port", "/dev/tty0", disk, "/dev/../dev/mem", "/etc/passwd",
		"{path: " + link + ", as: /dev/zero2}", "{path: /dev/zero, as: /etc/zero}", "{path: /dev/zero, as: /dev/../etc/zero}",
		"{path: /dev/zero, as: /dev/pts/9}", "{path: /dev/zero, as: /dev/fd}", "{path: /dev/zero, as: /dev/shm/x}",
	} {
		spec := filepath.Join(t.TempDir(), "node.yaml")
		text := "name: " + unique(t) + "\nimage: host\ncommand: [/bin/true]\ndevices: [" + device + "]\n"
		if err := os.WriteFile(spec, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		stdout, stderr, code := w.Try("run", "-f", spec)
		if code != 125 {
			t.Errorf("%s: exit code %d: %s%s", device, code, stdout, stderr)
		}
	}
}

// rootDisk returns the kernel's name of the device below the host's root file system.
func rootDisk(t *testing.T) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat("/", &st); err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if len(f) > 1 && f[1] == "/" && strings.HasPrefix(f[0], "/dev/") {
			if name, ok := strings.CutPrefix(f[0], "/dev/"); ok && name != "root" {
				return name
			}
		}
	}
	t.Skip("no disk is known under the host's root")
	return ""
}
