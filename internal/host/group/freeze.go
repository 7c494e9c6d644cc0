package group

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/sys/refuse"
)

// freezer is the control file that stops the processes of a group, in the hierarchy that has it.
type freezer struct {
	v2   bool
	dir  string
	file string // freezer.state of the v1 freezer, else cgroup.freeze (Linux 5.2)
}

func findFreezer(h host.Cgroups, path string) (freezer, error) {
	for _, p := range places(h, path) {
		f := freezer{v2: p.V2, dir: p.dir, file: filepath.Join(p.dir, "freezer.state")}
		if p.V2 {
			f.file = filepath.Join(p.dir, "cgroup.freeze")
		}
		if !p.V2 && !p.Has("freezer") {
			continue
		}
		if _, err := os.Stat(f.file); err == nil {
			return f, nil
		}
	}
	return freezer{}, refuse.Cannotf("mount the v1 controller freezer, or use Linux 5.2 with cgroup v2",
		"this host has no freezer for the group %s", path)
}

// CanFreeze refuses a host without a freezer.
func CanFreeze(h host.Cgroups, path string) error {
	_, err := findFreezer(h, path)
	return err
}

// Freeze stops all processes of a group and of the groups inside it, and returns when none of them runs. If that takes longer
// than ctx allows (ten seconds, if it has no deadline), they are let go on, and the error says so.
func Freeze(ctx context.Context, h host.Cgroups, path string) error {
	f, err := findFreezer(h, path)
	if err != nil {
		return err
	}
	ctx, cancel := patience(ctx)
	defer cancel()
	err = f.freeze(ctx)
	if err == nil {
		return nil
	}
	return errors.Join(err, f.thaw())
}

func (f freezer) freeze(ctx context.Context) error {
	if !f.v2 {
		return f.freezeV1(ctx)
	}
	events, err := os.Open(filepath.Join(f.dir, "cgroup.events"))
	if err != nil {
		return fmt.Errorf("watch a group freeze: %w", err)
	}
	defer events.Close()
	if err := WriteFile(f.file, "1"); err != nil {
		return err
	}
	buf := make([]byte, 256)
	for {
		n, err := events.ReadAt(buf, 0)
		switch {
		case strings.Contains(string(buf[:n]), "frozen 1"):
			return nil
		case n == 0 && err != nil:
			return fmt.Errorf("watch a group freeze: %w", err)
		case ctx.Err() != nil:
			return f.tooLong(ctx)
		}
		await(ctx, []unix.PollFd{{Fd: int32(events.Fd()), Events: unix.POLLPRI}})
	}
}

// freezeV1 writes the state again and again: the kernel has no event for a frozen group, and may miss a process that was
// forked meanwhile.
func (f freezer) freezeV1(ctx context.Context) error {
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 10*time.Millisecond) {
		if err := WriteFile(f.file, "FROZEN"); err != nil {
			return err
		}
		state, err := ReadFile(f.file)
		if err != nil || state == "FROZEN" {
			return err
		}
		select {
		case <-ctx.Done():
			return f.tooLong(ctx)
		case <-time.After(wait):
		}
	}
}

func (f freezer) tooLong(ctx context.Context) error {
	return fmt.Errorf("stop all processes in %s: one of them does not stop, as in disk I/O that does not end: %w", f.dir, ctx.Err())
}

// Thaw lets the processes of a frozen group go on. A group that is not there, or that no freezer knows, has none.
func Thaw(h host.Cgroups, path string) error {
	f, err := findFreezer(h, path)
	if err != nil {
		return nil //nolint:nilerr // nothing can be frozen there
	}
	return f.thaw()
}

func (f freezer) thaw() error {
	text := "THAWED"
	if f.v2 {
		text = "0"
	}
	if err := WriteFile(f.file, text); err != nil && !errors.Is(err, fs.ErrNotExist) && !Gone(err) {
		return err
	}
	return nil
}

// Frozen reports whether all processes of a group are stopped by its own freezer.
func Frozen(h host.Cgroups, path string) bool {
	f, err := findFreezer(h, path)
	if err != nil {
		return false
	}
	state, err := ReadFile(f.file)
	if err != nil || !f.v2 {
		return state == "FROZEN"
	}
	frozen := Field(filepath.Join(f.dir, "cgroup.events"), "frozen")
	return state == "1" && frozen != nil && *frozen == 1
}
