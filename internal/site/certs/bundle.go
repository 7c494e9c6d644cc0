package certs

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth/internal/sys/file"
	"berth/internal/sys/lock"
	"berth/internal/sys/refuse"
)

// File is a file of a folder of certificates.
type File struct {
	Name string
	Data []byte
}

// Bundle has what a host or a person needs: a certificate, its key, the authority's certificate, and its list of revoked
// certificates.
type Bundle struct {
	Cert  *x509.Certificate
	Files []File
}

// mode returns the mode of a file by its name: keys are their owner's alone.
func mode(name string) fs.FileMode {
	if strings.HasSuffix(name, ".key") || name == issuedFile {
		return 0o600
	}
	return 0o644
}

// writeAll writes files in this order, each whole and on the disk. The folder's lock keeps other writers away.
func writeAll(dir string, files []File) error {
	for _, f := range files {
		if err := file.Write(filepath.Join(dir, f.Name), f.Data, mode(f.Name)); err != nil {
			return err
		}
	}
	return nil
}

// lockWait is how long a writer of a folder waits for another one, which needs a few milliseconds.
const lockWait = 30 * time.Second

// hold takes the lock of a folder's writers: an agent, its renewal, and the commands of an admin. Closing the file releases it.
func hold(dir string) (*os.File, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lockWait)
	defer cancel()
	return lock.Open(ctx, filepath.Join(dir, lockFile))
}

// Tar writes the bundle as a tar, for tar -x in the folder, or for Unpack.
func (b Bundle) Tar(to io.Writer) error {
	w := tar.NewWriter(to)
	for _, f := range b.Files {
		h := &tar.Header{Name: f.Name, Mode: int64(mode(f.Name)), Size: int64(len(f.Data)), ModTime: b.Cert.NotBefore.UTC()}
		if err := w.WriteHeader(h); err != nil {
			return fmt.Errorf("write bundle: %w", err)
		}
		if _, err := w.Write(f.Data); err != nil {
			return fmt.Errorf("write bundle: %w", err)
		}
	}
	return w.Close()
}

// longestBundle is the most bytes of a bundle: room for a list of ten thousand revoked certificates.
const longestBundle = 1 << 20

// Unpack reads a bundle and checks that its parts belong together.
func Unpack(from io.Reader) (Bundle, error) {
	bad := func(err error) (Bundle, error) {
		return Bundle{}, refuse.Invalidf("this is not a bundle of berth certs issue: %w", err)
	}
	r := tar.NewReader(io.LimitReader(from, longestBundle))
	text := map[string][]byte{}
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return bad(errors.New("it is no tar"))
		}
		if !slices.Contains([]string{CAFile, RevokedFile, HostCert, HostKey, UserCert, UserKey}, h.Name) || h.Typeflag != tar.TypeReg {
			return bad(fmt.Errorf("it holds %.80q", h.Name))
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return bad(err)
		}
		text[h.Name] = data
	}
	certFile, keyFile := HostCert, HostKey
	if text[UserCert] != nil {
		certFile, keyFile = UserCert, UserKey
	}
	own, err := pair(text[certFile], text[keyFile])
	if err != nil {
		return bad(err)
	}
	ca, err := ParseCertificate(text[CAFile])
	if err != nil {
		return bad(err)
	}
	if err := own.Leaf.CheckSignatureFrom(ca); err != nil {
		return bad(err)
	}
	if _, err := parseList(text[RevokedFile], ca); err != nil {
		return bad(err)
	}
	b := Bundle{Cert: own.Leaf}
	for _, name := range []string{CAFile, RevokedFile, keyFile, certFile} {
		b.Files = append(b.Files, File{name, text[name]})
	}
	return b, nil
}

// Install puts a bundle into a folder, which it makes. A folder of another site is refused. A kill at any moment leaves a pair of
// certificate and key that belong together.
func Install(dir string, b Bundle) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make folder of certificates: %w", err)
	}
	held, err := hold(dir)
	if err != nil {
		return err
	}
	defer held.Close()
	ca, revoked, key, cert := b.Files[0], b.Files[1], b.Files[2], b.Files[3]
	old, err := os.ReadFile(filepath.Join(dir, CAFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("look for certificates: %w", err)
	case !bytes.Equal(old, ca.Data):
		return refuse.Busyf("%s holds certificates of another site: remove them first if this one is meant", dir)
	}
	if err := writeAll(dir, []File{ca}); err != nil {
		return err
	}
	if _, err := update(dir, revoked.Data); err != nil {
		return err
	}
	return exchange(dir, key, cert)
}

