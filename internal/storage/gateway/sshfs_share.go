package gateway

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"berth/internal/storage/mounts"
	"berth/internal/sys/fault"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
)

// A mount with via: host is kept in a mount namespace of its own (mounts.Hold), and each node that names the same source and
// options gets a copy of it. Each has a file in the folder of the mount's users; the last one ends the daemon. A lock is held
// during changes. The first command that finds that the daemon has ended starts the next one, and each node then gets the new
// mount.

func (s *SSHFSMount) shared() bool { return s.Hold.Dir != "" }
func (s *SSHFSMount) users() users { return users{s.Hold} }

// Cut ends a daemon that keeps killed processes of the node waiting, because its server is silent. It must not if other nodes use
// the mount. A daemon of the node's own ends with the node's processes.
func (s *SSHFSMount) Cut() {
	if !s.shared() || len(s.users().others(s.User)) > 0 {
		return
	}
	noted, _ := s.noted() // nothing, if it cannot be read: the journal knows the processes too
	for _, id := range []proc.ID{s.Daemon.SSHFS, noted.SSHFS} {
		if id == (proc.ID{}) {
			continue
		}
		if pidfd, err := id.Open(); err == nil {
			_ = proc.Signal(pidfd, unix.SIGKILL) // it may have ended
			pidfd.Close()
		}
	}
}

// Shared names the server and the other nodes that use the mount.
func (s *SSHFSMount) Shared() (server string, nodes []string) {
	if !s.shared() {
		return "", nil
	}
	return s.Server, s.users().othersNodes(s.User)
}

// share makes the node a user of the mount, and makes the mount if it is the first one or the daemon has ended.
func (s *SSHFSMount) share(ctx context.Context, node mounts.Running, ids idsInside) error {
	uid, okUID := onHost(ids.uid, s.UID)
	gid, okGID := onHost(ids.gid, s.GID)
	if !okUID || !okGID || uid != s.UID || gid != s.GID {
		return refuse.Invalidf("with via: host one mount serves several nodes, so its files must belong to one user of the host in all of them: "+
			"give the node users: [{from: %d, count: 1, as: same}] and the mount options uid and gid", s.UID)
	}
	if err := s.users().add(s.User); err != nil {
		return err
	}
	noted, err := s.noted()
	if err != nil {
		return err
	}
	if s.Daemon = noted; !noted.SSHFS.Alive() || !s.Hold.Mounted() {
		if err := s.renew(ctx, node, ids); err != nil {
			return err
		}
	}
	number, at, err := s.Hold.Replace(node, s.place(), s.ReadOnly, s.Mounted)
	if err == nil {
		s.Mounted, s.At = number, at
	}
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
	return s.users().remove(ctx, s.User, func() error { return s.drop(ctx) })
}

// drop ends the daemon and lets the mount go.
func (s *SSHFSMount) drop(ctx context.Context) error {
	if err := s.end(ctx); err != nil {
		return err
	}
	fault.Point("daemon of a shared mount ended")
	return s.Hold.Drop()
}
