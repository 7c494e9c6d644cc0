// Package guest is Berth's program in a machine: process 1 of its initial RAM disk. It loads the modules that it finds there,
// tells the host that it has booted, is told what to become, makes the root of image and delta, and runs commands.
//
// A command of the node's own stays below this program, which remains process 1. An init system takes its place, and the program
// goes on as an ordinary process beside it.
package guest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/runner/machine/wire"
)

// agentWord is the first argument of the program where it runs beside an init system.
const agentWord = "agent"

// The descriptors that it has then.
const (
	portFD     = 3 + iota // the port
	replacedFD            // a pipe that ends when the init system runs
)

// Main is the program. It returns only if it cannot go on, with its exit code; as process 1 it ends the machine then.
func Main() int {
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == agentWord:
		err = beside()
	case os.Getpid() == 1:
		err = boot()
	default:
		fmt.Fprintln(os.Stderr, "berth-guest is for process 1 of a machine; berth starts it there")
		return 2
	}
	fmt.Fprintf(os.Stderr, "berth-guest: %v\n", err)
	if os.Getpid() == 1 {
		unix.Sync()
		_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	}
	return 1
}

// boot does what comes before the host knows of the guest, then serves it.
func boot() error {
	_ = os.Setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	for _, m := range []struct{ what, at, kind string }{{"proc", "/proc", "proc"}, {"sysfs", "/sys", "sysfs"}, {"devtmpfs", "/dev", "devtmpfs"}} {
		if err := mount(m.what, m.at, m.kind, 0, ""); err != nil {
			return err
		}
	}
	// The console may not have been there when the kernel started this program.
	if c, err := os.OpenFile("/dev/console", os.O_RDWR, 0); err == nil {
		for fd := range 3 {
			_ = unix.Dup3(int(c.Fd()), fd, 0)
		}
	}
	if err := loadModules("/modules"); err != nil {
		return err
	}
	port, err := openPort(wire.Port)
	if err != nil {
		return err
	}
	a := newAgent(port)
	var u unix.Utsname
	_ = unix.Uname(&u)
	if err := a.out.SendJSON(wire.Hello, 0, wire.Greeting{Version: wire.Version, Kernel: unix.ByteSliceToString(u.Release[:])}); err != nil {
		return fmt.Errorf("greet the host: %w", err)
	}
	return a.serve()
}

// loadModules loads the modules that the file order of a folder lists, in that order.
func loadModules(dir string) error {
	order, err := os.ReadFile(filepath.Join(dir, "order"))
	if errors.Is(err, os.ErrNotExist) {
		return nil // the kernel has all built in
	}
	if err != nil {
		return err
	}
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(order)) {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), parameters(strings.TrimSuffix(name, ".ko"), string(line)), 0)
		f.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENODEV) {
			fmt.Fprintf(os.Stderr, "berth-guest: load module %s: %v\n", name, err)
		}
	}
	return os.RemoveAll(dir)
}

// parameters returns what the kernel's command line says to a module, as modprobe does: microvm tells virtio_mmio of each device
// there.
func parameters(module, line string) string {
	var all []string
	for word := range strings.FieldsSeq(line) {
		if p, ok := strings.CutPrefix(word, module+"."); ok {
			all = append(all, p)
		}
	}
	return strings.Join(all, " ")
}

// openPort waits for a port of virtio-serial to appear and opens it.
func openPort(name string) (*os.File, error) {
	path := await("port "+name+" of virtio-serial: the kernel lacks virtio_mmio or virtio_console, or they are modules that were not found", func() string {
		files, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, f := range files {
			if b, _ := os.ReadFile(f); strings.TrimSpace(string(b)) == name {
				return filepath.Join("/dev", filepath.Base(filepath.Dir(f)))
			}
		}
		return ""
	})
	return os.OpenFile(path, os.O_RDWR, 0)
}

// await looks until there is something. If that takes long, it says on the console what is missing, and goes on: the clock here does
// not know how little of the host's CPU this machine got meanwhile, and the host gives up when it is too long.
func await(what string, look func() string) string {
	for n := 0; ; n++ {
		if found := look(); found != "" {
			return found
		}
		if n == 1000 {
			fmt.Fprintf(os.Stderr, "berth-guest: there is no %s\n", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func mount(what, at, kind string, flags uintptr, options string) error {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(what, at, kind, flags, options); err != nil && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("mount %s at %s: %w", kind, at, err)
	}
	return nil
}
