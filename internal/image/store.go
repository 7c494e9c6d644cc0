package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/sys/fault"
	"berth/internal/sys/file"
	"berth/internal/sys/layout"
	"berth/internal/sys/lock"
	"berth/internal/sys/purge"
	"berth/internal/sys/refuse"
)

// Store is the image store of one Berth on a host. Readers need no lock. Commands hold the store's lock while they change which
// images and layers there are, which is short, so whatever is in tmp while the lock is free was left by a killed command; but for what
// an import unpacks (tmp/unpack-…), which takes long: that belongs to the holder of the lock of unpacking. Removals and
// starts of nodes do not wait for imports, imports wait for each other. Who has the lock of unpacking may take the store's.
//
//	lock                     flock, exclusive
//	unpack                   flock, exclusive, for those who unpack layers
//	use                      flock, shared by commands that begin to use an image, exclusive for those that remove one
//	records/NAME.json        one image
//	layers/sha256/HEX/       one layer, in the form overlay reads: complete and verified, or not there
//	tmp/                     what is being unpacked or removed
//	packed/                  images that are one file (package packed)
//	pulls/blobs/sha256/HEX   a blob from a registry, or its beginning, until it is unpacked (packages pull and registry)
//
// Only root can enter the folder: its layers hold set-user-id programs chosen by the images' makers.
type Store struct {
	lib    string
	dir    string
	Limits Limits // of one import
}

// Open returns the store of a layout. It reads and changes nothing.
func Open(l layout.Layout) Store { return Store{lib: l.Lib, dir: l.Images(), Limits: DefaultLimits()} }

func (s Store) records() string          { return filepath.Join(s.dir, "records") }
func (s Store) layers() string           { return filepath.Join(s.dir, "layers", "sha256") }
func (s Store) tmp() string              { return filepath.Join(s.dir, "tmp") }
func (s Store) record(n string) string   { return filepath.Join(s.records(), recordFile(n)) }
func (s Store) layer(hex string) string  { return filepath.Join(s.layers(), hex) }
func (s Store) has(digest string) bool   { return s.lacks([]string{digest}) == nil }
func (s Store) scratch() (string, error) { return os.MkdirTemp(s.tmp(), unpackPrefix) }

// lacks returns those of the layers that are not unpacked.
func (s Store) lacks(digests []string) []string {
	var out []string
	for _, d := range digests {
		hex, err := parseDigest(d)
		if err != nil {
			return digests
		}
		if info, err := os.Lstat(s.layer(hex)); err != nil || !info.IsDir() {
			out = append(out, d)
		}
	}
	return out
}

// Make makes the store's folders.
func (s Store) Make() error {
	// Nodes traverse the folders above Berth's own, which may have to be made too.
	if err := os.MkdirAll(filepath.Dir(filepath.Dir(s.dir)), 0o711); err != nil {
		return fmt.Errorf("make image store: %w", err)
	}
	for _, d := range []string{s.dir, s.records(), s.layers(), s.tmp()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return fmt.Errorf("make image store: %w", err)
		}
	}
	return nil
}

// lock makes the store's folders and takes its lock; it waits until ctx ends. The lock is released by unlock or when
// the process ends.
func (s Store) lock(ctx context.Context) (unlock func(), err error) {
	if err := s.Make(); err != nil {
		return nil, err
	}
	f, err := lock.Open(ctx, s.lockFile())
	if err != nil {
		return nil, fmt.Errorf("lock image store: %w", err)
	}
	return func() { lock.Release(f) }, nil
}

// lockUnpack is lock for the lock of unpacking. It removes what a killed holder left.
func (s Store) lockUnpack(ctx context.Context) (unlock func(), err error) {
	if err := s.Make(); err != nil {
		return nil, err
	}
	f, err := lock.Open(ctx, s.unpackFile())
	if err != nil {
		return nil, fmt.Errorf("wait for another import: %w", err)
	}
	if err := s.sweepTmp(ctx, true); err != nil {
		lock.Release(f)
		return nil, err
	}
	return func() { lock.Release(f) }, nil
}

// unpackPrefix begins the names in tmp that belong to the holder of the lock of unpacking.
const unpackPrefix = "unpack-"

func (s Store) lockFile() string   { return filepath.Join(s.dir, "lock") }
func (s Store) unpackFile() string { return filepath.Join(s.dir, "unpack") }
func (s Store) useFile() string    { return filepath.Join(s.dir, "use") }

// Sweep removes the leftovers of killed commands from the store. If a command is using the store, Sweep does nothing. It is
// quick if there is nothing to remove.
func (s Store) Sweep(ctx context.Context) error {
	left, err := os.ReadDir(s.tmp())
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(left) == 0 {
		return nil
	}
	unlock, free, err := tryLock(s.lockFile())
	if err != nil || !free { // the command that holds the lock cleans up
		return err
	}
	defer unlock()
	return s.sweep(ctx)
}

