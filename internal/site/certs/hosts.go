package certs

import (
	"crypto/x509"
	"time"

	"berth/internal/spec/roles"
	"berth/internal/sys/refuse"
)

// Hosts returns a function that refuses all certificates except those of hosts that have neither expired nor been revoked. It
// reads the folder of this host at each call. Without a list of revoked certificates it refuses all. The signature must have been
// checked.
func Hosts(dir string) func(*x509.Certificate) error {
	f := open(dir)
	return func(shown *x509.Certificate) error {
		who, err := Identity(shown)
		if err != nil {
			return err
		}
		if who.Role != roles.Host {
			return refuse.Cannotf("use a host's certificate", "%s is no host", who)
		}
		if !time.Now().Before(shown.NotAfter) {
			return refuse.Cannotf("an admin issues a new one: berth certs issue", "the certificate of %.80q ended at %s",
				shown.Subject.CommonName, shown.NotAfter.Local().Format(time.DateTime))
		}
		s, err := f.load()
		if err != nil {
			return err
		}
		return s.revoked.check(shown)
	}
}
