package packed

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/sys/fault"
	"berth/internal/sys/file"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/lock"
	"berth/internal/sys/refuse"
)

// Store is this host's store of packed files.
//
//	lock               held while something below changes, or a loop device is looked for or made
//	records/HEX.json   one file, by its digest
//	files/HEX          the copy of a trusted file: complete and verified, or not there
//	merged/            empty: where a root is merged while it is packed, in a mount namespace of its own
type Store struct{ dir string }

// In returns the store in a folder, which need not be there.
func In(dir string) Store { return Store{dir} }

func (s Store) lockFile() string          { return filepath.Join(s.dir, "lock") }
func (s Store) records() string           { return filepath.Join(s.dir, "records") }
func (s Store) files() string             { return filepath.Join(s.dir, "files") }
func (s Store) merged() string            { return filepath.Join(s.dir, "merged") }
func (s Store) record(hex string) string  { return filepath.Join(s.records(), hex+".json") }
func (s Store) file(digest string) string { return filepath.Join(s.files(), hexOf(digest)) }
func hexOf(digest string) string          { return strings.TrimPrefix(digest, "sha256:") }
func (s Store) isThere() (bool, error) {
	_, err := os.Lstat(s.records())
	return err == nil, notThere(err)
}

func notThere(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Record is the record of one packed file.
type Record struct {
	Version int       `json:"version"` // of this format
	Digest  string    `json:"digest"`  // of the content: "sha256:…"
	Kind    Kind      `json:"kind"`
	Size    int64     `json:"size"`
	Places  []Place   `json:"places"`         // files with this content, as they were when they were packed or trusted
	Copy    bool      `json:"copy,omitempty"` // the store has a copy, which nodes mount in place of the file
	Trailer Trailer   `json:"trailer"`
	Since   time.Time `json:"since"` // when it was packed or trusted first

	Lost Lost `json:"-"` // properties that the file does not keep; only Pack sets it

	Broken string `json:"broken,omitempty"` // why the record cannot be read; then all fields but Digest are empty
}

// Place is a file with the content of a record.
type Place struct {
	Path   string `json:"path"`
	ID     ID     `json:"id"`
	Packed bool   `json:"packed,omitempty"` // berth wrote it
	Begun  bool   `json:"begun,omitempty"`  // berth has not seen to it that the file has its name: a kill may have prevented that
}

func (p Place) isThere() bool {
	_, err := os.Lstat(p.Path)
	return !errors.Is(err, fs.ErrNotExist)
}

const recordVersion = 1

// Name returns the image as a spec names it.
func (r Record) Name() string {
	if len(r.Places) == 0 {
		return "file:" + r.Digest
	}
	return "file:" + r.Places[0].Path
}

// List returns all records in the order of their names. A broken one is listed too.
func (s Store) List() ([]Record, error) {
	entries, err := os.ReadDir(s.records())
	if err != nil {
		return nil, notThere(err)
	}
	var all []Record
	for _, e := range entries {
		hex, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok {
			continue
		}
		data, err := os.ReadFile(s.record(hex))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since ReadDir
		}
		if err != nil {
			return nil, err
		}
		r := Record{}
		err = json.Unmarshal(data, &r)
		switch broken := (Record{Digest: "sha256:" + hex}); {
		case err != nil:
			broken.Broken = jsonfile.Wrong(data, err)
			r = broken
		case r.Version > recordVersion:
			broken.Broken = "a newer berth wrote it"
			r = broken
		case r.Version < 1, r.Digest != broken.Digest:
			broken.Broken = "its file is damaged"
			r = broken
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b Record) int { return cmp.Compare(a.Name(), b.Name()) })
	return all, nil
}

// make makes the store's folders.
func (s Store) make() error {
	for _, d := range []string{s.records(), s.files(), s.merged()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return fmt.Errorf("make the store of packed images: %w", err)
		}
	}
	return nil
}

// add records a place of a file. A record of the same digest gets one more place, or keeps it as it is now.
func (s Store) add(ctx context.Context, r Record, p Place) (Record, error) {
	held, err := lock.Open(ctx, s.lockFile())
	if err != nil {
		return Record{}, err
	}
	defer held.Close()
	return s.addLocked(r, p)
}

func (s Store) addLocked(r Record, p Place) (Record, error) {
	all, err := s.List()
	if err != nil {
		return Record{}, err
	}
	r.Version, r.Since = recordVersion, time.Now().UTC().Truncate(time.Second)
	if i := slices.IndexFunc(all, func(o Record) bool { return o.Digest == r.Digest && o.Broken == "" }); i >= 0 {
		old := all[i]
		r.Since, r.Copy = old.Since, r.Copy || old.Copy
		for _, o := range old.Places {
			if o.Path == p.Path && o.ID == p.ID {
				p.Packed = p.Packed || o.Packed
			} else if o.Path != p.Path || p.Begun { // what has no name yet replaces nothing
				r.Places = append(r.Places, o)
			}
		}
	}
	r.Places = append(r.Places, p)
	// A file that was packed anew is not the old content any more.
	for _, o := range all {
		if rest := o.without(p.Path); !p.Begun && o.Digest != r.Digest && o.Broken == "" && len(rest) < len(o.Places) && len(rest) > 0 {
			o.Places = rest
			if err := file.WriteJSON(s.record(hexOf(o.Digest)), o); err != nil {
				return Record{}, err
			}
		}
	}
	return r, file.WriteJSON(s.record(hexOf(r.Digest)), r)
}

