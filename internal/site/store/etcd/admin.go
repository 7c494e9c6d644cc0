package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"berth/internal/site/store"
	"berth/internal/sys/file"
)

// administration is how long an act of administration may take: passwords are hashed slowly.
const administration = 20 * time.Second

// Rights returns the keys that a host may write: its own entries, and the claims of the site. It may read everything below
// store.Root.
func Rights(host string) []string {
	return []string{store.Hosts + host, store.Members + host, store.Nodes + host + "/", store.IO + host + "/", store.Filesystems + host + "/", store.Offices, store.Claims}
}

// Protect makes the user root with a password, and turns on etcd's authentication. It may be called again.
func (s *Store) Protect(ctx context.Context, password string) error {
	ctx, cancel := context.WithTimeout(ctx, administration)
	defer cancel()
	_, err := s.client.RoleAdd(ctx, "root")
	if err = unless(err, rpctypes.ErrRoleAlreadyExist); err == nil {
		_, err = s.client.UserAdd(ctx, "root", password)
	}
	if err = unless(err, rpctypes.ErrUserAlreadyExist); err == nil {
		_, err = s.client.UserGrantRole(ctx, "root", "root")
	}
	if err == nil {
		_, err = s.client.AuthEnable(ctx)
	}
	if err != nil {
		return fmt.Errorf("make the cluster state ask who its users are: %w", told(err))
	}
	return nil
}

// Protected reports whether etcd's authentication is on.
func (s *Store) Protected(ctx context.Context) (bool, error) {
	r, err := ask(ctx, s, func(ctx context.Context) (*clientv3.AuthStatusResponse, error) { return s.client.AuthStatus(ctx) })
	if err != nil {
		return false, fmt.Errorf("ask who may use the cluster state: %w", err)
	}
	return r.Enabled, nil
}

// Allow makes a host a user of etcd, with its role: docs/cluster-state.md lists the same as commands. The user has no password:
// etcd takes the common name of the host's certificate.
func (s *Store) Allow(ctx context.Context, host string) error {
	ctx, cancel := context.WithTimeout(ctx, administration)
	defer cancel()
	role := "berth-" + host
	_, err := s.client.RoleAdd(ctx, role)
	err = unless(err, rpctypes.ErrRoleAlreadyExist)
	grant := func(key string, as clientv3.PermissionType) {
		if err != nil {
			return
		}
		end := ""
		if strings.HasSuffix(key, "/") {
			end = clientv3.GetPrefixRangeEnd(key)
		}
		_, err = s.client.RoleGrantPermission(ctx, role, key, end, as)
	}
	grant(store.Root, clientv3.PermissionType(clientv3.PermRead))
	for _, key := range Rights(host) {
		grant(key, clientv3.PermissionType(clientv3.PermReadWrite))
	}
	if err == nil {
		_, err = s.client.UserAddWithOptions(ctx, host, "", &clientv3.UserAddOptions{NoPassword: true})
		err = unless(err, rpctypes.ErrUserAlreadyExist)
	}
	if err == nil {
		_, err = s.client.UserGrantRole(ctx, host, role)
	}
	if err != nil {
		return fmt.Errorf("allow host %s to use the cluster state: %w", host, told(err))
	}
	return nil
}

// unless drops an error that says that the wanted state exists already.
func unless(err, fine error) error {
	if err != nil && errors.Is(rpctypes.Error(err), fine) {
		return nil
	}
	return err
}

// Backup writes a snapshot of the whole etcd to a file, which is there whole or not at all (file.Output).
func (s *Store) Backup(ctx context.Context, path string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("back the cluster state up to %s: %w", path, err)
		}
	}()
	return file.Output(path, 0o600, func(f *os.File) error {
		from, err := s.client.Snapshot(ctx)
		if err != nil {
			return told(err)
		}
		defer from.Close()
		_, err = io.Copy(f, from)
		return told(err)
	})
}

// Compact forgets changes up to a revision: watches from before it must list again.
func (s *Store) Compact(ctx context.Context, revision int64) error {
	_, err := ask(ctx, s, func(ctx context.Context) (*clientv3.CompactResponse, error) { return s.client.Compact(ctx, revision) })
	if err != nil {
		return fmt.Errorf("compact the cluster state: %w", err)
	}
	return nil
}
