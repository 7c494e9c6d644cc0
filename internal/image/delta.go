package image

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"berth/internal/spec/vnode"
	"berth/internal/sys/fault"
	"berth/internal/sys/file"
	"berth/internal/sys/purge"
	"berth/internal/sys/quota"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// Kinds returns the steps of this package.
func Kinds() step.Kinds {
	return step.Kinds{
		"image.delta":    func() step.Step { return new(Delta) },
		"image.skeleton": func() step.Step { return new(Skeleton) },
		"image.unpack":   func() step.Step { return new(Unpack) },
	}
}

// Delta is the step image.delta: the folder that takes a node's writes to its root. It exists until the node is
// removed; Undo purges it. Only the host's root can enter Path, because the node's programs in it may have the
// set-user-id bit. The node reaches Upper and Work through its overlay only.
//
// A delta in memory needs no step: see MemorySize.
type Delta struct {
	Path    string      `json:"path"`              // layout's Delta of the node
	Owner   uint32      `json:"owner"`             // the node's root on the host: uid and gid
	Size    vnode.Bytes `json:"size,omitempty"`    // most bytes; 0: no limit
	Project uint32      `json:"project,omitempty"` // quota's project id if Size is set: not 0, unused by others on that file system
}

// lackOfQuota says why the file system of a folder cannot limit a delta; "" if it can.
func lackOfQuota(path string) string {
	if ok, why := quota.Support(path); !ok {
		return fmt.Sprintf("a delta in %s cannot be limited: %s", path, why)
	}
	return ""
}

// ReadLackOfQuota says why this host cannot limit a delta as the spec asks; "" if it can, or if no quota is asked for. lib is
// the folder that will hold the delta; it need not exist yet.
func ReadLackOfQuota(d vnode.Delta, lib string) string {
	if d.In == vnode.InMemory || d.Size == 0 {
		return ""
	}
	for {
		if _, err := os.Lstat(lib); !errors.Is(err, fs.ErrNotExist) || lib == "/" {
			return lackOfQuota(lib)
		}
		lib = filepath.Dir(lib)
	}
}

// CheckDelta refuses a delta that the host cannot limit, with the reason that ReadLackOfQuota found.
func CheckDelta(lack string) error {
	if lack == "" {
		return nil
	}
	return refuse.Cannotf("set delta.in to memory, leave delta.size out, or mount it with prjquota (ext4 made with -O quota,project; XFS: pquota)", "%s", lack)
}

// MemorySize returns the size limit of a delta in memory, in bytes: delta.size of the spec, else half of memory.max,
// else 0. 0 means the kernel's default for a tmpfs, half of the host's memory. The kernel charges the delta to the
// node's memory.
func MemorySize(d vnode.Delta, m vnode.Memory) vnode.Bytes {
	if d.Size > 0 {
		return d.Size
	}
	return m.Max / 2
}

// Upper returns overlay's upperdir: the folder that holds the changes.
func (d *Delta) Upper() string { return filepath.Join(d.Path, "upper") }

// Work returns overlay's workdir.
func (d *Delta) Work() string { return filepath.Join(d.Path, "work") }

// gone returns the path that the delta is moved to before it is removed, so that a half-removed delta is never used as
// one.
func (d *Delta) gone() string { return d.Path + ".gone" }

// Kind returns image.delta.
func (d *Delta) Kind() string { return "image.delta" }

// Own gives the delta to the root user of a node with these ids; size is 0 without a user namespace.
func (d *Delta) Own(base, size uint32) {
	d.Owner = base
	switch {
	case d.Size == 0:
	case size > 0: // a range belongs to one node, so its number makes a unique project
		d.Project = base / size
	default:
		h := fnv.New32a()
		_, _ = h.Write([]byte(d.Path)) // never fails: hash.Hash
		d.Project = h.Sum32() | 1<<31
	}
}

func (d *Delta) String() string {
	if d.Size == 0 {
		return fmt.Sprintf("%s for the node's writes, without a limit", d.Path)
	}
	return fmt.Sprintf("%s for the node's writes, at most %s and %d files by project quota %d", d.Path, d.Size, quota.Files(int64(d.Size)), d.Project)
}

