package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/image"
	"berth/internal/image/pull"
	"berth/internal/sys/refuse"
)

// tarPrefix begins the image of an archive.
const tarPrefix = "tar:"

// named returns the image that berth run means by tar:FILE or docker://REF, as oci:NAME. An image that the store lacks is
// imported or pulled first. Any other text is returned as it is.
func (a *app) named(ctx context.Context, text string) (string, error) {
	var name string
	var err error
	if file, ok := strings.CutPrefix(text, tarPrefix); ok {
		name, err = a.imported(ctx, file)
	} else if strings.HasPrefix(text, pull.Transport) {
		name, err = a.pulled(ctx, text)
	} else {
		return text, nil
	}
	if err != nil {
		return "", err
	}
	return "oci:" + name, nil
}

// imported returns the name of the stored image of an archive. An archive with the same content is imported once.
func (a *app) imported(ctx context.Context, file string) (string, error) {
	path, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	digest, err := fileDigest(path)
	if err != nil {
		return "", err
	}
	name := "tar-" + digest[:12]
	store := image.Open(a.layout())
	if r, err := store.Get(name); err == nil && strings.HasSuffix(r.From, "@sha256:"+digest) {
		return name, nil
	}
	progress, done := a.byteProgress("import")
	_, err = store.Import(ctx, path, image.As{Name: name, From: path + "@sha256:" + digest}, progress)
	done()
	return name, err
}

// fileDigest returns the digest of a file's content.
func fileDigest(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // opening a FIFO must not block
	if errors.Is(err, fs.ErrNotExist) {
		return "", refuse.NotFoundf("there is no archive %s", path)
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", errors.Join(refuse.Invalidf("%s is no file", path), err)
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// pulled returns the name of a stored image of a registry. One that is there is not looked for again, as with Podman.
func (a *app) pulled(ctx context.Context, ref string) (string, error) {
	name, err := pull.Name(ref)
	if err != nil {
		return "", err
	}
	if _, err := image.Open(a.layout()).Get(name); err == nil {
		return name, nil
	}
	_, err = a.pull(ctx, pullFlags{ref: ref, verify: true})
	return name, err
}
