package node

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/image"
	"berth/internal/node/plan"
	"berth/internal/runner"
	"berth/internal/spec/vnode"
	"berth/internal/storage/copier"
	"berth/internal/storage/mounts"
	"berth/internal/sys/refuse"
	"berth/internal/sys/thread"
)

// Root is the root of a node, opened for a copy.
type Root struct {
	copier.Node
	User   runner.User // the user that the node's command runs as
	Lasts  bool        // files that are written there are kept
	locked *lock
}

// Close ends the use of the root.
func (r *Root) Close() {
	r.Root.Close()
	if r.locked != nil {
		r.locked.release()
	}
}

// OpenRoot opens the root of a node: of a running one as its process 1 sees it, of a stopped one as its next start would mount it.
// A stopped one is locked meanwhile: it cannot start. Of a stopped machine there is none.
func (b *Berth) OpenRoot(ctx context.Context, name string) (*Root, error) {
	s, err := b.Stored(name)
	if err != nil {
		return nil, err
	}
	r := &Root{Node: copier.Node{Name: name}, Lasts: true}
	img, err := image.Open(b.Layout).Resolve(s.Now.Image)
	if err != nil {
		return nil, err
	}
	c, err := b.CommandOf(s.Now, img)
	if err != nil {
		return nil, err
	}
	r.User = c.User
	claims, err := b.Claims(name)
	if err != nil {
		return nil, err
	}
	if r.IDs, err = plan.Range(claims.Steps()); err != nil {
		return nil, err
	}
	if init, err := b.LiveInit(name); err == nil {
		return r, b.openRunning(r, init)
	}
	if s.Now.IsMachine() {
		return nil, refuse.Busyf("node %s does not run, and the files of a machine are its guest's: berth start %s, then copy", name, name)
	}
	if r.locked, err = b.lockNode(ctx, name); err != nil {
		return nil, err
	}
	if init, err := b.LiveInit(name); err == nil { // it was started meanwhile
		r.locked.release()
		r.locked = nil
		return r, b.openRunning(r, init)
	}
	if err := b.openStopped(ctx, r, s.Now, img); err != nil {
		r.locked.release()
		return nil, err
	}
	return r, nil
}

// openRunning opens the root of the node's mount namespace.
func (b *Berth) openRunning(r *Root, init runner.Holder) (err error) {
	if b.Frozen(r.Name) { // the process that copies would stop with the node's
		return refuse.Busyf("node %s is paused; berth unpause %s lets it go on", r.Name, r.Name)
	}
	if there, is := init.(runner.Copier); is {
		r.There = there.Copy
		return nil
	}
	if r.Groups, err = host.ReadMounted(); err != nil {
		return err
	}
	r.Group = b.GroupPath(r.Name)
	pidfd, err := init.First().Open()
	if err != nil {
		return refuse.Busyf("node %s is ending: %w", r.Name, err)
	}
	defer pidfd.Close()
	return thread.Own(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil { // setns requires a working directory of the thread's own
			return fmt.Errorf("take a working directory of one's own: %w", err)
		}
		if err := unix.Setns(int(pidfd.Fd()), unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("enter the mount namespace of node %s: %w", r.Name, err)
		}
		fd, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open the root of node %s: %w", r.Name, err)
		}
		r.Root = os.NewFile(uintptr(fd), "/")
		return nil
	})
}

// openStopped mounts the root in a mount namespace that ends at once: the open folder alone keeps the mount.
func (b *Berth) openStopped(ctx context.Context, r *Root, n *vnode.Node, img image.Image) error {
	if len(img.Missing) > 0 {
		return refuse.Busyf("the image of node %s is not unpacked; berth start %s unpacks it", n.Name, n.Name)
	}
	f := plan.Facts{Layout: b.Layout, Image: img}
	root := f.MountedRoot(n)
	r.Lasts = !root.Memory
	if root.Plain != "" {
		at, err := os.OpenFile(root.Plain, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		r.Root = at
		return err
	}
	if err := b.Layout.Make(); err != nil {
		return err
	}
	root.At = b.Layout.Run + "/root"
	p := mounts.Plan{Dir: b.Layout.Run, Root: root, IDs: r.IDs}
	return thread.Own(func() error {
		if err := p.Enter(ctx); err != nil {
			return fmt.Errorf("mount the root of node %s: %w", n.Name, err)
		}
		fd, err := unix.Open(root.At, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open the root of node %s: %w", n.Name, err)
		}
		r.Root = os.NewFile(uintptr(fd), "/")
		return nil
	})
}