// forget forgets a file that got no name. A file of the same content elsewhere stays recorded.
func (s Store) forget(ctx context.Context, digest string, p Place) error {
	held, err := lock.Open(ctx, s.lockFile())
	if err != nil {
		return err
	}
	defer held.Close()
	all, err := s.List()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(r Record) bool { return r.Digest == digest && r.Broken == "" })
	if i < 0 {
		return nil
	}
	r := all[i]
	r.Places = slices.DeleteFunc(r.Places, func(o Place) bool { return o.Path == p.Path && o.ID == p.ID })
	if len(r.Places) == 0 && !r.Copy {
		return os.Remove(s.record(hexOf(digest)))
	}
	return file.WriteJSON(s.record(hexOf(digest)), r)
}

func (r Record) without(path string) []Place {
	return slices.DeleteFunc(slices.Clone(r.Places), func(p Place) bool { return p.Path == path })
}

// Users returns the names of the nodes that use the file with a digest.
type Users func(digest string) ([]string, error)

// Remove forgets a packed file, named as in a spec or by its digest, and removes the store's copy, unless it has the same content as
// another one that is recorded. The file itself stays where it is. Errors: refuse.Busy if a node uses it, refuse.NotFound if there is none. The caller keeps others from beginning to
// use it meanwhile.
func (s Store) Remove(ctx context.Context, name string, users Users) (Record, error) {
	all, err := s.List()
	if err != nil {
		return Record{}, err
	}
	path := strings.TrimPrefix(name, "file:")
	i := slices.IndexFunc(all, func(r Record) bool {
		return r.Digest == path || slices.ContainsFunc(r.Places, func(p Place) bool { return p.Path == path })
	})
	if i < 0 {
		return Record{}, refuse.NotFoundf("there is no packed image %s; berth image ls lists them", name)
	}
	r := all[i]
	nodes, err := users(r.Digest)
	if err != nil {
		return Record{}, err
	}
	if len(nodes) > 0 {
		return Record{}, refuse.Busyf("image %s is used by %s", name, strings.Join(nodes, ", "))
	}
	if rest := r.without(path); len(rest) > 0 && len(rest) < len(r.Places) { // the other files stay what they are
		r.Places = rest
		err = file.WriteJSON(s.record(hexOf(r.Digest)), r)
	} else {
		err = file.Remove(s.record(hexOf(r.Digest)))
	}
	if err != nil {
		return Record{}, fmt.Errorf("forget image %s: %w", name, err)
	}
	fault.Point("packed record removed")
	return r, s.Sweep(ctx)
}

// Prune forgets the files that are gone from all their places and that no node uses, and returns their names. The caller keeps others
// from beginning to use one meanwhile.
func (s Store) Prune(ctx context.Context, users Users) (forgotten []string, err error) {
	all, err := s.List()
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		if r.Broken != "" || slices.ContainsFunc(r.Places, Place.isThere) {
			continue
		}
		nodes, err := users(r.Digest)
		if err != nil {
			return forgotten, err
		}
		if len(nodes) > 0 {
			continue
		}
		if err := file.Remove(s.record(hexOf(r.Digest))); err != nil {
			return forgotten, fmt.Errorf("forget image %s: %w", r.Name(), err)
		}
		fault.Point("packed record removed")
		for _, place := range r.Places {
			forgotten = append(forgotten, "file:"+place.Path)
		}
	}
	return forgotten, s.Sweep(ctx)
}

// Sweep removes copies without a record, half-written records, and records of files that never got their name: what killed
// commands left. A mounted copy stays with its
// mounts until they end.
func (s Store) Sweep(ctx context.Context) error {
	if there, err := s.isThere(); !there {
		return err
	}
	held, err := lock.Open(ctx, s.lockFile())
	if err != nil {
		return err
	}
	defer held.Close()
	left, err := filepath.Glob(filepath.Join(s.records(), "*"+file.Unwritten))
	if err != nil {
		return err
	}
	all, err := s.List()
	if err != nil {
		return err
	}
	for _, r := range all {
		if r.Broken == "" && !r.Copy && !slices.ContainsFunc(r.Places, func(p Place) bool { return !p.Begun || p.isThere() }) {
			left = append(left, s.record(hexOf(r.Digest)))
		}
	}
	copies, err := os.ReadDir(s.files())
	if err := notThere(err); err != nil { // a power cut can leave the store without this folder
		return fmt.Errorf("list the copies of packed images: %w", err)
	}
	for _, c := range copies {
		if _, err := os.Lstat(s.record(c.Name())); errors.Is(err, fs.ErrNotExist) {
			left = append(left, filepath.Join(s.files(), c.Name()))
		}
	}
	for _, path := range left {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove what is left of a packed image: %w", err)
		}
		fault.Point("packed copy removed")
	}
	return nil
}

// isLocal reports whether a file system is one whose files only this host changes.
func isLocal(f *os.File) bool {
	var st unix.Statfs_t
	if unix.Fstatfs(int(f.Fd()), &st) != nil {
		return false
	}
	switch uint32(st.Type) {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC, zfsMagic:
		return true
	}
	return false
}

const zfsMagic = 0x2fc12fc1
