package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"
	"unicode"

	"berth/internal/sys/fault"
	"berth/internal/sys/refuse"
	"berth/internal/sys/space"
)

// Import reads an image into the store from archive: a docker archive as docker save writes it, a tar of an OCI image
// layout, a tar of a plain root (import_root.go), each plain, gzip or zstd; or a folder in OCI image layout. Of a
// multi-platform image it takes this machine's. It replaces an image of the same name; running nodes keep the layers
// they have.
//
// progress, if not nil, is called with the bytes of layers read so far and in total.
//
// Errors: refuse.NotFound if there is no archive; refuse.Invalid if the archive is damaged, holds entries that are
// refused (device nodes, names that lead out, owners beyond 65535) or exceeds the store's limits; refuse.Cannot for an
// image of another platform, or if the file system has too little space.
func (s Store) Import(ctx context.Context, archive string, as As, progress func(done, total int64)) (Record, error) {
	if as.Name != "" {
		if err := CheckNew(as.Name); err != nil {
			return Record{}, err
		}
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return Record{}, err
	}
	defer unlock()
	if err := s.sweep(ctx); err != nil {
		return Record{}, err
	}
	r, err := s.add(ctx, archive, as, progress)
	if err != nil {
		err = space.Full(s.dir, err)
		// Not with ctx: an interrupted import must clean up too.
		return Record{}, errors.Join(fmt.Errorf("import %s: %w", cmp.Or(pulled(as), archive), err), s.sweep(context.WithoutCancel(ctx)))
	}
	return r, nil
}

// CheckNew refuses a name that no new image can have.
func CheckNew(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	if strings.ContainsFunc(name, unicode.IsSpace) { // a spec could not name it: oci:NAME takes no spaces
		return refuse.Invalidf("%q is not an image name: no spaces", name)
	}
	return nil
}

// pulled returns where an image was pulled from, "" for one of an archive.
func pulled(as As) string {
	if as.Manifest == "" {
		return ""
	}
	return as.From
}

// add is Import without taking the lock.
func (s Store) add(ctx context.Context, archive string, as As, progress func(done, total int64)) (Record, error) {
	if is, err := isRoot(ctx, archive); err != nil {
		return Record{}, err
	} else if is {
		return s.addRoot(ctx, archive, as, progress)
	}
	src, err := openSource(ctx, archive, s.tmp(), s.Limits.Bytes)
	if err != nil {
		return Record{}, err
	}
	defer src.close()
	var img found
	if as.Manifest != "" {
		img, err = pulledImage(src, as.Manifest, as.Foreign)
	} else {
		img, err = findImage(src, as.Pick, as.Name)
	}
	if err != nil {
		return Record{}, err
	}
	name := as.Name
	if name == "" {
		name = img.tag
	}
	if name == "" {
		return Record{}, refuse.Invalidf("the archive gives its image no name: give one")
	}
	if err := checkName(name); err != nil {
		return Record{}, err
	}
	img.from = as.From
	return s.addImage(ctx, src, img, name, progress)
}

// addImage unpacks an image's layers and writes its record.
func (s Store) addImage(ctx context.Context, src source, img found, name string, progress func(done, total int64)) (Record, error) {
	r := Record{
		Version: recordVersion, Name: name, Manifest: img.digest, From: img.from, Config: img.runConfig(),
		Created: img.config.Created.Time, Imported: time.Now().UTC().Truncate(time.Second), Platform: img.platform(),
	}
	var ids []string
	for _, l := range img.layers {
		ids = append(ids, l.diffID)
	}
	var err error
	if r.Layers, err = once(ids); err != nil {
		return Record{}, err
	}
	m := meter{report: progress}
	need := map[string]int64{} // bytes by digest: a layer that occurs twice is unpacked once
	for _, l := range img.layers {
		if s.has(l.diffID) {
			continue
		}
		f, size, err := src.open(l.path)
		if errors.Is(err, fs.ErrNotExist) {
			return Record{}, refuse.Invalidf("the image lacks its layer %s", l.path)
		}
		if err != nil {
			return Record{}, readErr("layer "+l.path, err)
		}
		need[l.diffID] = plainSize(f, size)
		f.Close()
		m.total += size
	}
	sum := int64(0)
	for _, n := range need {
		sum += n
	}
	if err := space.Need(s.tmp(), sum); err != nil {
		return Record{}, err
	}
	left := s.Limits
	made := map[string]string{} // temporary folder of each new layer, by digest
	for _, l := range img.layers {
		u, err := s.addLayer(ctx, src, l, made, &left, &m)
		if err != nil {
			return Record{}, fmt.Errorf("layer %s: %w", l.path, err)
		}
		r.Skipped = append(r.Skipped, u.out...)
		r.NoACLs += u.unlisted
	}
	fault.Point("layers unpacked")
	if err := s.place(made); err != nil {
		return Record{}, err
	}
	for _, d := range r.Layers {
		size, err := s.layerSize(d)
		if err != nil {
			return Record{}, err
		}
		r.Size += size
	}
	return r, s.write(r)
}

// addLayer unpacks one layer into tmp, unless the store has it already, and returns the unpacker, which counts what it left
// out.
func (s Store) addLayer(ctx context.Context, src source, l layerFile, made map[string]string, left *Limits, m *meter) (*unpacker, error) {
	u := &unpacker{}
	if s.has(l.diffID) {
		return u, nil
	}
	f, size, err := src.open(l.path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, twice := made[l.diffID]; twice {
		m.add(size)
		return u, nil
	}
	tmp, err := s.scratch()
	if err != nil {
		return nil, err
	}
	made[l.diffID] = tmp
	fault.Point("layer begun")
	_, err = u.layer(ctx, tmp, io.TeeReader(f, m), l, left)
	return u, err
}
