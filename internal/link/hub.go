package link

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/step"
	"berth/internal/thread"
)

// Hub is the network namespace of the host-only bridge, pinned at this path. The zero value is the host's own
// namespace. The bridge and the host's ends of its nodes' interfaces are in it, so that neither the host's network
// stack nor its firewall sees their frames, and the host's list of links stays short with many nodes.
type Hub string

// open opens a netlink socket in the namespace. The error wraps fs.ErrNotExist if the namespace does not exist.
func (u Hub) open() (*netlink.Handle, error) {
	if u == "" {
		return host()
	}
	f, err := u.file()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return at(f)
}

func (u Hub) file() (*os.File, error) {
	err := error(&fs.PathError{Op: "open", Path: string(u), Err: fs.ErrNotExist})
	if isPin(string(u)) {
		var f *os.File
		if f, err = os.Open(string(u)); err == nil {
			return f, nil
		}
	}
	return nil, fmt.Errorf("open the namespace of the host-only bridge: %w", err)
}

// Inode returns the inode of the namespace, which differs from that of a namespace pinned there later; 0 if there is
// none.
func (u Hub) Inode() uint64 {
	if u == "" {
		return 0
	}
	f, err := u.file()
	if err != nil {
		return 0
	}
	defer f.Close()
	n, _ := inode(f)
	return n
}

// ensure makes the namespace unless it exists. The caller holds the host-wide lock.
func (u Hub) ensure() error {
	path := string(u)
	if isPin(path) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make the namespace of the host-only bridge: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("make the namespace of the host-only bridge: %w", err)
	}
	f.Close()
	step.Fault("hub's file made")
	var ns *os.File
	err = thread.Own(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		ns, err = os.Open(self)
		return err
	})
	if err == nil {
		defer ns.Close()
		err = unix.Mount(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()), path, "", unix.MS_BIND, "")
	}
	if err != nil {
		return fmt.Errorf("make the namespace of the host-only bridge at %s: %w", path, err)
	}
	step.Fault("hub made")
	return nil
}

// release removes the namespace with its bridges, unless a node's interface is in it. The caller holds the host-wide
// lock.
func (u Hub) release() error {
	path := string(u)
	for isPin(path) {
		used, err := u.used()
		if err != nil || used {
			return err
		}
		if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
		step.Fault("hub unmounted")
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the namespace of the host-only bridge: %w", err)
	}
	return nil
}

// used reports whether the namespace holds a node's link. It stops at the first one, so that the end of a node does not
// take longer with many nodes. It goes by the name prefix: some kernel modules add tunnels of their own to each
// namespace.
func (u Hub) used() (bool, error) {
	used := false
	err := u.each(func(l seen) bool {
		used = strings.HasPrefix(l.name, portPrefix)
		return !used
	})
	return used, err
}

// mostPorts is how many ports a Linux bridge takes (BR_MAX_PORTS less one).
const mostPorts = 1023

// chained returns the name of bridge n of a hub. The bridges of a hub form a chain. Each takes mostPorts links, of
// which up to two are cables to its neighbours.
func chained(bridge string, n int) string {
	if n == 0 {
		return bridge
	}
	return fmt.Sprintf("%s.%d", bridge, n)
}

// cablePrefix begins the names of the links between two bridges of a hub.
const cablePrefix = "cable"

func isCable(l netlink.Link) bool { return strings.HasPrefix(l.Attrs().Name, cablePrefix) }

// plug makes a link a port of the first bridge of the chain with a free port. The caller holds the host-wide lock.
func (v *Veth) plug(h *netlink.Handle, l netlink.Link) error {
	for n := 0; ; n++ {
		bridge, err := ensureBridge(h, chained(v.Bridge, n))
		if err != nil {
			return err
		}
		err = h.LinkSetMasterByIndex(l, bridge)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EXFULL) {
			return fmt.Errorf("make link %s a port of bridge %s: %w", v.HostIf, chained(v.Bridge, n), err)
		}
		if err := v.extend(h, n, bridge); err != nil {
			return err
		}
	}
}