// tryLock takes the lock of a file if no other process has it.
func tryLock(path string) (unlock func(), free bool, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, false, fmt.Errorf("lock image store: %w", err)
	}
	if free, err = lock.Try(f); err != nil || !free {
		f.Close()
		return nil, false, err
	}
	return func() { lock.Release(f) }, true, nil
}

// sweep is Sweep without taking the lock. What is being unpacked stays.
func (s Store) sweep(ctx context.Context) error {
	if err := s.sweepTmp(ctx, false); err != nil {
		return err
	}
	unlock, free, err := tryLock(s.unpackFile())
	if err != nil || !free { // the import that holds the lock cleans up
		return err
	}
	defer unlock()
	return s.sweepTmp(ctx, true)
}

// sweepTmp removes what is in tmp: what was unpacked, for who holds the lock of unpacking, or all the rest, for who holds the store's.
func (s Store) sweepTmp(ctx context.Context, unpacked bool) error {
	left, err := os.ReadDir(s.tmp())
	if err != nil {
		return fmt.Errorf("sweep image store: %w", err)
	}
	for _, e := range left {
		if strings.HasPrefix(e.Name(), unpackPrefix) != unpacked {
			continue
		}
		if err := purge.Tree(ctx, filepath.Join(s.tmp(), e.Name())); err != nil {
			return fmt.Errorf("sweep image store: %w", err)
		}
	}
	return nil
}

// write replaces a record's file atomically.
func (s Store) write(r Record) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(s.tmp(), "record-")
	if err != nil {
		return fmt.Errorf("write record of image %s: %w", r.Name, err)
	}
	defer f.Close()
	_, err = f.Write(append(data, '\n'))
	err = errors.Join(err, f.Sync())
	if err == nil {
		fault.Point("record written")
		err = os.Rename(f.Name(), s.record(r.Name))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write record of image %s: %w", r.Name, err), os.Remove(f.Name()))
	}
	return file.SyncDir(s.records())
}

// Users returns the names of the nodes that use an image by its name, or any of the layers. name is "" if only layers
// matter.
type Users func(name string, layers []string) ([]string, error)

// Remove removes an image and those of its layers that nothing else uses. Errors: refuse.Busy if a node uses the image,
// refuse.NotFound if there is none. A broken record is removed even if nodes name it: no node can start from it.
func (s Store) Remove(ctx context.Context, name string, users Users) error {
	release, err := s.unused(ctx)
	if err != nil {
		return err
	}
	defer release()
	if strings.HasPrefix(name, "file:") {
		return s.removePacked(ctx, name, users)
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	r, err := s.find(name)
	if err != nil {
		return err
	}
	others, _, err := s.referenced(r.Name)
	if err != nil {
		return err
	}
	var own []string
	for _, l := range r.Layers {
		if !others[l] {
			own = append(own, l)
		}
	}
	nodes, err := users(r.Name, own)
	if err != nil {
		return err
	}
	if len(nodes) > 0 && r.Broken == "" {
		return refuse.Busyf("image %s is used by %s", r.Name, strings.Join(nodes, ", "))
	}
	if err := file.Remove(s.record(r.Name)); err != nil {
		return fmt.Errorf("remove image %s: %w", r.Name, err)
	}
	fault.Point("record removed")
	return s.collect(ctx, users)
}

// Collect removes the layers that no image has and no node uses. Importing a name again, a killed Remove and a killed
// import leave such layers. It removes none while a record is broken, because that image's layers are unknown.
func (s Store) Collect(ctx context.Context, users Users) error {
	if _, err := os.Lstat(s.layers()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	release, err := s.unused(ctx)
	if err != nil {
		return err
	}
	defer release()
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return errors.Join(s.collect(ctx, users), s.packed().Sweep(ctx))
}

// Tidy is Collect for a caller that must not wait: it does nothing while another process adds, packs or begins to use an
// image.
func (s Store) Tidy(ctx context.Context, users Users) error {
	if _, err := os.Lstat(s.layers()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, path := range []string{s.useFile(), s.lockFile()} {
		unlock, free, err := tryLock(path)
		if err != nil || !free {
			return err
		}
		defer unlock()
	}
	return errors.Join(s.collect(ctx, users), s.packed().Sweep(ctx))
}

func (s Store) collect(ctx context.Context, users Users) error {
	kept, unsure, err := s.referenced("")
	if err != nil {
		return err
	}
	if unsure {
		return s.sweep(ctx)
	}
	dirs, err := os.ReadDir(s.layers())
	if err != nil {
		return fmt.Errorf("list layers: %w", err)
	}
	for _, d := range dirs {
		digest := "sha256:" + d.Name()
		if kept[digest] {
			continue
		}
		nodes, err := users("", []string{digest})
		if err != nil {
			return err
		}
		if len(nodes) > 0 {
			continue
		}
		// Move it first: a folder in layers is always complete.
		if err := os.Rename(s.layer(d.Name()), filepath.Join(s.tmp(), d.Name())); err != nil {
			return fmt.Errorf("remove layer %s: %w", d.Name(), err)
		}
		fault.Point("layer moved away")
	}
	return s.sweep(ctx)
}
