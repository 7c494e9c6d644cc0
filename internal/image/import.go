package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"
	"unicode"

	"berth/internal/image/inflate"
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
	r, err := s.read(ctx, archive, as, progress)
	if err != nil {
		return Record{}, fmt.Errorf("import %s: %w", cmp.Or(pulled(as), archive), space.Full(s.dir, err))
	}
	return r, nil
}

// read looks at an archive, and unpacks it if it is compressed as a whole, before it takes the lock of unpacking: what it finds may take
// long, and be no image.
func (s Store) read(ctx context.Context, archive string, as As, progress func(done, total int64)) (r Record, err error) {
	if err := s.Make(); err != nil {
		return Record{}, err
	}
	if err := s.Sweep(ctx); err != nil {
		return Record{}, err
	}
	is, err := isRoot(ctx, archive)
	if err != nil {
		return Record{}, err
	}
	var src source
	if !is {
		if src, err = openSource(ctx, archive, s.tmp(), s.Limits.Bytes); err != nil {
			return Record{}, err
		}
		defer src.close()
	}
	unlock, err := s.lockUnpack(ctx)
	if err != nil {
		return Record{}, err
	}
	defer unlock()
	defer func() { // of what was placed nothing is left; an interrupted import must clean up too, so not with ctx
		err = errors.Join(err, s.sweepTmp(context.WithoutCancel(ctx), true))
	}()
	if is {
		return s.addRoot(ctx, archive, as, progress)
	}
	return s.add(ctx, src, as, progress)
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

// add adds the image of a source. The caller holds the lock of unpacking.
func (s Store) add(ctx context.Context, src source, as As, progress func(done, total int64)) (Record, error) {
	var err error
	var img found
	if as.Manifest != "" {
		img, err = pulledImage(src, as.Manifest, as.Foreign)
	} else {
		img, err = findImage(src, as.Pick, as.Name)
	}
	if err != nil {
		return Record{}, err
	}
	name := cmp.Or(as.Name, img.tag)
	if name == "" {
		return Record{}, refuse.Invalidf("the archive gives its image no name: give one")
	}
	if err := checkName(name); err != nil {
		return Record{}, err
	}
	img.from = as.From
	return s.addImage(ctx, src, img, name, progress)
}

// addImage unpacks an image's layers and writes its record. The caller holds the lock of unpacking.
func (s Store) addImage(ctx context.Context, src source, img found, name string, progress func(done, total int64)) (Record, error) {
	config, err := img.runConfig()
	if err != nil {
		return Record{}, err
	}
	r := Record{
		Version: recordVersion, Name: name, Manifest: img.digest, From: img.from, Config: config,
		Created: img.config.Created.Time, Imported: time.Now().UTC().Truncate(time.Second), Platform: img.platform(), Beside: img.beside,
	}
	var ids []string
	for _, l := range img.layers {
		ids = append(ids, l.diffID)
	}
	if r.Layers, err = once(ids); err != nil {
		return Record{}, err
	}
	left := s.Limits
	made := map[string]string{} // temporary folder of each new layer, by digest
	for {
		if err := s.unpackMissing(ctx, src, img, made, &left, &r, progress); err != nil {
			return Record{}, err
		}
		fault.Point("layers unpacked")
		kept, err := s.keep(ctx, made, r)
		if !errors.Is(err, errGone) {
			return kept, err
		}
	}
}

// unpackMissing unpacks those of an image's layers that neither the store nor made has.
func (s Store) unpackMissing(ctx context.Context, src source, img found, made map[string]string, left *Limits, r *Record, progress func(done, total int64)) error {
	m := meter{report: progress}
	var missing []layerFile
	need := map[string]int64{} // bytes by digest: a layer that occurs twice is unpacked once
	for _, l := range img.layers {
		if made[l.diffID] != "" || s.has(l.diffID) {
			continue
		}
		f, size, err := src.open(l.path)
		if errors.Is(err, fs.ErrNotExist) && img.pulled {
			return refuse.Busyf("the layer %s was in the store, and another command removed it meanwhile: pull the image again", l.diffID)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return refuse.Invalidf("the image lacks its layer %s", shown(l.path))
		}
		if err != nil {
			return readErr("layer "+shown(l.path), err)
		}
		missing, need[l.diffID] = append(missing, l), inflate.PlainSize(f, size)
		f.Close()
		m.total += size
	}
	sum := int64(0)
	for _, n := range need {
		sum += n
	}
	if err := space.Need(s.tmp(), sum); err != nil {
		return err
	}
	for _, l := range missing {
		u, err := s.addLayer(ctx, src, l, made, left, &m)
		if err != nil {
			return fmt.Errorf("layer %s: %w", shown(l.path), err)
		}
		r.NoACLs += u.unlisted
		for _, name := range u.out {
			if !slices.Contains(r.Skipped, name) {
				r.Skipped = append(r.Skipped, name)
			}
		}
	}
	return nil
}

// addLayer unpacks one layer into tmp, unless made has it, and returns the unpacker, which counts what it left out.
func (s Store) addLayer(ctx context.Context, src source, l layerFile, made map[string]string, left *Limits, m *meter) (*unpacker, error) {
	u := &unpacker{}
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