// extend connects the full bridge n of the chain to the next one. The cable needs a port, so one link moves to the next
// bridge.
func (v *Veth) extend(h *netlink.Handle, n, bridge int) error {
	after, err := ensureBridge(h, chained(v.Bridge, n+1))
	if err != nil {
		return err
	}
	near, far := fmt.Sprintf("%s%d-", cablePrefix, n), fmt.Sprintf("%s%d+", cablePrefix, n)
	l, err := byName(h, near)
	if err != nil {
		return fmt.Errorf("find link %s: %w", near, err)
	}
	if l == nil {
		l = &netlink.Veth{LinkAttrs: attrs(near, 0, nil), PeerName: far, PeerTxQLen: -1}
		if err := h.LinkAdd(l); err != nil {
			return fmt.Errorf("make a cable between bridges: %w", err)
		}
		step.Fault("cable made")
	}
	if l.Attrs().MasterIndex == bridge {
		return nil
	}
	other, err := h.LinkByName(far)
	if err != nil {
		return fmt.Errorf("find link %s: %w", far, err)
	}
	moved, err := lastPort(h, bridge)
	if err != nil {
		return err
	}
	for _, do := range []func() error{
		func() error { return cableEnd(h, other, after) },
		func() error { return h.LinkSetNoMaster(moved) },
		func() error { step.Fault("port taken out"); return cableEnd(h, l, bridge) },
		func() error { return h.LinkSetMasterByIndex(moved, after) },
	} {
		if err := do(); err != nil {
			return fmt.Errorf("join bridges %s and %s: %w", chained(v.Bridge, n), chained(v.Bridge, n+1), err)
		}
	}
	return nil
}

func cableEnd(h *netlink.Handle, l netlink.Link, bridge int) error {
	if err := noLinkLocal(h, l); err != nil {
		return err
	}
	if err := h.LinkSetMasterByIndex(l, bridge); err != nil {
		return err
	}
	return h.LinkSetUp(l)
}

// plugCables connects a bridge that was made again to the cables of its predecessor.
func plugCables(h *netlink.Handle, name string, bridge int) error {
	base, number, _ := strings.Cut(name, ".")
	n, _ := strconv.Atoi(number) // the first bridge's name has no number
	if chained(base, n) != name {
		return nil
	}
	for _, end := range []string{fmt.Sprintf("%s%d-", cablePrefix, n), fmt.Sprintf("%s%d+", cablePrefix, n-1)} {
		l, err := byName(h, end)
		if err == nil && l != nil {
			err = cableEnd(h, l, bridge)
		}
		if err != nil {
			return fmt.Errorf("join bridge %s to the next: %w", name, err)
		}
	}
	return nil
}

// lastPort returns the newest port of a bridge that is no cable.
func lastPort(h *netlink.Handle, bridge int) (last netlink.Link, err error) {
	links, err := listLinks(h)
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if l.Attrs().MasterIndex == bridge && !isCable(l) {
			last = l
		}
	}
	if last == nil {
		return nil, errors.New("a full bridge without a port")
	}
	return last, nil
}

// Bridge is the host-only bridge that the nodes without a parent share. The first such node makes it and the last one
// removes it. It is in a network namespace of its own: nodes reach each other over it, but not the host.
type Bridge struct {
	Lock string `json:"host_lock"` // file of the host-wide lock
	Name string `json:"name"`
	Hub  Hub    `json:"hub"`
}

// Kind implements step.Step.
func (b *Bridge) Kind() string { return "link.bridge" }

func (b *Bridge) String() string {
	return fmt.Sprintf("%s, host-only, made with the first node and gone with the last", b.Name)
}

// Do makes the bridge unless it exists.
func (b *Bridge) Do(ctx context.Context) error {
	lock, err := Lock(ctx, b.Lock)
	if err != nil {
		return err
	}
	defer lock.Close()
	h, err := b.Hub.made()
	if err != nil {
		return err
	}
	defer h.Close()
	_, err = ensureBridge(h, b.Name)
	return err
}

// made opens the namespace and makes it if needed. The caller holds the host-wide lock.
func (u Hub) made() (*netlink.Handle, error) {
	if u != "" {
		if err := u.ensure(); err != nil {
			return nil, err
		}
	}
	return u.open()
}

// Verify checks nothing: the end of another node may remove a bridge without ports, and Veth.Do makes it again under
// the lock under which it adds its port.
func (b *Bridge) Verify(context.Context) error { return nil }

// Undo removes the bridge if it has no port left.
func (b *Bridge) Undo(ctx context.Context) error {
	lock, err := Lock(ctx, b.Lock)
	if err != nil {
		return err
	}
	defer lock.Close()
	return b.Hub.release()
}
