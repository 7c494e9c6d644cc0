package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Tried is what only trying tells: each error is nil when it worked. It is data, so that the checks are pure.
type Tried struct {
	UID      int
	Lib      string // Berth's lasting directory; it need not exist yet
	Calls    map[string]error
	Links    map[string]error // kinds of network link: bridge, veth, macvlan
	HTB      error            // the queueing discipline that shapes a link
	Tools    map[string]string
	Idmap    error
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

// Try tries what Doctor judges. lib is Berth's lasting directory; idmap tries an idmapped mount of a directory (nil:
// not tried); runtimes comes from the prober of OCI runtimes. Nothing is left behind; a kernel may load modules.
func Try(ctx context.Context, lib string, idmap func(dir string) error, runtimes []Runtime) Tried {
	t := Tried{
		UID: os.Geteuid(), Lib: lib, Runtimes: runtimes, Idmap: ErrNotTried,
		Calls: tryCalls(), Tools: map[string]string{},
	}
	for _, tool := range []string{"fio", "iperf3"} {
		t.Tools[tool], _ = exec.LookPath(tool) // "" is the answer for a missing one
	}
	if idmap != nil && ctx.Err() == nil {
		t.Idmap = idmap(existing(lib))
	}
	t.Links, t.HTB = tryLinks(ctx)
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

// tryLinks makes a link of each kind in a network namespace of its own.
func tryLinks(ctx context.Context) (map[string]error, error) {
	links := map[string]error{"bridge": ErrNotTried, "veth": ErrNotTried, "macvlan": ErrNotTried}
	htb := ErrNotTried
	if ctx.Err() != nil {
		return links, htb
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := elsewhere(func() { htb = makeLinks(links) })
		if err != nil {
			links["bridge"], links["veth"], links["macvlan"], htb = err, err, err, err
		}
	}()
	<-done
	return links, htb
}

// elsewhere runs f in a new network namespace. The thread comes back after it, or is given up: the main thread of a
// process cannot end, and must not be left in another namespace, because it is what /proc/self shows.
func elsewhere(f func()) error {
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open the network namespace: %w", err)
	}
	defer home.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("make a network namespace: %w", err)
	}
	f()
	if err := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("go back to the network namespace of the host: %w", err) // locked for ever: the thread ends with its goroutine
	}
	runtime.UnlockOSThread()
	return nil
}

// makeLinks makes a link of each kind, and a shaping discipline, in the current network namespace.
func makeLinks(links map[string]error) (htb error) {
	links["bridge"] = netlink.LinkAdd(&netlink.Bridge{LinkAttrs: named("b0")})
	links["veth"] = netlink.LinkAdd(&netlink.Veth{LinkAttrs: named("v0"), PeerName: "v1"})
	for _, parent := range []string{"v0", "b0"} {
		link, err := netlink.LinkByName(parent)
		if err != nil {
			continue
		}
		at := named("m0")
		at.ParentIndex = link.Attrs().Index
		links["macvlan"] = netlink.LinkAdd(&netlink.Macvlan{LinkAttrs: at, Mode: netlink.MACVLAN_MODE_BRIDGE})
		return netlink.QdiscAdd(netlink.NewHtb(netlink.QdiscAttrs{
			LinkIndex: at.ParentIndex, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT,
		}))
	}
	return ErrNotTried
}

// named returns the attributes of a link with this name and no wish else.
func named(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	return a
}
