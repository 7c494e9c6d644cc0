package fault

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/certs"
	"berth/internal/file"
	"berth/internal/site"
	"berth/internal/systemd"
	"berth/test/walk"
)

// TestPowerCutOfFiles: what commands and agents write outside of journals is on the disk when they have written it. Nothing else that
// would be synced follows each of them.
func TestPowerCutOfFiles(t *testing.T) {
	for _, kind := range walk.Some(walk.Of(t), 1, "ext4", "xfs") {
		t.Run(kind, func(t *testing.T) {
			p := newPowered(t, kind)
			out, bundle, ca, own := p.root+"/out", p.root+"/one.tar", p.l.Etc("ca"), p.l.Etc("certs")
			unit := systemd.AtBoot{Dir: p.root + "/units", Name: "berth.service", Args: []string{"berth"}}
			member, owed := site.Member{Host: "one"}, site.Thing{Kind: site.MAC, Value: "02:00:00:00:00:01"}
			var signer *certs.Signer
			for what, act := range map[string]struct {
				before, do func() error
				there      func() error
			}{
				"a file that a user names": {
					func() error { return os.WriteFile(out, []byte("old"), 0o600) },
					func() error {
						return file.Output(out, 0o600, func(f *os.File) error { _, err := f.WriteString("new"); return err })
					},
					func() error { return p.has(out, "new") },
				},
				"a unit that is started at boot": {nil, unit.Write, func() error {
					if !unit.Written() {
						return errors.New("it is not enabled")
					}
					return nil
				}},
				"berth certs init": {nil, func() (err error) { signer, err = certs.Init(ca); return err }, func() error { _, err := certs.OpenSigner(ca); return err }},
				"berth certs issue": {
					func() (err error) { signer, err = certs.Init(ca + "2"); return err },
					func() error {
						b, err := signer.IssueHost(t.Context(), "one", nil)
						if err != nil {
							return err
						}
						return file.Output(bundle, 0o600, func(f *os.File) error { return b.Tar(f) })
					},
					func() error {
						f, err := os.Open(bundle)
						if err != nil {
							return err
						}
						defer f.Close()
						_, err = certs.Unpack(f)
						all, listErr := signer.List()
						if len(all) != 1 {
							listErr = errors.Join(listErr, fmt.Errorf("issued are %v", all))
						}
						return errors.Join(err, listErr)
					},
				},
				"berth certs install": {
					func() (err error) { signer, err = certs.Init(ca + "3"); return err },
					func() error {
						b, err := signer.IssueHost(t.Context(), "one", nil)
						if err != nil {
							return err
						}
						return certs.Install(own, b)
					},
					func() error { _, err := certs.Current(own); return err },
				},
				"a host of a site": {nil, func() error { return site.Join(p.l, member) }, func() error {
					m, err := site.Read(p.l)
					if err == nil && (m == nil || m.Host != member.Host) {
						err = fmt.Errorf("it is %v", m)
					}
					return err
				}},
				"what a site was not told": {nil, func() error { return site.Owe(p.l.SiteOwed(), "n", owed) }, func() error {
					all, err := site.Owed(p.l.SiteOwed())
					if err == nil && len(all) != 1 {
						err = fmt.Errorf("owed are %v", all)
					}
					return err
				}},
			} {
				if act.before != nil {
					p.must(act.before())
				}
				unix.Sync()
				p.must(act.do())
				p.cut()
				if err := act.there(); err != nil {
					t.Errorf("%s: after a power cut: %v", what, err)
				}
			}
		})
	}
}

// has checks the text of a file.
func (p *powered) has(path, text string) error {
	got, err := os.ReadFile(path)
	if err == nil && string(got) != text {
		err = fmt.Errorf("%s has %q, not %q", path, got, text)
	}
	return err
}
