package scratch

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/internal/sys/fault"
	"berth/internal/sys/purge"
	"berth/internal/sys/quota"
	"berth/internal/sys/refuse"
)

// gone ends the name of a folder that is being removed.
const gone = ".gone"

// inFolder returns the path of a volume in a pool of kind Dir: a folder with a quota, or a file with a file system.
func (p Pool) inFolder(name string) string { return filepath.Join(p.own(), name) }

// there refuses a pool whose folder is gone: its file system may not be mounted.
func (p Pool) there() error {
	info, err := os.Lstat(p.own())
	if err == nil && info.IsDir() {
		if st := info.Sys().(*syscall.Stat_t); st.Uid != 0 || info.Mode().Perm()&0o077 != 0 {
			return refuse.Cannotf("find out who did that; chown root and chmod 700 make it Berth's again",
				"%s, the folder of scratch pool %s, is not root's alone any more", p.own(), p.Name)
		}
		return nil
	}
	return refuse.Cannotf("mount its file system",
		"%s, the folder of scratch pool %s, is not there", p.own(), p.Name)
}

// folderRoom refuses a size that the pool's file system cannot give.
func (p Pool) folderRoom(size int64) error {
	if err := p.there(); err != nil {
		return err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(p.own(), &st); err != nil {
		return fmt.Errorf("read the free space of scratch pool %s: %w", p.Name, err)
	}
	whole, free := int64(st.Blocks)*st.Bsize, int64(st.Bavail)*st.Bsize
	switch {
	case size > whole:
		return refuse.Cannotf("choose a smaller size, or a bigger pool", "a volume of %d MiB is larger than scratch pool %s: the file system of %s has %d MiB in all", size>>20, p.Name, p.Dir, whole>>20)
	case size > free:
		return refuse.Cannotf("choose a smaller size, or free some of it", "scratch pool %s is full: the file system of %s has %d MiB free, and the volume needs %d MiB", p.Name, p.Dir, free>>20, size>>20)
	}
	return nil
}

// makeFile makes a file that has all its place on the disk, so that a full disk is told now and not to the node.
func (p Pool) makeFile(name string, size int64) error {
	f, err := os.OpenFile(p.inFolder(name), os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return refuse.Busyf("there is a volume %s already; berth repair removes it if no node has it", p.inFolder(name))
	}
	if err != nil {
		return fmt.Errorf("make the volume's file: %w", err)
	}
	defer f.Close()
	fault.Point("volume's file made")
	return reserve(f, 0, size, p.of())
}

// of says where the files of the pool lie.
func (p Pool) of() string { return fmt.Sprintf("scratch pool %s is full: %s", p.Name, p.Dir) }

// reserve gives a part of a file a place on the disk wherever it has none, and changes nothing of what it holds. where says what
// may be full, in a sentence that goes on with "has no room".
func reserve(f *os.File, at, size int64, where string) error {
	err := unix.Fallocate(int(f.Fd()), 0, at, size)
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EFBIG):
		return refuse.Cannotf("choose a smaller size, or free some of it", "%s has no room for %d MiB: %w", where, size>>20, err)
	case errors.Is(err, unix.EOPNOTSUPP):
		return refuse.Cannotf("use a folder on ext4, XFS, btrfs or tmpfs", "the file system of %s cannot reserve the place for it: %w", filepath.Dir(f.Name()), err)
	case err != nil:
		return fmt.Errorf("reserve %d MiB for %s: %w", size>>20, f.Name(), err)
	}
	return nil
}

// reserveAgain does so before a node starts. The file of a volume has holes where its file system had zeros written: the kernel's loop
// device punches them for REQ_OP_WRITE_ZEROES (lo_fallocate in drivers/block/loop.c), and an ext4 asks for that (ext4_issue_zeroout).
//
// XFS wants as much free as it is asked for, also where the file has its place (xfs_alloc_file_space in fs/xfs/xfs_bmap_util.c): so it is asked for
// little at once, for less where little is free, and a file that has all its place is right on a full disk, too.
func (p Pool) reserveAgain(name string, size int64) error {
	f, err := os.OpenFile(p.inFolder(name), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // Verify says so
	}
	if err != nil {
		return fmt.Errorf("open the volume's file: %w", err)
	}
	defer f.Close()
	piece := int64(64 << 20)
	for at := int64(0); at < size; {
		err := reserve(f, at, min(piece, size-at), p.of())
		full := errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
		var st unix.Stat_t
		switch {
		case err == nil:
			at += piece
		case full && unix.Fstat(int(f.Fd()), &st) == nil && st.Blocks*512 >= size:
			return nil
		case full && piece > 1<<20:
			piece /= 2
		default:
			return err
		}
	}
	return nil
}

