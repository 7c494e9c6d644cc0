package debian

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// TestMain is also the program that a test kills in the middle of a build.
func TestMain(m *testing.M) {
	if folder := os.Getenv("BERTH_TEST_BUILD"); folder != "" {
		_, err := Build(context.Background(), Request{Suite: "bookworm", Folder: folder, Say: func(s string) { fmt.Println(s) }})
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// fake puts a program in the place of mmdebstrap.
func fake(t *testing.T, script string) {
	t.Helper()
	testkit.NeedsRoot(t)
	dir := t.TempDir()
	testkit.Must(t, os.WriteFile(filepath.Join(dir, Program), []byte("#!/bin/sh\n"+script), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// left lists what lies in a folder.
func left(t *testing.T, folder string) []os.DirEntry {
	t.Helper()
	all, err := os.ReadDir(folder)
	testkit.Must(t, err)
	return all
}

// TestCheck refuses names that apt or mmdebstrap would read as something else.
func TestCheck(t *testing.T) {
	for _, r := range []Request{
		{Suite: ""},
		{Suite: "Bookworm"},
		{Suite: "--help"},
		{Suite: "a b"},
		{Suite: "a;b"},
		{Suite: "../x"},
		{Suite: "deb http://x"},
		{Suite: "sid", With: []string{""}},
		{Suite: "sid", With: []string{"-y"}},
		{Suite: "sid", With: []string{"a"}},
		{Suite: "sid", With: []string{"Vim"}},
		{Suite: "sid", With: []string{"a,b"}},
		{Suite: "sid", With: []string{"vim", "$(id)"}},
		{Suite: "sid", With: []string{"vim/sid"}},
		{Suite: "sid", With: []string{"vim-"}},
		{Suite: "sid", With: []string{"vim=1"}},
		{Suite: "sid", With: []string{"?essential"}},
		{Suite: "sid", With: []string{"./x.deb"}},
		{Suite: "sid", With: []string{"vi\nm"}},
		{Suite: "sid", Mirror: "deb http://x sid main"},
		{Suite: "sid", Mirror: "ftp://x"},
		{Suite: "sid", Mirror: "http://x/'"},
		{Suite: "sid", Mirror: "http://x/\ndeb"},
		{Suite: "sid", Mirror: "http://"},
		{Suite: "sid", Mirror: "copy:///etc"},
		{Suite: "sid", Mirror: "./sources"},
		{Suite: "sid", Mirror: "-"},
	} {
		if err := r.Check(); refuse.KindOf(err) != refuse.Invalid {
			t.Errorf("%+v: %v", r, err)
		}
		if _, err := Build(t.Context(), r); refuse.KindOf(err) != refuse.Invalid {
			t.Errorf("Build of %+v: %v", r, err)
		}
	}
	ok := Request{Suite: "bookworm-backports", With: []string{"g++", "libc6-dev", "0ad"}, Mirror: "https://mirror.example:8080/~team/debian/"}
	testkit.Must(t, ok.Check())
	if got := strings.Join(ok.Packages(), " "); got != "0ad dbus g++ libc6-dev systemd-sysv" {
		t.Errorf("packages: %s", got)
	}
}

// TestBuild checks what mmdebstrap is asked, and where.
func TestBuild(t *testing.T) {
	fake(t, `for a; do printf 'I: %s...\n' "$(printf %s "${a##*/builds/*/}" | tr '\n' '~')" >&2; done
touch "$TMPDIR/work"; echo "process $$ on $(uname -n)" >"$8"`)
	folder := filepath.Join(t.TempDir(), "builds")
	var said []string
	root, err := Build(t.Context(), Request{
		Suite: "trixie", With: []string{"vim", "vim"}, Mirror: "http://mirror.example/debian", Folder: folder, Say: func(s string) { said = append(said, s) },
	})
	testkit.Must(t, err)
	want := []string{
		"--mode=root", "--format=tar", "--variant=minbase", "--include=dbus,systemd-sysv,vim",
		`--essential-hook=[ -L "$1/etc/hostname" ] || echo localhost >"$1/etc/hostname"`,
		"--customize-hook=" + cleaning, "trixie", "root.tar", "http://mirror.example/debian",
	}
	for i := range said {
		said[i] = strings.ReplaceAll(said[i], "~", "\n")
	}
	if strings.Join(said, "\n") != strings.Join(want, "\n") {
		t.Errorf("it was asked\n%s\nwant\n%s", strings.Join(said, "\n"), strings.Join(want, "\n"))
	}
	testkit.Must(t, Sweep(t.Context(), folder)) // it is used: it stays
	if text, err := os.ReadFile(root.Tar); err != nil || string(text) != "process 1 on localhost\n" {
		t.Errorf("the root is %q, %v: mmdebstrap must be process 1 of a namespace, and must not see this host's name", text, err)
	}
	testkit.Must(t, root.Remove(t.Context()))
	if all := left(t, folder); len(all) > 0 {
		t.Errorf("left: %v", all)
	}
}

// TestBuildFails passes on what mmdebstrap says, and leaves nothing.
func TestBuildFails(t *testing.T) {
	folder := t.TempDir()
	r := Request{Suite: "bookworm", Folder: folder, Say: func(string) {}}
	for script, want := range map[string]string{
		`mkdir "$TMPDIR/deep"; echo 'I: one' >&2; echo 'E: Unable to locate package nope' >&2; exit 25`: "build debian bookworm: mmdebstrap: Unable to locate package nope",
		"exit 3": "build debian bookworm: mmdebstrap: exit status 3",
		"head -c 2000000 /dev/zero | tr '\\0' x >&2; echo >&2; exit 4": "exit status 4",
		"kill -9 $PPID $$; sleep 10 & kill -9 $!; exit 1":              "exit status 1", // it can signal none but its own
	} {
		fake(t, script)
		if _, err := Build(t.Context(), r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", script, err)
		}
		if all := left(t, folder); len(all) > 0 {
			t.Errorf("%s: left: %v", script, all)
		}
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := Build(t.Context(), r); refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "apt install mmdebstrap") {
		t.Errorf("without mmdebstrap: %v", err)
	}
}

// busy is a build in the middle: it has a mount, and a process in a session of its own.
const busy = `mkdir "$TMPDIR/mnt" && mount -t tmpfs none "$TMPDIR/mnt" && touch "$TMPDIR/mnt/file"
setsid sleep 1000 &
echo "I: begun" >&2
wait`

// TestStopped ends a build's context.
func TestStopped(t *testing.T) {
	fake(t, busy)
	folder := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Build(ctx, Request{Suite: "bookworm", Folder: folder, Say: func(string) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	if all := left(t, folder); len(all) > 0 {
		t.Errorf("left: %v", all)
	}
}

// TestKilled kills who builds with SIGKILL: the kernel ends all processes of the build, and Sweep removes its folder.
func TestKilled(t *testing.T) {
	fake(t, busy)
	folder := t.TempDir()
	cmd := testkit.Again(t, "", "BERTH_TEST_BUILD="+folder)
	out, err := cmd.StdoutPipe()
	testkit.Must(t, err)
	testkit.Must(t, cmd.Start())
	buf := make([]byte, 100)
	n, err := out.Read(buf)
	if err != nil || string(buf[:n]) != "begun\n" {
		t.Fatalf("it says %q, %v", buf[:n], err)
	}
	testkit.Must(t, Sweep(t.Context(), folder))
	if len(left(t, folder)) != 1 {
		t.Fatal("a build at work was swept")
	}
	testkit.Must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	testkit.Eventually(t, "what a killed build left is swept", func() bool { // its processes end with it; the kernel takes a moment
		testkit.Must(t, Sweep(t.Context(), folder))
		return len(left(t, folder)) == 0
	})
}

// clean runs the hook over the root of a build.
func clean(t *testing.T, root string) {
	t.Helper()
	if out, err := exec.Command("sh", "-c", cleaning, "hook", root).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// TestHookFollowsNoLink: the hook empties the files with the host's names, and not what a package's link in their place points to.
func TestHookFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	root, outside := filepath.Join(dir, "root"), filepath.Join(dir, "outside")
	const key = "-----BEGIN OPENSSH PRIVATE KEY-----\n"
	if err := errors.Join(
		os.MkdirAll(filepath.Join(root, "etc/ssh"), 0o755), os.Mkdir(filepath.Join(root, "root"), 0o755), os.Mkdir(outside, 0o755),
		os.WriteFile(filepath.Join(outside, "kept"), []byte(key), 0o600), os.WriteFile(filepath.Join(outside, "ssh_host_rsa_key"), []byte(key), 0o600),
		os.Symlink(filepath.Join(outside, "kept"), filepath.Join(root, "etc/resolv.conf")), os.Symlink(filepath.Join(outside, "kept"), filepath.Join(root, "etc/machine-id")),
		os.Symlink(filepath.Join(outside, "ssh_host_rsa_key"), filepath.Join(root, "etc/ssh/ssh_host_rsa_key")), os.Symlink(outside, filepath.Join(root, "etc/munge")),
		os.Symlink(outside, filepath.Join(root, "var")), os.WriteFile(filepath.Join(root, "etc/hostname"), []byte("host"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	clean(t, root)
	for path, want := range map[string]string{filepath.Join(outside, "kept"): key, filepath.Join(outside, "ssh_host_rsa_key"): key, filepath.Join(root, "etc/hostname"): ""} {
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
}

// TestNoKeysInImage: what packages made for one host alone is not in an image, which is of many nodes; what is the same on all hosts stays.
func TestNoKeysInImage(t *testing.T) {
	root := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		testkit.Must(t, os.MkdirAll(filepath.Join(root, filepath.Dir(path)), 0o755))
		testkit.Must(t, os.WriteFile(filepath.Join(root, path), []byte(text), 0o755))
	}
	gone := []string{
		"etc/ssh/ssh_host_ed25519_key", "etc/ssh/ssh_host_ed25519_key.pub", "etc/ssh/ssh_host_rsa_key", "etc/ssl/private/ssl-cert-snakeoil.key",
		"etc/ssl/certs/ssl-cert-snakeoil.pem", "etc/munge/munge.key", "etc/bind/rndc.key", "etc/dropbear/dropbear_rsa_host_key", "etc/nvme/hostid", "etc/nvme/hostnqn",
		"var/lib/dbus/machine-id", "var/lib/systemd/random-seed", "var/lib/systemd/credential.secret", "etc/iscsi/initiatorname.iscsi",
	}
	kept := []string{"etc/ssh/sshd_config", "etc/ssl/certs/ca.pem", "etc/bind/named.conf", "var/lib/dpkg/status", "usr/sbin/sshd", "etc/machine-id", "etc/hostname", "etc/resolv.conf"}
	for _, path := range append(gone, kept...) {
		write(path, path)
	}
	for _, path := range []string{"etc/some/new.key", "var/lib/other key/tls.pem", "root/.ssh/id"} { // of packages that nobody here knows
		write(path, "# made by a script\n-----BEGIN EC PRIVATE KEY-----\nMHcC\n")
		gone = append(gone, path)
	}
	testkit.Must(t, os.Symlink("ssl-cert-snakeoil.pem", filepath.Join(root, "etc/ssl/certs/62742064.0")))
	gone = append(gone, "etc/ssl/certs/62742064.0")
	for range 2 { // what has been cleaned stays as it is
		clean(t, root)
	}
	for _, path := range gone {
		if _, err := os.Lstat(filepath.Join(root, path)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is in the image (%v)", path, err)
		}
	}
	for i, path := range kept {
		want := path
		if i >= len(kept)-3 {
			want = ""
		}
		if text, err := os.ReadFile(filepath.Join(root, path)); err != nil || string(text) != want {
			t.Errorf("%s: %q, %v", path, text, err)
		}
	}
	unit, err := os.ReadFile(filepath.Join(root, "etc/systemd/system/sysinit.target.wants/berth-keys.service"))
	if err != nil || !strings.Contains(string(unit), "ssh-keygen -A") {
		t.Errorf("what makes the keys of a node: %q, %v", unit, err)
	}
	if err := os.Remove(filepath.Join(root, "usr/sbin/sshd")); err != nil {
		t.Fatal(err)
	}
	testkit.Must(t, os.RemoveAll(filepath.Join(root, "etc/systemd")))
	clean(t, root)
	if _, err := os.Lstat(filepath.Join(root, "etc/systemd")); err == nil {
		t.Error("a system without such keys has the unit that makes them")
	}
}
