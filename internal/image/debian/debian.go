// Package debian makes the root of a system from Debian's packages, with mmdebstrap.
//
// A build has a folder of its own, which is locked while any of its processes lives, and which the next build, berth image prune or
// berth repair removes once nobody holds it. mmdebstrap and the packages' scripts run in mount and process namespaces of their own:
// when the first of them ends, by whatever, the kernel ends the others, and their mounts are gone.
package debian

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/internal/sys/fault"
	"berth/internal/sys/fork"
	"berth/internal/sys/lock"
	"berth/internal/sys/purge"
	"berth/internal/sys/refuse"
	"berth/internal/sys/space"
	"berth/internal/sys/thread"
)

// Program is the program that makes the root.
const Program = "mmdebstrap"

// Request says which root to make.
type Request struct {
	Suite  string   // bookworm, stable …
	With   []string // packages, beside those without which systemd does not boot
	Mirror string   // URL of Debian's packages; "": Debian's own
	Folder string   // takes the folders of builds
	Say    func(phase string)
}

// basis lists the packages that a node needs to boot with systemd, and to answer questions about its units.
func basis() []string { return []string{"systemd-sysv", "dbus"} }

// These become patterns when they are needed: each start of berth would pay for them.
const (
	suiteName   = `^[a-z][a-z0-9-]*$`
	packageName = `^[a-z0-9][a-z0-9+.-]*[a-z0-9+.]$` // Debian Policy 5.6.1; apt takes NAME- for "remove NAME"
	mirrorURL   = `^(https?|file)://[A-Za-z0-9.:/_~%+-]+$`
)

// Check refuses names that are not those of a suite, a package or a mirror. All of them become arguments of mmdebstrap, which
// gives them to apt, so only what such a name can hold passes.
func (r Request) Check() error {
	if !regexp.MustCompile(suiteName).MatchString(r.Suite) {
		return refuse.Invalidf("--suite %q is not the name of a Debian suite, as bookworm or stable", r.Suite)
	}
	for _, p := range r.With {
		if !regexp.MustCompile(packageName).MatchString(p) {
			return refuse.Invalidf("--with %q is not the name of a Debian package: small letters, digits, + - . and no - at the end", p)
		}
	}
	if r.Mirror != "" && !regexp.MustCompile(mirrorURL).MatchString(r.Mirror) {
		return refuse.Invalidf("--mirror %q is not a URL that begins with http://, https:// or file://", r.Mirror)
	}
	return nil
}

// Packages returns the packages that mmdebstrap installs beside Debian's essential packages and apt.
func (r Request) Packages() []string {
	all := append(basis(), r.With...)
	slices.Sort(all)
	return slices.Compact(all)
}

// arguments are mmdebstrap's. The hooks are the only shell text, and constant.
func (r Request) arguments(tar string) []string {
	all := []string{
		"--mode=root", "--format=tar", "--variant=minbase", "--include=" + strings.Join(r.Packages(), ","),
		"--essential-hook=" + nameless, "--customize-hook=" + cleaning, r.Suite, tar,
	}
	if r.Mirror != "" {
		all = append(all, r.Mirror)
	}
	return all
}

// Root is a root that was made: a tar file in a locked folder.
type Root struct {
	Tar  string
	dir  string
	held *os.File
}

// Build makes a root. The caller calls Remove.
//
// Errors: refuse.Invalid as Check says, refuse.Cannot without mmdebstrap or space on the disk. What mmdebstrap and apt say of a
// suite, a package or a mirror that is not there is passed on.
func Build(ctx context.Context, r Request) (*Root, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	program, err := exec.LookPath(Program)
	if err != nil {
		return nil, refuse.Cannotf("apt install mmdebstrap", "roots of Debian's packages are made by %s, and there is none in PATH", Program)
	}
	if err := Sweep(ctx, r.Folder); err != nil {
		return nil, err
	}
	root, err := newRoot(ctx, r.Folder)
	if err != nil {
		return nil, err
	}
	if err := root.build(ctx, program, r); err != nil {
		// Not with ctx: an interrupted build must clean up too.
		return nil, errors.Join(fmt.Errorf("build debian %s: %w", r.Suite, err), root.Remove(context.WithoutCancel(ctx)))
	}
	return root, nil
}

