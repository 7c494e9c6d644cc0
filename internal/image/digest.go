package image

import (
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"
	"strings"

	"berth/internal/sys/refuse"
)

// digestReader hashes the bytes that are read through it.
type digestReader struct {
	r io.Reader
	h hash.Hash
}

func newDigestReader(r io.Reader) *digestReader { return &digestReader{r, sha256.New()} }

func (d *digestReader) Read(p []byte) (int, error) {
	n, err := d.r.Read(p)
	d.h.Write(p[:n])
	return n, err
}

// check reads the rest of the stream and returns its digest. It refuses a digest other than want, unless want is "".
func (d *digestReader) check(what, want string) (string, error) {
	if _, err := io.Copy(io.Discard, d); err != nil {
		return "", archiveErr(what, err)
	}
	got := "sha256:" + hex.EncodeToString(d.h.Sum(nil))
	if want != "" && got != want {
		return "", refuse.Invalidf("%s is damaged: its digest is %s, it should be %s", what, got, want)
	}
	return got, nil
}

// blobPath returns the path of a blob in an OCI image layout.
func blobPath(digest string) (string, error) {
	hex, err := parseDigest(digest)
	return strings.Join([]string{"blobs", "sha256", hex}, "/"), err
}

// isDigest reports whether a name begins with a digest, like the files that docker save writes.
func isDigest(name string) bool {
	if len(name) < 64 {
		return false
	}
	_, err := parseDigest("sha256:" + name[:64])
	return err == nil
}
