package scratch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/spec/vnode"
	"berth/internal/storage/mounts"
	"berth/internal/sys/fault"
	"berth/internal/sys/file"
	"berth/internal/sys/quota"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// Kinds returns the steps of this package.
func Kinds() step.Kinds {
	return step.Kinds{
		"scratch.volume": func() step.Step { return new(Volume) },
		"scratch.open":   func() step.Step { return new(Open) },
		"scratch.disk":   func() step.Step { return new(Disk) },
	}
}

// Volume is the step scratch.volume: a volume with a file system, or a folder with a quota. It exists until the node is
// removed. Volumes in memory need no step: they are mounted at each start.
type Volume struct {
	Pools  string      `json:"pools"` // layout's Scratch
	Pool   Pool        `json:"pool"`
	Node   string      `json:"node"`
	Target string      `json:"target"`
	Size   vnode.Bytes `json:"size"`
	FS     string      `json:"fs,omitempty"` // "": a folder with a quota
	Mode   uint32      `json:"mode"`
	Mapped bool        `json:"mapped"` // the node has ids of its own on the host
	// Machine: the node's own kernel mounts the volume. It is never mounted on the host once the node had it: what is on it may
	// be made to harm a kernel.
	Machine bool   `json:"machine,omitempty"`
	Owner   uint32 `json:"owner,omitempty"` // the node's root on the host: uid and gid
	UUID    string `json:"uuid,omitempty"`  // of a logical volume, once it is made

	root *os.File // the mount that Do made, for Verify to read back
}

// Name returns the volume's name in its pool.
func (v *Volume) Name() string {
	sum := sha256.Sum256([]byte(v.Target))
	return v.Pool.prefix() + v.Node + "." + hex.EncodeToString(sum[:4])
}

// prefix begins the names of the pool's volumes.
func (p Pool) prefix() string {
	if p.VG != "" {
		return "berth-" + p.ID + "-"
	}
	return ""
}

// nodeOf returns the node of a volume by its name; ok is false for any other name.
func (p Pool) nodeOf(name string) (node string, ok bool) {
	node, hash, ok := strings.Cut(strings.TrimPrefix(name, p.prefix()), ".")
	_, err := hex.DecodeString(hash)
	return node, ok && err == nil && len(hash) == 8 && vnode.CheckName(node) == nil
}

// Path returns the device, file or folder of the volume.
func (v *Volume) Path() string {
	if v.Pool.VG != "" {
		return mapped(v.Pool.VG, v.Name())
	}
	return v.Pool.inFolder(v.Name())
}

// Kind returns scratch.volume.
func (v *Volume) Kind() string { return "scratch.volume" }

// Key identifies the claim; fields that Do filled in are no part of it. A volume whose size, pool or file system changes is
// another one.
func (v *Volume) Key() string {
	key := fmt.Sprintf("%s %s %d %s %s %v", v.Node, v.Target, int64(v.Size), v.Pool.ID, v.FS, v.Mapped)
	if v.Machine {
		key += " machine"
	}
	return key
}

// Own gives the volume to the root user of a node whose ids begin at base. In a machine that is 0.
func (v *Volume) Own(base, _ uint32) {
	if !v.Machine {
		v.Owner = base
	}
}

func (v *Volume) String() string {
	switch {
	case v.FS == "":
		return fmt.Sprintf("folder %s for %s, at most %s and %d files by project quota", v.Path(), v.Target, v.Size, quota.Files(int64(v.Size)))
	case v.Pool.Dir != "":
		return fmt.Sprintf("file %s of %s for %s, %s", v.Path(), v.Size, v.Target, v.FS)
	case v.Pool.Thin != "":
		return fmt.Sprintf("logical volume %s/%s of %s in thin pool %s for %s, %s", v.Pool.VG, v.Name(), v.Size, v.Pool.Thin, v.Target, v.FS)
	}
	return fmt.Sprintf("logical volume %s/%s of %s for %s, %s", v.Pool.VG, v.Name(), v.Size, v.Target, v.FS)
}

