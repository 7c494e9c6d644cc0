package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"berth/internal/refuse"
	"berth/internal/step"
	"berth/internal/vnode"
)

// Kinds are the steps of this package.
func Kinds() step.Kinds {
	return step.Kinds{
		"image.delta":    func() step.Step { return new(Delta) },
		"image.skeleton": func() step.Step { return new(Skeleton) },
		"image.unpack":   func() step.Step { return new(Unpack) },
	}
}

// Delta is the step image.delta: the folder that takes a node's writes to its root. It lasts until the node is removed;
// undo purges it. Path is closed to all but the host's root (the node's programs in it may have the set-user-id bit);
// the node reaches Upper and Work through its overlay only.
//
// A delta in memory has no step: see MemorySize.
type Delta struct {
	Path    string      `json:"path"`              // layout's Delta of the node
	Owner   uint32      `json:"owner"`             // the node's root on the host: uid and gid
	Size    vnode.Bytes `json:"size,omitempty"`    // most bytes; 0: no limit
	Project uint32      `json:"project,omitempty"` // project id of the quota, if there is a Size: not 0, nobody else's on that file system
}

// CheckDelta refuses a delta that this host cannot keep; lib is the folder deltas are in, or an existing one above it.
func CheckDelta(d vnode.Delta, lib string) error {
	if d.In == vnode.InMemory || d.Size == 0 {
		return nil
	}
	for {
		if _, err := os.Lstat(lib); !errors.Is(err, fs.ErrNotExist) || lib == "/" {
			return needQuota(lib)
		}
		lib = filepath.Dir(lib)
	}
}

// MemorySize is the most bytes of a delta in memory: what the spec says, else half of memory.max, else 0: the kernel's
// own default for a tmpfs, half of the host's memory. What the node writes there is counted as its memory.
func MemorySize(d vnode.Delta, m vnode.Memory) vnode.Bytes {
	if d.Size > 0 {
		return d.Size
	}
	return m.Max / 2
}

// Upper is overlay's folder of changes.
func (d *Delta) Upper() string { return filepath.Join(d.Path, "upper") }

// Work is overlay's own folder beside it.
func (d *Delta) Work() string { return filepath.Join(d.Path, "work") }

// gone is where a delta lies while it is removed: a half removed one is never taken for a delta.
func (d *Delta) gone() string { return d.Path + ".gone" }

// Kind is image.delta.
func (d *Delta) Kind() string { return "image.delta" }

func (d *Delta) String() string {
	if d.Size == 0 {
		return fmt.Sprintf("%s for the node's writes, without a limit", d.Path)
	}
	return fmt.Sprintf("%s for the node's writes, at most %s by project quota %d", d.Path, d.Size, d.Project)
}

// Do makes the folders. Errors: refuse.Busy if the delta or its project is there already, refuse.Cannot without quotas.
func (d *Delta) Do(context.Context) error {
	err := os.Mkdir(d.Path, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return refuse.Busyf("there is a delta in %s already", d.Path)
	}
	if err != nil {
		return fmt.Errorf("make delta: %w", err)
	}
	step.Fault("delta made")
	if err := d.limit(); err != nil {
		return err
	}
	for _, dir := range []string{d.Upper(), d.Work()} {
		if err := makeDir(dir, 0o755, d.Owner); err != nil {
			return fmt.Errorf("make delta: %w", err)
		}
		step.Fault("delta folder made")
	}
	return nil
}

// limit puts the new folder under its project's quota, before anything is in it.
func (d *Delta) limit() error {
	if d.Size == 0 {
		return nil
	}
	if d.Project == 0 {
		return refuse.Invalidf("delta %s: project 0 cannot be limited", d.Path)
	}
	if err := needQuota(d.Path); err != nil {
		return err
	}
	dir, err := os.Open(d.Path)
	if err != nil {
		return err
	}
	defer dir.Close()
	_, used, err := projectUse(dir, d.Project)
	if err != nil {
		return err
	}
	if used > 0 {
		return refuse.Busyf("project %d has %d bytes already on the file system of %s", d.Project, used, d.Path)
	}
	return errors.Join(setProject(dir, d.Project), limitProject(dir, d.Project, int64(d.Size)))
}

// Verify checks owners and reads the limit back: a file system may round it up by one block, and no block is larger
// than 64 KiB.
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
	id, inherits, err := project(dir)
	if err != nil {
		return err
	}
	if id != d.Project || !inherits {
		return fmt.Errorf("verify delta: %s is of project %d (inherited: %v), not %d", d.Upper(), id, inherits, d.Project)
	}
	limit, _, err := projectUse(dir, id)
	if err != nil {
		return err
	}
	if limit < int64(d.Size) || limit >= int64(d.Size)+64<<10 {
		return fmt.Errorf("verify delta: project %d is limited to %d bytes, not %d", id, limit, d.Size)
	}
	return nil
}

// Undo purges the delta, however large and deep the node made it. A kill in the middle leaves it under another name,
// and the next Undo goes on.
func (d *Delta) Undo(ctx context.Context) error {
	if !filepath.IsAbs(d.Path) || filepath.Dir(d.Path) == "/" {
		return fmt.Errorf("purge delta: %q is no delta's path", d.Path)
	}
	if err := removeTree(ctx, d.gone()); err != nil {
		return fmt.Errorf("purge delta: %w", err)
	}
	err := os.Rename(d.Path, d.gone())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("purge delta: %w", err)
	}
	if err == nil {
		step.Fault("delta moved away")
		if err := removeTree(ctx, d.gone()); err != nil {
			return fmt.Errorf("purge delta: %w", err)
		}
	}
	return d.unlimit()
}

// unlimit takes the quota's limit away, so that the project id is as new.
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
	if ok, _ := QuotaSupport(dir.Name()); !ok {
		return nil // Do was refused, or quotas are off since: there is no limit
	}
	limit, used, err := projectUse(dir, d.Project)
	if err != nil || limit == 0 || used > 0 { // in use: it was somebody else's and Do refused it
		return err
	}
	return limitProject(dir, d.Project, 0)
}

// makeDir makes a folder with this very mode and owner.
func makeDir(path string, mode os.FileMode, owner uint32) error {
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	return errors.Join(os.Chown(path, int(owner), int(owner)), os.Chmod(path, mode))
}