// newRoot makes a locked folder.
func newRoot(ctx context.Context, folder string) (*Root, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	for {
		dir, err := os.MkdirTemp(folder, "debian-")
		if err != nil {
			return nil, err
		}
		fault.Point("build folder made")
		held, err := lock.OpenDir(ctx, dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a sweep was quicker than the lock
		}
		if err != nil {
			return nil, err
		}
		if _, err := os.Lstat(dir); err == nil {
			return &Root{Tar: filepath.Join(dir, "root.tar"), dir: dir, held: held}, nil
		}
		held.Close()
	}
}

// build runs mmdebstrap on a thread of its own, which has no name of a host. The kernel kills mmdebstrap when the thread that started it ends.
func (root *Root) build(ctx context.Context, program string, r Request) error {
	return thread.Own(func() error {
		if err := unix.Unshare(unix.CLONE_NEWUTS); err != nil {
			return fmt.Errorf("leave the host's name: %w", err)
		}
		if err := unix.Sethostname([]byte(noHost)); err != nil {
			return fmt.Errorf("leave the host's name: %w", err)
		}
		return root.run(ctx, program, r)
	})
}

func (root *Root) run(ctx context.Context, program string, r Request) error {
	cmd := exec.Command(program, r.arguments(root.Tar)...)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "TMPDIR="+root.dir, "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive")
	cmd.ExtraFiles = []*os.File{root.held} // the lock lasts as long as any of its processes
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWIPC, Unshareflags: unix.CLONE_NEWNS, // Go makes its mounts private
		Setpgid: true, Pdeathsig: unix.SIGKILL,
	}
	said, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := fork.Start(cmd); err != nil {
		return fmt.Errorf("start %s: %w", program, err)
	}
	fault.Point("build begun")
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	why := listen(said, func(phase string) {
		if !strings.Contains(phase, root.dir) { // its own housekeeping
			r.Say(phase)
		}
	})
	err = fork.Wait(cmd)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		return nil
	}
	if full := space.Need(root.dir, 64<<20); full != nil {
		return full
	}
	return fmt.Errorf("%s: %w", Program, cmp.Or(why, err))
}

// listen passes mmdebstrap's phases on, and returns what it says of an error.
func listen(said io.Reader, say func(string)) error {
	var wrong []string
	lines := bufio.NewScanner(said)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		kind, text, _ := strings.Cut(strings.TrimSpace(lines.Text()), ": ")
		switch kind {
		case "I":
			say(strings.TrimSuffix(text, "..."))
		case "E":
			if len(wrong) < 5 {
				wrong = append(wrong, text)
			}
		}
	}
	_, _ = io.Copy(io.Discard, said) // a line longer than the buffer: mmdebstrap must not block
	if len(wrong) == 0 {
		return nil
	}
	return errors.New(strings.Join(wrong, "; "))
}

// Remove removes the root and its folder.
func (root *Root) Remove(ctx context.Context) error {
	defer lock.Release(root.held)
	return purge.Tree(ctx, root.dir)
}

// Sweep removes the folders of killed builds. It leaves builds at work alone.
func Sweep(ctx context.Context, folder string) error {
	all, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the builds: %w", err)
	}
	var errs []error
	for _, e := range all {
		errs = append(errs, sweep(ctx, filepath.Join(folder, e.Name())))
	}
	return errors.Join(errs...)
}

func sweep(ctx context.Context, dir string) error {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if free, err := lock.Try(f); err != nil || !free {
		return err
	}
	return purge.Tree(ctx, dir)
}
