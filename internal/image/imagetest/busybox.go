package imagetest

import (
	"archive/tar"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"berth/test/testkit"
)

// hostBusybox is the path of Debian's package busybox-static.
const hostBusybox = "/bin/busybox"

// inittab boots to a point where a test can see it (the file /run/booted), then waits; SIGUSR1 halts it (busybox init:
// SIGUSR1 halt, SIGUSR2 power off, SIGTERM reboot).
const inittab = `::sysinit:/etc/init.d/rcS
::once:/bin/sleep 1000000
::shutdown:/bin/touch /run/halting
`

const rcS = `#!/bin/sh
mkdir -p /run
echo booted > /run/booted
`

// Busybox makes an OCI archive (tar) of a small system around the host's static busybox: every applet, /sbin/init,
// an inittab, users root and daemon. Its command is /bin/sh. The test is skipped where the host has no static busybox.
func Busybox(t testing.TB) string {
	t.Helper()
	return OCIArchive(t, BusyboxImage(t))
}

// BusyboxImage returns the image of Busybox, for tests that add layers to it or write it in another form.
func BusyboxImage(t testing.TB) Image {
	t.Helper()
	return Image{
		Arch:   runtime.GOARCH,
		Config: Config{Cmd: []string{"/bin/sh"}, Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}},
		Layers: [][]byte{Layer(t, busyboxEntries(t)...)},
	}
}

// BusyboxDir makes the same system as a folder (owned by root, for dir: images) and returns it. Folders up to the
// temporary one are made searchable by all, since a node's ids must reach it.
func BusyboxDir(t testing.TB) string {
	t.Helper()
	entries := busyboxEntries(t)
	root := t.TempDir()
	for d := root; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		testkit.Must(t, os.Chmod(d, 0o755))
	}
	for _, e := range entries {
		path := filepath.Join(root, e.Name)
		switch e.Type {
		case tar.TypeDir:
			testkit.Must(t, os.MkdirAll(path, 0o755))
			mode := os.FileMode(e.Mode & 0o777)
			if e.Mode&0o1000 != 0 {
				mode |= os.ModeSticky
			}
			if e.Mode != 0 {
				testkit.Must(t, os.Chmod(path, mode))
			}
		case tar.TypeSymlink:
			testkit.Must(t, os.Symlink(e.Link, path))
		default:
			mode := os.FileMode(0o644)
			if e.Mode != 0 {
				mode = os.FileMode(e.Mode)
			}
			testkit.Must(t, os.WriteFile(path, []byte(e.Data), mode))
			testkit.Must(t, os.Chmod(path, mode))
		}
	}
	return root
}

func busyboxEntries(t testing.TB) []Entry {
	t.Helper()
	binary, applets := busybox(t)
	var entries []Entry
	for _, d := range []string{
		"bin", "sbin", "usr", "usr/bin", "usr/sbin", "etc", "etc/init.d", "dev", "proc", "sys", "run", "root", "home", "var", "var/log",
	} {
		entries = append(entries, Entry{Name: d, Type: tar.TypeDir})
	}
	entries = append(
		entries,
		Entry{Name: "tmp", Type: tar.TypeDir, Mode: 0o1777},
		Entry{Name: "bin/busybox", Mode: 0o755, Data: string(binary)},
		Entry{Name: "etc/passwd", Data: "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/:/bin/false\n"},
		Entry{Name: "etc/group", Data: "root:x:0:\ndaemon:x:1:\n"},
		Entry{Name: "etc/inittab", Data: inittab},
		Entry{Name: "etc/init.d/rcS", Mode: 0o755, Data: rcS},
	)
	for _, a := range applets {
		entries = append(entries, Entry{Name: a, Type: tar.TypeSymlink, Link: "/bin/busybox"})
	}
	return entries
}

// busybox returns the host's busybox and the paths of its applets. It skips the test if there is no static busybox.
func busybox(t testing.TB) (binary []byte, applets []string) {
	t.Helper()
	binary, err := os.ReadFile(hostBusybox)
	if err != nil {
		t.Skipf("no %s: install Debian's package busybox-static", hostBusybox)
	}
	f, err := elf.Open(hostBusybox)
	if err != nil {
		t.Skipf("%s is not an ELF program: %v", hostBusybox, err)
	}
	defer f.Close()
	if libs, err := f.ImportedLibraries(); err != nil || len(libs) > 0 {
		t.Skipf("%s is not static: install Debian's package busybox-static", hostBusybox)
	}
	out, err := exec.Command(hostBusybox, "--list-full").Output()
	if err != nil {
		t.Skipf("%s --list-full: %v", hostBusybox, err)
	}
	for _, a := range append(strings.Fields(string(out)), "sbin/init", "bin/sh") {
		if a != "bin/busybox" && !slices.Contains(applets, a) {
			applets = append(applets, a)
		}
	}
	return binary, applets
}
