package certs

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"berth/internal/sys/refuse"
)

// folder is the certificates of a host or a person. It looks at its files before each use, and reads them again when one changed.
type folder struct {
	dir       string
	cert, key string // names of its own two files

	mu     sync.Mutex
	stamps [4]stamp
	last   *state
}

// stamp tells one content of a file from the next: files are replaced whole.
type stamp struct {
	inode uint64
	size  int64
	nanos int64
}

// state is the content of a folder.
type state struct {
	ca      *x509.Certificate
	pool    *x509.CertPool
	own     tls.Certificate
	revoked *list
}

// open returns the folder of a host, or of a person if it has a person's files.
func open(dir string) *folder {
	f := &folder{dir: dir, cert: HostCert, key: HostKey}
	if _, err := os.Stat(filepath.Join(dir, UserCert)); err == nil {
		f.cert, f.key = UserCert, UserKey
	}
	return f
}

// load returns the present content of the folder. A folder that cannot be read whole is an error: without the list of revoked
// certificates every connection is refused.
func (f *folder) load() (*state, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var stamps [4]stamp
	for i, name := range []string{CAFile, f.cert, f.key, RevokedFile} {
		info, err := os.Stat(filepath.Join(f.dir, name))
		if err != nil {
			return nil, f.missing(name, err)
		}
		stamps[i] = stampOf(info)
	}
	if f.last != nil && stamps == f.stamps {
		return f.last, nil
	}
	s, err := f.read()
	if err != nil {
		return nil, err
	}
	f.last, f.stamps = s, stamps
	return s, nil
}

func stampOf(info fs.FileInfo) stamp {
	s := stamp{size: info.Size(), nanos: info.ModTime().UnixNano()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		s.inode = st.Ino
	}
	return s
}

func (f *folder) missing(name string, err error) error {
	remedy := "on the host with the site's key: berth certs issue HOST, or berth certs issue --role ROLE NAME"
	return &refuse.Error{Kind: refuse.Cannot, What: fmt.Sprintf("there is no certificate of this site to use: %s", err), Remedy: remedy, Err: fmt.Errorf("%s: %w", name, err)}
}

func (f *folder) read() (*state, error) {
	text := map[string][]byte{}
	for _, name := range []string{CAFile, f.cert, f.key, RevokedFile} {
		data, err := os.ReadFile(filepath.Join(f.dir, name))
		if err != nil {
			return nil, f.missing(name, err)
		}
		text[name] = data
	}
	if err := alone(filepath.Join(f.dir, f.key)); err != nil {
		return nil, err
	}
	wrong := func(name string, err error) error {
		return refuse.Cannotf("take the files from the host with the site's key again: berth certs issue", "%s is damaged: %w", filepath.Join(f.dir, name), err)
	}
	s := &state{pool: x509.NewCertPool()}
	var err error
	if s.ca, err = ParseCertificate(text[CAFile]); err != nil {
		return nil, wrong(CAFile, err)
	}
	s.pool.AddCert(s.ca)
	if s.revoked, err = parseList(text[RevokedFile], s.ca); err != nil {
		return nil, wrong(RevokedFile, err)
	}
	if s.own, err = pair(text[f.cert], text[f.key]); err != nil {
		return nil, wrong(f.cert, err)
	}
	return s, nil
}

// pair joins a certificate and its key, which is one of those in the text.
func pair(cert, keys []byte) (tls.Certificate, error) {
	leaf, err := ParseCertificate(cert)
	if err != nil {
		return tls.Certificate{}, err
	}
	all, err := parseKeys(keys)
	if err != nil {
		return tls.Certificate{}, err
	}
	for _, key := range all {
		if key.PublicKey.Equal(leaf.PublicKey) {
			return tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}, nil
		}
	}
	return tls.Certificate{}, fmt.Errorf("none of %d keys is its own", len(all))
}

// alone refuses a key that others can read.
func alone(path string) error {
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	if st.Mode&0o077 != 0 || st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return refuse.Cannotf("chmod 600 "+path+", and have a new one issued if somebody may have read it",
			"the key %s is not its owner's alone: owner %d, mode %04o", path, st.Uid, st.Mode&0o7777)
	}
	return nil
}

// list is a list of revoked certificates that the authority signed.
type list struct {
	number  *big.Int // grows with each list
	serials map[string]bool
}

func parseList(text []byte, ca *x509.Certificate) (*list, error) {
	blocks := decode(listPEM, text)
	if len(blocks) != 1 {
		return nil, fmt.Errorf("%d lists, not one", len(blocks))
	}
	crl, err := x509.ParseRevocationList(blocks[0])
	if err != nil {
		return nil, err
	}
	if err := crl.CheckSignatureFrom(ca); err != nil {
		return nil, fmt.Errorf("the site's authority did not sign it: %w", err)
	}
	if crl.Number == nil {
		return nil, fmt.Errorf("the list has no number")
	}
	l := &list{number: crl.Number, serials: map[string]bool{}}
	for _, e := range crl.RevokedCertificateEntries {
		l.serials[e.SerialNumber.String()] = true
	}
	return l, nil
}

// check refuses a revoked certificate.
func (l *list) check(cert *x509.Certificate) error {
	if l.serials[cert.SerialNumber.String()] {
		return refuse.Cannotf("an admin issues a new one: berth certs issue", "the certificate of %.80q (%s) is revoked", cert.Subject.CommonName, Serial(cert))
	}
	return nil
}

// Serial returns a certificate's number as berth certs ls prints it.
func Serial(cert *x509.Certificate) string { return cert.SerialNumber.Text(16) }