// makeFolder makes a folder with a project quota, and returns its project. The folder gets the project before the limit is set:
// the command that removes the folder finds the limit by it.
func (p Pool) makeFolder(name string, size int64) (project uint32, err error) {
	path := p.inFolder(name)
	err = os.Mkdir(path, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return 0, refuse.Busyf("there is a volume %s already; berth repair removes it if no node has it", path)
	}
	if err != nil {
		return 0, fmt.Errorf("make the volume's folder: %w", err)
	}
	fault.Point("volume's folder made")
	dir, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	if project, err = freeProject(dir, path); err != nil {
		return 0, err
	}
	if err := quota.SetProject(dir, project); err != nil {
		return 0, err
	}
	fault.Point("volume's project set")
	return project, quota.Limit(dir, project, size)
}

// limitAgain gives a folder that has a project its limits anew: an older berth limited no files.
func limitAgain(path string, size int64) error {
	dir, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // Verify says so
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	id, _, err := quota.Project(dir)
	if err != nil || id == 0 {
		return nil // Verify says so too
	}
	return quota.Limit(dir, id, size)
}

// freeProject finds a project that has neither a limit nor files. The caller holds the pool's lock; other pools and deltas
// on the same file system begin elsewhere: deltas of nodes with ids of their own below 65536, the others by a hash too.
func freeProject(dir *os.File, path string) (uint32, error) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(path)) // never fails: hash.Hash
	for id := h.Sum32()&(1<<30-1) | 1<<30; ; id++ {
		limit, used, err := quota.Use(dir, id)
		if err != nil {
			return 0, err
		}
		if limit == 0 && used == 0 {
			return id, nil
		}
	}
}

// verifyFolder reads the quota of a volume's folder back.
func verifyFolder(path string, size int64) error {
	dir, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("verify scratch volume: %w", err)
	}
	defer dir.Close()
	if ok, why := quota.Support(path); !ok {
		return refuse.Cannotf("mount it with prjquota", "scratch volume %s cannot be limited any more: %s", path, why)
	}
	id, inherits, err := quota.Project(dir)
	if err != nil {
		return err
	}
	if id == 0 || !inherits {
		return fmt.Errorf("verify scratch volume: %s is of project %d (inherited: %v)", path, id, inherits)
	}
	if err := quota.Held(dir, id, size); err != nil {
		return fmt.Errorf("verify scratch volume %s: %w", path, err)
	}
	return nil
}

// removeInFolder removes a volume of a pool of kind Dir, also one that is only partly there. A folder is moved away
// first, so that a half-removed one is never used.
func (p Pool) removeInFolder(ctx context.Context, name string) error {
	path := p.inFolder(name)
	if err := purge.Tree(ctx, path+gone); err != nil {
		return err
	}
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return os.Remove(path)
	}
	if err := unlimit(path); err != nil {
		return err
	}
	fault.Point("volume's limit removed")
	if err := os.Rename(path, path+gone); err != nil {
		return err
	}
	fault.Point("volume moved away")
	return purge.Tree(ctx, path+gone)
}

// unlimit removes the limit of a folder's project, so that the id can be used again.
func unlimit(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if ok, _ := quota.Support(path); !ok {
		return nil
	}
	id, _, err := quota.Project(dir)
	if err != nil || id == 0 {
		return err
	}
	return quota.Limit(dir, id, 0)
}

// inFolders lists the volumes in the pool's folder by their names.
func (p Pool) inFolders() ([]Found, error) {
	entries, err := os.ReadDir(p.own())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the volumes of scratch pool %s: %w", p.Name, err)
	}
	var all []Found
	for _, e := range entries {
		name := strings.TrimSuffix(e.Name(), gone)
		if node, ok := p.nodeOf(name); ok {
			all = append(all, Found{Name: name, Node: node})
		}
	}
	return all, nil
}
