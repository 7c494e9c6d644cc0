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

// Tried holds the results of the probes; a nil error means that the probe worked. It is data, so that the checks are pure.
type Tried struct {
	UID      int
	Lib      string // Berth's persistent directory; it may not exist yet
	Space    Space  // of the file system of Lib
	Folders  []Folder
	Calls    map[string]error
	Links    map[string]error // kinds of network link: bridge, veth, macvlan
	Shaping  map[string]error // disciplines and devices that shape a link: tbf, htb, ifb, mirred
	Tools    map[string]string
	Idmap    error
	IdmapFS  []IdmapTry // one for each kind of file system in use
	Runtimes []Runtime
}

// Runtime is the result of probing one OCI runtime.
type Runtime struct {
	Name    string        `json:"name"`    // runc, crun
	Path    string        `json:"path"`    // "" if it is not installed
	Version string        `json:"version"` // as it reports itself
	Err     error         `json:"-"`       // nil: it ran a container with all that Berth needs
	Start   time.Duration `json:"start"`   // time to run a trivial command
	Escapes []string      `json:"escapes,omitempty"`
}

// ErrNotTried stands for a probe that was not run.
var ErrNotTried = errors.New("not tried")

// Try runs the probes whose results Doctor checks. lib and run are Berth's persistent and live directories. idmap tries an
// idmapped mount of a directory (nil: not tried). runtimes are the results of the prober of OCI runtimes. Try leaves
// nothing behind, but the kernel may load modules.
func Try(ctx context.Context, lib, run string, idmap func(dir string) error, runtimes []Runtime) Tried {
	t := Tried{
		UID: os.Geteuid(), Lib: lib, Runtimes: runtimes, Idmap: ErrNotTried,
		Calls: tryCalls(), Tools: map[string]string{},
		Space: trySpace(existing(lib)), Folders: tryFolders(lib, run),
	}
	for _, tool := range []string{"fio", "iperf3", "lvm", "mkfs.ext4"} {
		path, err := exec.LookPath(tool)
		if err != nil {
			path, _ = exec.LookPath("/usr/sbin/" + tool) // not every PATH has it; "" if it is missing
		}
		t.Tools[tool] = path
	}
	if idmap != nil && ctx.Err() == nil {
		t.Idmap = idmap(existing(lib))
		t.IdmapFS = tryIdmaps(ctx, idmap)
	}
	t.Links, t.Shaping = tryLinks(ctx)
	return t
}

// existing returns path, or the nearest directory above it that exists: path will be on the same file system.
func existing(path string) string {
	for {
		if info, err := os.Stat(path); err == nil && info.IsDir() || path == "/" || path == "." {
			return path
		}
		path = filepath.Dir(path)
	}
}

// tryCalls tries the system calls that Berth and the runtimes need. With invalid arguments, an existing call fails with
// EINVAL or EBADF, a missing one with ENOSYS, and one that a sandbox forbids with EPERM.
func tryCalls() map[string]error {
	calls := map[string]error{}
	opened := func(fd int, err error) error {
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	calls["openat2"] = opened(unix.Openat2(unix.AT_FDCWD, "/", how))
	calls["pidfd_open"] = opened(unix.PidfdOpen(os.Getpid(), 0))
	calls["open_tree"] = opened(unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLOEXEC))
	calls["mount_setattr"] = there(unix.MountSetattr(-1, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}))
	_, _, errno := unix.Syscall(unix.SYS_CLONE3, 0, 0, 0)
	calls["clone3"] = there(errno)
	return calls
}

// there returns the error of a call with invalid arguments if the call is missing or forbidden, else nil.
func there(err error) error {
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		return err
	}
	return nil
}
