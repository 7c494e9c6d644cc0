package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"berth/internal/refuse"
	"berth/internal/step"
)

// sizeAttr is the attribute of a layer's folder that holds the bytes of its files. It appears together with the layer
// and is invisible inside a node (trusted attributes need privilege over the host).
const sizeAttr = "trusted.berth.size"

// As says which image of an archive to import, and under which name.
type As struct {
	Name string // name in the store; "": the name that the archive gives
	Pick string // which of several images (see findImage); "": the one called Name, or the only one
}

// Import reads an image into the store from archive: a docker archive as docker save writes it, a tar of an OCI image
// layout, a tar of a plain root (root.go), each plain, gzip or zstd; or a folder in OCI image layout. Of a
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
		if err := checkName(as.Name); err != nil {
			return Record{}, err
		}
		if strings.ContainsFunc(as.Name, unicode.IsSpace) { // a spec could not name it: oci:NAME takes no spaces
			return Record{}, refuse.Invalidf("%q is not an image name: no spaces", as.Name)
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
		err = fullErr(s.dir, err)
		// Not with ctx: an interrupted import must clean up too.
		return Record{}, errors.Join(fmt.Errorf("import %s: %w", archive, err), s.sweep(context.WithoutCancel(ctx)))
	}
	return r, nil
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
	img, err := findImage(src, as.Pick, as.Name)
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
	return s.addImage(ctx, src, img, name, progress)
}

// addImage unpacks an image's layers and writes its record.
func (s Store) addImage(ctx context.Context, src source, img found, name string, progress func(done, total int64)) (Record, error) {
	r := Record{
		Version: recordVersion, Name: name, Manifest: img.digest, Config: img.runConfig(),
		Created: img.config.Created, Imported: time.Now().UTC().Truncate(time.Second),
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
		f, size, err := src.open(l.path)
		if errors.Is(err, fs.ErrNotExist) {
			return Record{}, refuse.Invalidf("the image lacks its layer %s", l.path)
		}
		if err != nil {
			return Record{}, readErr("layer "+l.path, err)
		}
		if !s.has(l.diffID) {
			need[l.diffID] = plainSize(f, size)
		}
		f.Close()
		m.total += size
	}
	sum := int64(0)
	for _, n := range need {
		sum += n
	}
	if err := needSpace(s.tmp(), sum); err != nil {
		return Record{}, err
	}
	left := s.Limits
	made := map[string]string{} // temporary folder of each new layer, by digest
	for _, l := range img.layers {
		out, err := s.addLayer(ctx, src, l, made, &left, &m)
		if err != nil {
			return Record{}, fmt.Errorf("layer %s: %w", l.path, err)
		}
		r.Skipped = append(r.Skipped, out...)
	}
	step.Fault("layers unpacked")
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

// addLayer unpacks one layer into tmp, unless the store has it already, and returns the names of the device nodes it
// left out.
func (s Store) addLayer(ctx context.Context, src source, l layerFile, made map[string]string, left *Limits, m *meter) ([]string, error) {
	f, size, err := src.open(l.path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, twice := made[l.diffID]; twice || s.has(l.diffID) {
		m.add(size)
		return nil, nil
	}
	tmp, err := s.scratch()
	if err != nil {
		return nil, err
	}
	made[l.diffID] = tmp
	step.Fault("layer begun")
	u := &unpacker{}
	_, err = u.layer(ctx, tmp, io.TeeReader(f, m), l, left)
	return u.out, err
}

// place moves new layers into the store, after it synced them to disk: a power cut must not keep the rename and lose
// the files.
func (s Store) place(made map[string]string) error {
	if len(made) == 0 {
		return nil
	}
	d, err := os.Open(s.layers())
	if err != nil {
		return err
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return fmt.Errorf("write layers to disk: %w", err)
	}
	for digest, tmp := range made {
		hex, err := parseDigest(digest)
		if err != nil {
			return err
		}
		if err := os.Rename(tmp, s.layer(hex)); err != nil {
			return fmt.Errorf("put layer %s in place: %w", hex, err)
		}
		step.Fault("layer placed")
	}
	return d.Sync()
}

// layer unpacks the layer read from r into dir and verifies the digests that l gives. It returns the digest of the
// uncompressed stream.
func (u *unpacker) layer(ctx context.Context, dir string, r io.Reader, l layerFile, left *Limits) (string, error) {
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	packed := newDigestReader(ctxReader{ctx, r})
	stream, err := decompress(packed)
	if err != nil {
		return "", archiveErr("its compression", err)
	}
	defer stream.Close()
	plain := newDigestReader(&limitReader{stream, left.Bytes + 512*int64(left.Entries)})
	if err := u.unpack(ctx, root, plain, left); err != nil {
		return "", err
	}
	digest, err := plain.check("its content", l.diffID)
	if err == nil && l.digest != "" {
		_, err = packed.check("its file", l.digest)
	}
	if err != nil {
		return "", err
	}
	d, err := root.Open(".")
	if err != nil {
		return "", err
	}
	defer d.Close()
	return digest, setAttr(int(d.Fd()), sizeAttr, strconv.FormatInt(u.size, 10))
}

// layerSize returns the bytes of a layer's files.
func (s Store) layerSize(digest string) (int64, error) {
	hex, err := parseDigest(digest)
	if err != nil {
		return 0, err
	}
	buf := make([]byte, 32)
	n, err := unix.Lgetxattr(s.layer(hex), sizeAttr, buf)
	if err != nil {
		return 0, &fs.PathError{Op: "read size of", Path: filepath.Join("layer", hex), Err: err}
	}
	return strconv.ParseInt(string(buf[:n]), 10, 64)
}

// limitReader refuses a stream that is longer than an image may be. A stream can be endless without unpacking to any
// file.
type limitReader struct {
	r    io.Reader
	left int64
}

func (l *limitReader) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return 0, refuse.Invalidf("the image unpacks to more bytes than the limit allows")
	}
	return n, err
}

// meter counts the bytes read of an image's layers.
type meter struct {
	done, total int64
	report      func(done, total int64)
}

func (m *meter) Write(p []byte) (int, error) {
	m.add(int64(len(p)))
	return len(p), nil
}

func (m *meter) add(n int64) {
	m.done += n
	if m.report != nil {
		m.report(m.done, m.total)
	}
}