// exchange puts a new key and its certificate in the place of old ones. In between the file of keys holds both, the old one first:
// other programs read the first. The caller holds the folder's lock.
func exchange(dir string, key, cert File) error {
	if err := settle(dir, key.Name, cert.Name); err != nil {
		return err
	}
	old, err := os.ReadFile(filepath.Join(dir, key.Name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read key: %w", err)
	}
	if err == nil {
		if err := writeAll(dir, []File{{key.Name, slices.Concat(old, key.Data)}}); err != nil {
			return err
		}
		if err := writeAll(dir, []File{cert}); err != nil {
			return err
		}
	}
	return writeAll(dir, []File{key, cert})
}

// Settle ends a renewal of a host that was killed: afterwards the file of keys holds the certificate's own key alone, as programs
// that read the first key of a file want it. A folder without a key is left as it is.
func Settle(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, HostKey)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	held, err := hold(dir)
	if err != nil {
		return err
	}
	defer held.Close()
	return settle(dir, HostKey, HostCert)
}

// settle is Settle of a pair of files, under the folder's lock.
func settle(dir, keyFile, certFile string) error {
	text, err := os.ReadFile(filepath.Join(dir, keyFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read key: %w", err)
	}
	blocks := decode(keyPEM, text)
	if len(blocks) < 2 {
		return nil
	}
	cert, err := os.ReadFile(filepath.Join(dir, certFile))
	if errors.Is(err, fs.ErrNotExist) { // which of them it needs is not known: the next certificate comes with its own
		return nil
	}
	if err != nil {
		return fmt.Errorf("read certificate: %w", err)
	}
	for _, der := range blocks {
		one := encode(keyPEM, der)
		if _, err := pair(cert, one); err == nil {
			return writeAll(dir, []File{{keyFile, one}})
		}
	}
	return nil // as it was: the next reader of the pair reports the mistake
}

// Own returns a host's certificate with its key, also while a renewal exchanges them.
func Own(dir string) (tls.Certificate, error) {
	cert, err := os.ReadFile(filepath.Join(dir, HostCert))
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("read certificate: %w", err)
	}
	keys, err := os.ReadFile(filepath.Join(dir, HostKey))
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("read key: %w", err)
	}
	return pair(cert, keys)
}

// Update replaces a folder's list of revoked certificates by a newer one. It reports whether it did: an older list, or the same, is
// left out, and one that the site's authority did not sign is refused.
func Update(dir string, revoked []byte) (bool, error) {
	if _, err := os.Stat(filepath.Join(dir, CAFile)); err != nil { // no lock where no certificates are
		return false, fmt.Errorf("read the authority's certificate: %w", err)
	}
	held, err := hold(dir)
	if err != nil {
		return false, err
	}
	defer held.Close()
	return update(dir, revoked)
}

// update is Update under the folder's lock: no other process writes between reading the old list and writing the new one.
func update(dir string, revoked []byte) (bool, error) {
	text, err := os.ReadFile(filepath.Join(dir, CAFile))
	if err != nil {
		return false, fmt.Errorf("read the authority's certificate: %w", err)
	}
	ca, err := ParseCertificate(text)
	if err != nil {
		return false, fmt.Errorf("read the authority's certificate: %w", err)
	}
	next, err := parseList(revoked, ca)
	if err != nil {
		return false, refuse.Invalidf("this is no list of certificates that this site revoked: %w", err)
	}
	path := filepath.Join(dir, RevokedFile)
	if old, err := os.ReadFile(path); err == nil {
		if last, err := parseList(old, ca); err == nil && last.number.Cmp(next.number) >= 0 {
			return false, nil
		}
	}
	return true, writeAll(dir, []File{{RevokedFile, revoked}})
}