// Prepare refuses volumes for which the pool has no room. It changes nothing. A volume group is not asked, as lvcreate refuses
// the same before it changes anything, and each call of LVM takes its time.
func (v *Volume) Prepare(ctx context.Context) error {
	// Found here, before the journal names it: to undo a step that was begun removes the volume.
	_, err := os.Lstat(v.Path())
	switch {
	case err == nil:
		err = refuse.Busyf("there is a volume %s already; berth repair removes it if no node has it", v.Path())
	case !errors.Is(err, fs.ErrNotExist):
	case v.Pool.Thin != "":
		err = v.Pool.groupRoom(ctx, int64(v.Size))
	case v.Pool.Dir != "":
		err = v.Pool.folderRoom(int64(v.Size))
	default:
		err = nil
	}
	return v.of(err)
}

// of says in an error which volume it is about.
func (v *Volume) of(err error) error {
	if err != nil {
		err = fmt.Errorf("scratch %s: %w", v.Target, err)
	}
	return err
}

// Do makes the volume under the pool's lock, which mkfs and LVM hold too until they have ended.
func (v *Volume) Do(ctx context.Context) error {
	p, held, err := Pools{v.Pools}.hold(ctx, v.Pool.Name)
	if err != nil {
		return v.of(err)
	}
	defer held.Close()
	if p != v.Pool {
		return v.of(refuse.Busyf("scratch pool %s was made anew meanwhile", p.Name))
	}
	switch {
	case p.VG != "":
		v.UUID, err = p.makeLogical(ctx, held, v.Name(), v.Node, int64(v.Size))
	case v.FS != "":
		if err = p.there(); err == nil {
			err = p.makeFile(v.Name(), int64(v.Size))
		}
	default:
		if err = p.there(); err == nil {
			_, err = p.makeFolder(v.Name(), int64(v.Size))
		}
	}
	if err == nil && v.FS != "" {
		fault.Point("volume made")
		err = makeFS(held, v.FS, v.Path())
	}
	if err == nil {
		fault.Point("file system made")
		err = v.give()
	}
	return v.of(err)
}

