package host

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Tried is what only trying tells: each error is nil when it worked. It is data, so that the checks are pure.
type Tried struct {
	UID      int
	Lib      string // Berth's lasting directory; it need not exist yet
	Space    Space  // of its file system
	Folders  []Folder
	Calls    map[string]error
	Links    map[string]error // kinds of network link: bridge, veth, macvlan
	Shaping  map[string]error // what shapes a link: tbf, htb, ifb, mirred
	Tools    map[string]string
	Idmap    error
	IdmapFS  []IdmapTry // kinds of file system in use
	Runtimes []Runtime
}

// Runtime is what the prober of OCI runtimes found out about one of them.
type Runtime struct {
	Name    string        `json:"name"`    // runc, crun
	Path    string        `json:"path"`    // "" if it is not installed
	Version string        `json:"version"` // as it says itself
	Err     error         `json:"-"`       // nil: it ran a container with what Berth needs
	Start   time.Duration `json:"start"`   // time to run a trivial command
	Escapes []string      `json:"escapes,omitempty"`
}

// ErrNotTried stands for a probe that was not run.
var ErrNotTried = errors.New("not tried")

// Try tries what Doctor judges. lib and run are Berth's lasting and live directories; idmap tries an idmapped mount of a
// directory (nil: not tried); runtimes comes from the prober of OCI runtimes. Nothing is left behind; a kernel may load
// modules.
func Try(ctx context.Context, lib, run string, idmap func(dir string) error, runtimes []Runtime) Tried {
	t := Tried{
		UID: os.Geteuid(), Lib: lib, Runtimes: runtimes, Idmap: ErrNotTried,
		Calls: tryCalls(), Tools: map[string]string{},
		Space: trySpace(existing(lib)), Folders: tryFolders(lib, run),
	}
	for _, tool := range []string{"fio", "iperf3"} {
		t.Tools[tool], _ = exec.LookPath(tool) // "" is the answer for a missing one
	}
	if idmap != nil && ctx.Err() == nil {
		t.Idmap = idmap(existing(lib))
		t.IdmapFS = tryIdmaps(ctx, idmap)
	}
	t.Links, t.Shaping = tryLinks(ctx)
	return t
}

// existing returns the nearest directory above path that is there: what will be made below it has its file system.
func existing(path string) string {
	for {
		if info, err := os.Stat(path); err == nil && info.IsDir() || path == "/" || path == "." {
			return path
		}
		path = filepath.Dir(path)
	}
}

// tryCalls tries the system calls that Berth and the runtimes need. Arguments that must fail tell a call that is
// there (EINVAL, EBADF) from one that is not (ENOSYS) or is forbidden by a sandbox (EPERM).
func tryCalls() map[string]error {
	calls := map[string]error{}

	fd, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err == nil {
		unix.Close(fd)
	}
	calls["openat2"] = err

	fd, err = unix.PidfdOpen(os.Getpid(), 0)
	if err == nil {
		unix.Close(fd)
	}
	calls["pidfd_open"] = err

	fd, err = unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLOEXEC)
	if err == nil {
		unix.Close(fd)
	}
	calls["open_tree"] = err

	calls["mount_setattr"] = there(unix.MountSetattr(-1, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}))
	_, _, errno := unix.Syscall(unix.SYS_CLONE3, 0, 0, 0)
	calls["clone3"] = there(errno)
	return calls
}

// there judges the error of a call that was made with bad arguments.
func there(err error) error {
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		return err
	}
	return nil
}
