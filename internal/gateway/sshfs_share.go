package gateway

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"berth/internal/fault"
	"berth/internal/lock"
	"berth/internal/mounts"
	"berth/internal/refuse"
)

// A mount with via: host is kept in a mount namespace of its own (mounts.Hold), and each node that names the same source and
// options gets a copy of it. Each has a file in the folder of the mount's users; the last one ends the daemon. A lock is held
// during changes. Whoever finds that the daemon has ended starts the next one, and each node then gets the new mount.

func (s *SSHFSMount) shared() bool  { return s.Hold.Dir != "" }
func (s *SSHFSMount) users() string { return s.Hold.Dir + ".users" }
func (s *SSHFSMount) user() string  { return filepath.Join(s.users(), s.User) }

// alone calls f while nobody else changes mounts of the host's.
func (s *SSHFSMount) alone(ctx context.Context, f func() error) error {
	dir := filepath.Dir(s.Hold.Dir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make a folder for mounts: %w", err)
	}
	l, err := lock.OpenDir(ctx, dir)
	if err != nil {
		return fmt.Errorf("wait for others that change mounts: %w", err)
	}
	defer l.Close()
	return f()
}

// share makes the node a user of the mount, and makes the mount if it is the first one or the daemon has ended.
func (s *SSHFSMount) share(ctx context.Context, node mounts.Running, ids idsInside) error {
	uid, okUID := onHost(ids.uid, s.UID)
	gid, okGID := onHost(ids.gid, s.GID)
	if !okUID || !okGID || uid != s.UID || gid != s.GID {
		return refuse.Invalidf("with via: host one mount serves several nodes, so its files must belong to one user of the host in all of them: "+
			"give the node users: [{from: %d, count: 1, as: same}] and the mount options uid and gid", s.UID)
	}
	if err := os.MkdirAll(s.users(), 0o700); err != nil {
		return fmt.Errorf("note a user of a mount: %w", err)
	}
	if err := os.WriteFile(s.user(), nil, 0o600); err != nil {
		return fmt.Errorf("note a user of a mount: %w", err)
	}
	fault.Point("user of a shared mount noted")
	noted, err := s.noted()
	if err != nil {
		return err
	}
	if s.Daemon = noted; !noted.SSHFS.Alive() || !s.Hold.Mounted() {
		if err := s.renew(ctx, node, ids); err != nil {
			return err
		}
	}
	s.Mounted, err = s.Hold.Replace(node, s.Target, s.ReadOnly, s.Mounted)
	return err
}

// renew starts a daemon and keeps its mount.
func (s *SSHFSMount) renew(ctx context.Context, node mounts.Running, ids idsInside) error {
	if err := s.drop(ctx); err != nil {
		return err
	}
	m, err := s.serve(ctx, node, ids)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := s.Hold.Make(ctx, m.Move); err != nil {
		return errors.Join(err, s.drop(context.WithoutCancel(ctx)))
	}
	return nil
}

// unshare takes the node off the mount's users. The last one ends it.
func (s *SSHFSMount) unshare(ctx context.Context) error {
	if _, err := os.Lstat(filepath.Dir(s.Hold.Dir)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return s.alone(ctx, func() error {
		if err := os.Remove(s.user()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("note that a user of a mount went: %w", err)
		}
		fault.Point("user of a shared mount gone")
		if left, err := os.ReadDir(s.users()); err == nil && len(left) > 0 {
			return nil
		}
		if err := s.drop(ctx); err != nil {
			return err
		}
		if err := os.Remove(s.users()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the folder of a mount's users: %w", err)
		}
		return nil
	})
}

// drop ends the daemon and lets the mount go.
func (s *SSHFSMount) drop(ctx context.Context) error {
	if err := s.end(ctx); err != nil {
		return err
	}
	fault.Point("daemon of a shared mount ended")
	return s.Hold.Drop()
}
