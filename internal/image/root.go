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

	"berth/internal/refuse"
	"berth/internal/step"
)

// A plain root is a tar of a whole system, as mmdebstrap, docker export and tar -C root -c . write it. It becomes one
// layer without a command. It differs from an image's layer in two ways: leading slashes are ignored, as tar does, and
// names that mean white-outs in a layer are refused, because nobody meant them so.

// rootFolders returns the top-level names that mark a tar as a plain root.
func rootFolders() []string { return []string{"bin", "sbin", "usr", "etc", "lib"} }

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
	r, err := decompress(ctxReader{ctx, f})
	if err != nil {
		return false, ctx.Err()
	}
	defer r.Close()
	t := tar.NewReader(r)
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

// isDigest reports whether a name begins with a digest, like the files that docker save writes.
func isDigest(name string) bool {
	if len(name) < 64 {
		return false
	}
	_, err := parseDigest("sha256:" + name[:64])
	return err == nil
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
	if err := needSpace(s.tmp(), plainSize(f, info.Size())); err != nil {
		return Record{}, err
	}
	tmp, err := s.scratch()
	if err != nil {
		return Record{}, err
	}
	step.Fault("layer begun")
	left, u := s.Limits, &unpacker{plain: true}
	m := &meter{report: progress, total: info.Size()}
	digest, err := u.layer(ctx, tmp, io.TeeReader(f, m), layerFile{}, &left)
	if err != nil {
		return Record{}, err
	}
	step.Fault("layers unpacked")
	if s.has(digest) {
		err = removeTree(ctx, tmp)
	} else {
		err = s.place(map[string]string{digest: tmp})
	}
	if err != nil {
		return Record{}, err
	}
	r := Record{
		Version: recordVersion, Name: as.Name, Manifest: digest, Layers: []string{digest}, Skipped: u.out,
		Created: info.ModTime().UTC().Truncate(time.Second), Imported: time.Now().UTC().Truncate(time.Second),
	}
	if r.Size, err = s.layerSize(digest); err != nil {
		return Record{}, err
	}
	return r, s.write(r)
}

// plainEntry applies the two differences between a plain root and a layer to an entry.
func plainEntry(h *tar.Header) error {
	h.Name = relative(h.Name)
	if h.Typeflag == tar.TypeLink {
		h.Linkname = relative(h.Linkname)
	}
	if strings.HasPrefix(path.Base(h.Name), whiteoutPrefix) || strings.Contains("/"+h.Name, "/"+whiteoutMeta) {
		return refuse.Invalidf("a name that begins with %s removes files in an image's layer, and a plain root has no layers: rename it", whiteoutPrefix)
	}
	return nil
}

// relative removes leading slashes from a name, as tar does when it unpacks.
func relative(name string) string {
	if rest := strings.TrimLeft(name, "/"); rest != name {
		return "./" + rest
	}
	return name
}

// isStandard reports whether an entry is one of standardDevices, at its usual place and with its number.
func isStandard(name string, h *tar.Header) bool {
	number, ok := standardDevices()[name]
	return ok && h.Typeflag == tar.TypeChar && number == [2]int64{h.Devmajor, h.Devminor}
}

// standardDevices returns the device nodes that every node has (console only with a terminal), with their numbers.
func standardDevices() map[string][2]int64 {
	return map[string][2]int64{
		"dev/null": {1, 3}, "dev/zero": {1, 5}, "dev/full": {1, 7}, "dev/random": {1, 8}, "dev/urandom": {1, 9},
		"dev/tty": {5, 0}, "dev/console": {5, 1}, "dev/ptmx": {5, 2},
	}
}
