package image

import (
	"archive/tar"
	"context"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/image/inflate"
	"berth/internal/sys/fault"
	"berth/internal/sys/refuse"
	"berth/internal/sys/space"
)

// A plain root is a tar of a whole system, as mmdebstrap, docker export and tar -C root -c . write it. It becomes one layer
// without a command. It differs from an image's layer in one way: names that mean white-outs in a layer are refused, because they
// were not meant as white-outs.

// maxLooked is the most bytes of a compressed archive, uncompressed, that are read to see whether it is a root: 4 GiB, a second or two for zeros.
const maxLooked = 4 << 30

// isRoot reports whether an archive is a plain root: whether one of rootFolders comes before a name that only images
// have. It reads only as far as needed. It returns false for a file that is no tar; openSource refuses that.
func isRoot(ctx context.Context, archive string) (bool, error) {
	f, err := os.OpenFile(archive, os.O_RDONLY|unix.O_NONBLOCK, 0) // opening a FIFO must not block
	if err != nil {
		return false, nil
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return false, nil
	}
	magic := make([]byte, inflate.MagicSize)
	n, _ := f.ReadAt(magic, 0)
	var in io.Reader = f // archive/tar seeks over the data
	if inflate.Compression(magic[:n]) != "" {
		r, err := inflate.Reader(inflate.Until(ctx, f))
		if err != nil {
			return false, ctx.Err()
		}
		defer r.Close()
		in = io.LimitReader(r, maxLooked)
	}
	t := tar.NewReader(in)
	for range maxOuter {
		h, err := t.Next()
		if err != nil {
			return false, ctx.Err()
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		top, _, _ := strings.Cut(name, "/")
		switch {
		case slices.Contains(rootFolders(), top):
			return true, nil
		case top == "blobs", name == "oci-layout", name == "index.json", name == "manifest.json", isDigest(name):
			return false, nil
		}
	}
	return false, nil
}

// addRoot imports a plain root.
func (s Store) addRoot(ctx context.Context, archive string, as As, progress func(done, total int64)) (Record, error) {
	switch {
	case as.Pick != "":
		return Record{}, refuse.Invalidf("the archive is a plain root, without images to pick from (%s)", as.Pick)
	case as.Name == "":
		return Record{}, refuse.Invalidf("a plain root has no name: give one")
	}
	f, err := os.Open(archive)
	if err != nil {
		return Record{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Record{}, err
	}
	if err := space.Need(s.tmp(), inflate.PlainSize(f, info.Size())); err != nil {
		return Record{}, err
	}
	tmp, err := s.scratch()
	if err != nil {
		return Record{}, err
	}
	fault.Point("layer begun")
	left, u := s.Limits, &unpacker{plain: true}
	m := &meter{report: progress, total: info.Size()}
	digest, err := u.layer(ctx, tmp, io.TeeReader(f, m), layerFile{}, &left)
	if err != nil {
		return Record{}, err
	}
	fault.Point("layers unpacked")
	r := Record{
		Version: recordVersion, Name: as.Name, From: as.From, Manifest: digest, Layers: []string{digest}, Skipped: u.out, NoACLs: u.unlisted, Config: Config{Cmd: as.Command},
		Created: info.ModTime().UTC().Truncate(time.Second), Imported: time.Now().UTC().Truncate(time.Second),
	}
	return s.keep(ctx, map[string]string{digest: tmp}, r)
}
