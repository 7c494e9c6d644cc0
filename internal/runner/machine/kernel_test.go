package machine

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// aKernel makes what looks like a kernel with modules, and returns its file and the folder of the modules.
func aKernel(t *testing.T) (kernel, modules string) {
	t.Helper()
	testkit.NeedsRoot(t) // only root's kernels are taken
	top := t.TempDir()
	head := make([]byte, 0x400)
	copy(head[0x202:], "HdrS")
	head[0x20e], head[0x20f] = 0x10, 0x01 // 0x310 in the file
	copy(head[0x310:], "6.1.0-test (who@where) #1\x00")
	kernel, modules = filepath.Join(top, "k", "boot", "vmlinuz"), filepath.Join(top, "k", "usr/lib/modules/6.1.0-test")
	write(t, kernel, string(head))
	write(t, filepath.Join(modules, "modules.dep"),
		"kernel/fs/erofs/erofs.ko: kernel/lib/libcrc32c.ko kernel/lib/base.ko\nkernel/lib/libcrc32c.ko: kernel/lib/base.ko\nkernel/lib/base.ko:\n../evil.ko:\nkernel/x/other.ko:\n")
	for _, m := range []string{"fs/erofs/erofs", "lib/libcrc32c", "lib/base", "x/other"} {
		write(t, filepath.Join(modules, "kernel", m+".ko"), "module "+m)
	}
	return kernel, modules
}

func write(t *testing.T, path, text string) {
	t.Helper()
	testkit.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	testkit.Must(t, os.WriteFile(path, []byte(text), 0o600))
}

// initrd is the initial RAM disk of a kernel.
func initrd(t *testing.T, path string) (string, error) {
	t.Helper()
	k, err := openKernel(path)
	if err != nil {
		return "", err
	}
	defer k.Close()
	program := filepath.Join(t.TempDir(), "guest")
	write(t, program, "the program")
	var out strings.Builder
	err = k.writeInitrd(&out, program, nil)
	return out.String(), err
}

// TestInitrd: modules come with those that they need, these first.
func TestInitrd(t *testing.T) {
	kernel, _ := aKernel(t)
	text, err := initrd(t, kernel)
	if err != nil || !strings.Contains(text, "base.ko\nlibcrc32c.ko\nerofs.ko\n") || strings.Contains(text, "module x/other") || !strings.Contains(text, "the program") {
		t.Errorf("the archive is %q, %v", text, err)
	}
	head, err := os.ReadFile(kernel)
	testkit.Must(t, err)
	for name, content := range map[string]string{"no kernel": "text", "no version": string(head[:0x300])} {
		write(t, kernel, content)
		if r, err := KernelRelease(kernel); refuse.KindOf(err) != refuse.Invalid {
			t.Errorf("%s: release %q, %v", name, r, err)
		}
	}
}

// TestCompressedModules: they are unpacked, by programs that are found without the caller's environment.
func TestCompressedModules(t *testing.T) {
	kernel, modules := aKernel(t)
	erofs := filepath.Join(modules, "kernel/fs/erofs/erofs.ko")
	testkit.Must(t, exec.Command("xz", erofs).Run())
	list := filepath.Join(modules, "modules.dep")
	text, err := os.ReadFile(list)
	testkit.Must(t, err)
	write(t, list, strings.ReplaceAll(string(text), "erofs.ko:", "erofs.ko.xz:"))
	for _, e := range environment() {
		name, value, _ := strings.Cut(e, "=")
		t.Setenv(name, value)
	}
	got, err := initrd(t, kernel)
	if err != nil || !strings.Contains(got, "module fs/erofs/erofs") || !strings.Contains(got, "libcrc32c.ko\nerofs.ko\n") {
		t.Errorf("the archive is %q, %v", got, err)
	}
	bomb := exec.Command("sh", "-c", `head -c 70000000 /dev/zero | xz >"$1"`, "sh", erofs+".xz")
	testkit.Must(t, bomb.Run())
	if text, err := initrd(t, kernel); err == nil {
		t.Errorf("a module of 70 MB was unpacked: %d bytes", len(text))
	}
}

// TestOthersKernel: what others than root can change, or put in its place, goes into no guest, nor does what is no file.
func TestOthersKernel(t *testing.T) {
	for name, change := range map[string]func(kernel, modules string) error{
		"the kernel is a user's":         func(k, _ string) error { return os.Chown(k, 1000, 1000) },
		"users may write the kernel":     func(k, _ string) error { return os.Chmod(k, 0o666) },
		"users may write its folder":     func(k, _ string) error { return os.Chmod(filepath.Dir(k), 0o777) },
		"the folder above is a user's":   func(k, _ string) error { return os.Chown(filepath.Dir(filepath.Dir(k)), 1000, 1000) },
		"the modules are a user's":       func(_, m string) error { return os.Chown(m, 1000, 1000) },
		"a module is a user's":           func(_, m string) error { return os.Chown(filepath.Join(m, "kernel/lib/base.ko"), 1000, 1000) },
		"a module leads out":             func(_, m string) error { return link(filepath.Join(m, "kernel/lib/base.ko")) },
		"a folder of modules leads out":  func(_, m string) error { return link(filepath.Join(m, "kernel/lib")) },
		"a module is a pipe":             func(_, m string) error { return pipe(filepath.Join(m, "kernel/lib/base.ko")) },
		"the kernel is a pipe":           func(k, _ string) error { return pipe(k) },
		"the kernel is larger than any":  func(k, _ string) error { return os.Truncate(k, mostKernel+1) },
		"the list of modules is no list": func(_, m string) error { return os.Truncate(filepath.Join(m, "modules.dep"), mostModule+1) },
	} {
		t.Run(name, func(t *testing.T) {
			kernel, modules := aKernel(t)
			testkit.Must(t, change(kernel, modules))
			if text, err := initrd(t, kernel); err == nil {
				t.Errorf("the archive has %d bytes", len(text))
			}
		})
	}
	kernel, _ := aKernel(t)
	byLink := filepath.Join(filepath.Dir(filepath.Dir(kernel)), "vmlinuz")
	testkit.Must(t, os.Symlink("boot/vmlinuz", byLink))
	if _, err := initrd(t, byLink); err != nil {
		t.Errorf("by a link of root's: %v", err)
	}
}

func link(path string) error {
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	return os.Symlink("/etc/shadow", path)
}

func pipe(path string) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	return unix.Mkfifo(path, 0o600)
}
