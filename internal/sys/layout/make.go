package layout

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"berth/internal/sys/refuse"
)

// Make makes the folders that all nodes share. They stay. A node's root must be able to pass through the live ones;
// the lasting ones are closed to all but the host's root, for the set-user-id programs in images and deltas.
func (l Layout) Make() error {
	if err := l.Reachable(); err != nil {
		return err
	}
	for _, d := range []struct {
		path string
		mode fs.FileMode
	}{
		{l.Run, 0o711},
		{l.RunNodes(), 0o711},
		{filepath.Dir(l.Lock("x")), 0o700},
		{l.Lib, 0o700},
		{l.LibNodes(), 0o700},
	} {
		if err := os.MkdirAll(d.path, d.mode); err != nil {
			if errors.Is(err, fs.ErrPermission) {
				return refuse.Cannotf("run berth as root", "make folder %s: %w", d.path, err)
			}
			return fmt.Errorf("make folder: %w", err)
		}
	}
	return l.Reachable() // the folders got their mode through the caller's umask
}

// Reachable refuses a layout whose nodes could not reach their own files, because a folder above them is closed: with ids of its
// own a node's root is nobody on the host; and one whose sockets would have names that are too long. It makes nothing; folders that are missing are as Make makes them.
func (l Layout) Reachable() error {
	if l.root == "" {
		return nil
	}
	for _, socket := range []string{l.KeeperSocket(), l.NetserveSocket(), l.AgentSocket(), l.SiteSocket()} {
		if err := l.FitsSocket(socket); err != nil {
			return err
		}
	}
	for dir := l.Run; dir != "/"; dir = filepath.Dir(dir) {
		fi, err := os.Stat(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("look at folder: %w", err)
		}
		if fi.Mode().Perm()&0o001 == 0 {
			return refuse.Cannotf("chmod o+x "+dir+", or keep the nodes elsewhere",
				"the nodes kept here could not reach their own files: %s is closed to them (mode %04o)", dir, fi.Mode().Perm())
		}
	}
	return nil
}

// FitsSocket refuses a layout in which a socket would have a name that is too long for the kernel (sun_path of unix(7) has 108 bytes, with a
// NUL). Those of nodes are longer than those that Reachable knows.
func (l Layout) FitsSocket(socket string) error {
	const longest = 107
	if more := len(socket) - longest; more > 0 {
		return refuse.Cannotf(fmt.Sprintf("name a folder that is shorter by %d bytes", more),
			"the folder %s is too long: the kernel has no sockets with names of more than %d bytes, as %s", l.root, longest, socket)
	}
	return nil
}