// Do makes the folders. Errors: refuse.Busy if the delta exists or its project is in use, refuse.Cannot without quotas.
func (d *Delta) Do(context.Context) error {
	err := os.Mkdir(d.Path, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return refuse.Busyf("there is a delta in %s already", d.Path)
	}
	if err != nil {
		return fmt.Errorf("make delta: %w", err)
	}
	fault.Point("delta made")
	if err := d.limit(); err != nil {
		return err
	}
	for _, dir := range []string{d.Upper(), d.Work()} {
		if err := makeDir(dir, 0o755, d.Owner); err != nil {
			return fmt.Errorf("make delta: %w", err)
		}
		fault.Point("delta folder made")
	}
	return nil
}

// limit sets the project and its quota on the new, still empty folder.
func (d *Delta) limit() error {
	if d.Size == 0 {
		return nil
	}
	if d.Project == 0 {
		return refuse.Invalidf("delta %s: project 0 cannot be limited", d.Path)
	}
	if err := CheckDelta(lackOfQuota(d.Path)); err != nil {
		return err
	}
	dir, err := os.Open(d.Path)
	if err != nil {
		return err
	}
	defer dir.Close()
	_, used, err := quota.Use(dir, d.Project)
	if err != nil {
		return err
	}
	if used > 0 {
		return refuse.Busyf("project %d has %d bytes already on the file system of %s", d.Project, used, d.Path)
	}
	return errors.Join(quota.SetProject(dir, d.Project), quota.Limit(dir, d.Project, int64(d.Size)))
}

// Verify checks the owners and reads the limits back.
func (d *Delta) Verify(context.Context) error {
	for _, path := range []string{d.Upper(), d.Work()} {
		info, err := os.Lstat(path)
		if err != nil {
			return fmt.Errorf("verify delta: %w", err)
		}
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || !info.IsDir() || st.Uid != d.Owner {
			return fmt.Errorf("verify delta: %s is not a folder of user %d", path, d.Owner)
		}
	}
	if d.Size == 0 {
		return nil
	}
	dir, err := os.Open(d.Upper())
	if err != nil {
		return fmt.Errorf("verify delta: %w", err)
	}
	defer dir.Close()
	id, inherits, err := quota.Project(dir)
	if err != nil {
		return err
	}
	if id != d.Project || !inherits {
		return fmt.Errorf("verify delta: %s is of project %d (inherited: %v), not %d", d.Upper(), id, inherits, d.Project)
	}
	if err := quota.Held(dir, id, int64(d.Size)); err != nil {
		return fmt.Errorf("verify delta: %w", err)
	}
	return nil
}

// OnDisk implements step.Lasting, also for the Skeleton in it.
func (d *Delta) OnDisk() error { return errors.Join(file.SyncDir(d.Path), file.SyncDir(d.Upper())) }

// Undo purges the delta, however large and deep it is. If it is killed midway, the rest stays under the path gone, and
// the next Undo removes it.
func (d *Delta) Undo(ctx context.Context) error {
	if !filepath.IsAbs(d.Path) || filepath.Dir(d.Path) == "/" {
		return fmt.Errorf("purge delta: %q is no delta's path", d.Path)
	}
	if err := purge.Tree(ctx, d.gone()); err != nil {
		return fmt.Errorf("purge delta: %w", err)
	}
	err := os.Rename(d.Path, d.gone())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("purge delta: %w", err)
	}
	if err == nil {
		fault.Point("delta moved away")
		if err := purge.Tree(ctx, d.gone()); err != nil {
			return fmt.Errorf("purge delta: %w", err)
		}
	}
	return d.unlimit()
}

// unlimit removes the project's limit, so that the project id can be used again.
func (d *Delta) unlimit() error {
	if d.Size == 0 || d.Project == 0 {
		return nil
	}
	dir, err := os.Open(filepath.Dir(d.Path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	if ok, _ := quota.Support(dir.Name()); !ok {
		return nil // no quotas, so no limit: Do was refused, or quotas were turned off later
	}
	limit, used, err := quota.Use(dir, d.Project)
	if err != nil || limit == 0 || used > 0 { // used > 0: Do refused the project because others use it
		return err
	}
	return quota.Limit(dir, d.Project, 0)
}

// makeDir makes a folder with exactly this mode and owner, whatever the umask.
func makeDir(path string, mode os.FileMode, owner uint32) error {
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	return errors.Join(os.Chown(path, int(owner), int(owner)), os.Chmod(path, mode))
}
