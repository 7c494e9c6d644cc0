package instance

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"berth/internal/sys/file"
)

// folder keeps the host keys of the user's instances.
func folder() string {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "berth", "instances")
	}
	return filepath.Join(home(), ".local", "state", "berth", "instances")
}

func home() string {
	if dir := os.Getenv("HOME"); dir != "" {
		return dir
	}
	if u, err := user.Current(); err == nil {
		return u.HomeDir
	}
	return "/"
}

// known is the file with the host key of an instance.
func known(id int) string { return filepath.Join(folder(), strconv.Itoa(id)) }

// remember keeps an instance's host key.
func remember(id int, address, key string) error {
	if err := os.MkdirAll(folder(), 0o700); err != nil {
		return fmt.Errorf("keep the host key of instance %d: %w", id, err)
	}
	line := fmt.Sprintf("[%s]:%d %s\n", address, port, key)
	if err := file.Write(known(id), []byte(line), 0o600); err != nil {
		return fmt.Errorf("keep the host key of instance %d: %w", id, err)
	}
	return nil
}

func forget(id int) error {
	if err := os.Remove(known(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("forget the host key of instance %d: %w", id, err)
	}
	return nil
}
