package oci

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"berth/internal/runner"
	"berth/internal/spec/envfile"
	"berth/internal/sys/fault"
	"berth/internal/sys/jsonfile"
)

// addSecrets gives the runtime a configuration that also has the variables of EnvFrom. It lies in the plan's file system in
// memory and is mounted over the bundle's, in the calling thread's mount namespace, which only the runtime shares: the bundle
// on the host never has them. Call forget after the runtime's create, also when that failed.
//
// crun copies the configuration into the folder of its state. forget replaces the copy by the bundle's.
func (l *Launch) addSecrets() (forget func() error, err error) {
	if l.EnvFrom == "" {
		return func() error { return nil }, nil
	}
	secrets, err := envfile.Secret(l.EnvFrom)
	if err != nil {
		return nil, err
	}
	config := filepath.Join(l.Bundle, "config.json")
	plain, err := os.ReadFile(config)
	if err != nil {
		return nil, fmt.Errorf("read the runtime's configuration: %w", err)
	}
	spec, err := readSpec(l.Bundle)
	if err != nil {
		return nil, err
	}
	spec.Process.Env = runner.MergeEnv(spec.Process.Env, secrets)
	full, err := jsonfile.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("write the runtime's configuration: %w", err)
	}
	file := filepath.Join(l.Plan.Dir, ".config.json")
	if err := os.WriteFile(file, full, 0o600); err != nil {
		return nil, fmt.Errorf("write the runtime's configuration: %w", err)
	}
	if err := unix.Mount(file, config, "", unix.MS_BIND, ""); err != nil {
		return nil, fmt.Errorf("mount the runtime's configuration: %w", err)
	}
	return func() error {
		fault.Point("runtime has the secrets")
		copied := filepath.Join(l.State, l.ID, "config.json")
		f, err := os.OpenFile(copied, os.O_WRONLY|os.O_TRUNC|unix.O_NOFOLLOW, 0)
		if err == nil {
			_, err = f.Write(plain)
			err = errors.Join(err, f.Close())
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		err = errors.Join(err, unix.Unmount(config, unix.MNT_DETACH), os.Remove(file))
		if err != nil {
			return fmt.Errorf("take the secrets from the runtime's state: %w", err)
		}
		return nil
	}, nil
}