// makeFS makes a file system. Work that the kernel can do later is left to it: inode tables and the journal. Nothing is
// discarded, as the place is new.
func makeFS(held *os.File, fs, at string) error {
	name, pkg := mkfs(fs)
	path, err := program(name, pkg)
	if err != nil {
		return err
	}
	args := []string{"-q", "-F", "-m", "0", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1", at}
	if fs == vnode.XFS {
		args = []string{"-q", "-f", "-K", at}
	}
	if _, err := run(held, path, args...); err != nil {
		return fmt.Errorf("make the file system of %s: %w", at, err)
	}
	return nil
}

// give gives the volume's root folder to the node. The folder lost+found, which the node's root could not touch, goes;
// fsck makes it again where it needs one.
func (v *Volume) give() error {
	root, err := v.open()
	if err != nil {
		return err
	}
	v.root = root
	if v.FS == vnode.Ext4 {
		if err := unix.Unlinkat(int(root.Fd()), "lost+found", unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove lost+found of %s: %w", v.Path(), err)
		}
	}
	fd := int(root.Fd())
	err = unix.Fchownat(fd, ".", int(v.Owner), int(v.Owner), unix.AT_SYMLINK_NOFOLLOW)
	if err == nil {
		err = unix.Fchmodat(fd, ".", v.Mode, 0)
	}
	if err != nil {
		return fmt.Errorf("give %s to the node: %w", v.Path(), err)
	}
	return nil
}

// open opens the root folder of the volume; a file system is mounted at no path while it is open.
func (v *Volume) open() (*os.File, error) {
	if v.FS == "" {
		return os.OpenFile(v.Path(), unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	}
	return (&mounts.Volume{Source: v.Path(), FSType: v.FS}).Open()
}

// Verify reads owner, mode and size back.
func (v *Volume) Verify(context.Context) error { return v.of(v.verify()) }

func (v *Volume) verify() error {
	root, err := v.root, error(nil)
	if v.root = nil; root == nil {
		if v.Machine {
			return fmt.Errorf("verify %s: a machine may have had it, so the host does not mount it", v.Path())
		}
		root, err = v.open()
	}
	if err != nil {
		return err
	}
	defer root.Close()
	var st unix.Stat_t
	if err := unix.Fstatat(int(root.Fd()), ".", &st, 0); err != nil {
		return fmt.Errorf("verify %s: %w", v.Path(), err)
	}
	if st.Uid != v.Owner || st.Mode&0o7777 != v.Mode {
		return fmt.Errorf("verify %s: it belongs to user %d with mode %o, not to %d with %o", v.Path(), st.Uid, st.Mode&0o7777, v.Owner, v.Mode)
	}
	switch {
	case v.Pool.VG != "":
		if !active(v.Path(), v.UUID) { // Do has read back what LVM says of it
			return fmt.Errorf("verify %s: it is not the logical volume with uuid %s", v.Path(), v.UUID)
		}
		return nil
	case v.FS == "":
		return verifyFolder(v.Path(), int64(v.Size))
	}
	var file unix.Stat_t
	if err := unix.Stat(v.Path(), &file); err != nil {
		return fmt.Errorf("verify %s: %w", v.Path(), err)
	}
	if file.Size != int64(v.Size) || file.Blocks*512 < file.Size {
		return fmt.Errorf("verify %s: it has %d bytes, %d of them with a place on the disk, not %d", v.Path(), file.Size, file.Blocks*512, int64(v.Size))
	}
	return nil
}

// OnDisk implements step.Lasting.
func (v *Volume) OnDisk() error {
	if v.Pool.VG != "" {
		return nil // LVM and mkfs write through
	}
	return v.of(errors.Join(file.SyncDir(v.Path()), file.SyncDir(v.Pool.own())))
}

// Undo removes the volume, if there is anything of it. A program that a killed berth left at work is waited for: it holds the
// pool's lock.
func (v *Volume) Undo(ctx context.Context) error {
	if v.root != nil {
		v.root.Close()
		v.root = nil
	}
	held, err := Pools{v.Pools}.holdIfThere(ctx, v.Pool.Name)
	if err != nil {
		return v.of(err)
	}
	if held != nil {
		defer held.Close()
	}
	if v.Pool.VG != "" {
		return v.of(v.Pool.removeLogical(ctx, held, v.Name()))
	}
	return v.of(v.Pool.removeInFolder(ctx, v.Name()))
}

// Open is the live step scratch.open: a node's volumes are there and usable. Logical volumes are activated, and stay so.
type Open struct {
	Volumes []*Volume `json:"volumes"`
}

// Kind returns scratch.open.
func (o *Open) Kind() string { return "scratch.open" }

func (o *Open) String() string {
	var all []string
	for _, v := range o.Volumes {
		all = append(all, v.Path())
	}
	return strings.Join(all, ", ") + " usable"
}

// Do activates logical volumes that are not, and restores what files and folders may have lost: their place on the disk, their limits.
func (o *Open) Do(ctx context.Context) error {
	for _, v := range o.Volumes {
		var err error
		switch {
		case v.Pool.VG != "":
		case v.FS == "":
			err = limitAgain(v.Path(), int64(v.Size))
		default:
			err = v.Pool.reserveAgain(v.Name(), int64(v.Size))
		}
		if err != nil {
			return v.of(err)
		}
		if v.Pool.VG == "" || active(v.Path(), v.UUID) {
			continue
		}
		p, held, err := Pools{v.Pools}.hold(ctx, v.Pool.Name)
		if err != nil {
			return v.of(err)
		}
		err = p.activate(held, v.Name())
		held.Close()
		if err != nil {
			return v.of(err)
		}
	}
	return nil
}

// Verify checks that each volume is as it was made.
func (o *Open) Verify(context.Context) error {
	for _, v := range o.Volumes {
		var st unix.Stat_t
		err := unix.Lstat(v.Path(), &st)
		switch {
		case v.Pool.VG != "" && !active(v.Path(), v.UUID):
			err = fmt.Errorf("%s is not the logical volume that was made for the node (uuid %s)", v.Path(), v.UUID)
		case err != nil:
			err = refuse.NotFoundf("volume %s is gone: %w; berth rm removes the node, berth apply makes it with an empty volume", v.Path(), err)
		case v.FS == "":
			err = verifyFolder(v.Path(), int64(v.Size))
		}
		if err != nil {
			return v.of(err)
		}
	}
	return nil
}

// Undo does nothing: the volumes last.
func (o *Open) Undo(context.Context) error { return nil }

// octal reads a mode of the spec; "" is 1777.
func octal(mode string) uint32 {
	m, err := strconv.ParseUint(mode, 8, 32)
	if err != nil {
		return 0o1777
	}
	return uint32(m)
}
