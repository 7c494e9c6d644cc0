package gateway

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/storage/mounts"
	"berth/internal/sys/fault"
	"berth/internal/sys/file"
	"berth/internal/sys/lock"
	"berth/internal/sys/step"
)

// users are the nodes that use a shared mount: a file for each, beside the hold of the mount. A file has the id of the boot in
// which it was written: those of another boot do not count, as the mount ended with it.
type users struct{ hold mounts.Hold }

func (u users) dir() string { return u.hold.Dir + ".users" }

// alone calls f while no other process changes this mount.
func (u users) alone(ctx context.Context, f func() error) error {
	if err := os.MkdirAll(filepath.Dir(u.hold.Dir), 0o700); err != nil {
		return fmt.Errorf("make a folder for mounts: %w", err)
	}
	for {
		l, err := lock.Open(ctx, u.hold.Dir+".lock")
		if err != nil {
			return fmt.Errorf("wait for others that change the mount: %w", err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(l.Fd()), &st); err != nil || st.Nlink == 0 { // removed by the process that had it before
			l.Close()
			if err != nil {
				return fmt.Errorf("look at the lock of a mount: %w", err)
			}
			continue
		}
		defer l.Close()
		err = f()
		if _, no := os.Lstat(u.dir()); errors.Is(no, fs.ErrNotExist) { // no node uses it
			err = errors.Join(err, os.Remove(l.Name()))
		}
		return err
	}
}

// add notes a user.
func (u users) add(user string) error {
	boot, err := step.BootID()
	if err == nil {
		err = os.MkdirAll(u.dir(), 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(u.dir(), user), []byte(boot), 0o600)
	}
	if err != nil {
		return fmt.Errorf("note a user of a mount: %w", err)
	}
	fault.Point("user of a shared mount noted")
	return nil
}

// has reports whether a user is noted.
func (u users) has(user string) bool {
	_, err := os.Lstat(filepath.Join(u.dir(), user))
	return err == nil
}

// others returns the users but for one.
func (u users) others(user string) []string {
	boot, err := step.BootID()
	if err != nil {
		return nil
	}
	entries, _ := os.ReadDir(u.dir()) // none, if it is not there
	var all []string
	for _, e := range entries {
		// An empty one is of a berth that did not write the boot.
		if was := file.Text(filepath.Join(u.dir(), e.Name())); e.Name() != user && (was == "" || was == boot) {
			all = append(all, e.Name())
		}
	}
	return all
}

// othersNodes returns the nodes of the other users: a user is NODE.MOUNT.
func (u users) othersNodes(user string) []string {
	var all []string
	for _, name := range u.others(user) {
		if i := strings.LastIndexByte(name, '.'); i > 0 {
			all = append(all, name[:i])
		}
	}
	return all
}

// remove takes a user off. If it was the last one, it calls end, which ends the mount.
func (u users) remove(ctx context.Context, user string, end func() error) error {
	if _, err := os.Lstat(filepath.Dir(u.hold.Dir)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return u.alone(ctx, func() error {
		if err := os.Remove(filepath.Join(u.dir(), user)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("note that a user of a mount went: %w", err)
		}
		fault.Point("user of a shared mount gone")
		if len(u.others(user)) > 0 {
			return nil
		}
		if err := end(); err != nil {
			return err
		}
		if err := os.RemoveAll(u.dir()); err != nil {
			return fmt.Errorf("remove the folder of a mount's users: %w", err)
		}
		return nil
	})
}
