package fault

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/host/membership"
	"berth/internal/host/systemd"
	"berth/internal/image/imagetest"
	"berth/internal/network/sriov"
	"berth/internal/site/certs"
	"berth/internal/sys/file"
	"berth/internal/sys/layout"
	"berth/test/sample"
	"berth/test/testkit"
)

// TestPowerCutOfFiles: what commands and agents write and remove outside of journals is on the disk when they have done so. Nothing else that
// would be synced follows each of them.
func TestPowerCutOfFiles(t *testing.T) {
	for _, kind := range sample.Some(sample.Of(t), 1, "ext4", "xfs", "btrfs") {
		t.Run(kind, func(t *testing.T) {
			p := newPowered(t, kind)
			out, bundle, ca, own := p.root+"/out", p.root+"/one.tar", p.l.Etc("ca"), p.l.Etc("certs")
			unit := systemd.AtBoot{Dir: p.root + "/units", Name: "berth.service", Args: []string{"berth"}}
			member, owed := membership.Member{Host: "one"}, membership.Thing{Kind: membership.MAC, Value: "02:00:00:00:00:01"}
			away, wishes, owing := layout.New(p.root+"/away"), sriov.Wishes(p.root+"/vfs"), p.root+"/owing"
			testkit.Must(p, os.MkdirAll(away.Lib, 0o700))
			testkit.Must(p, os.Mkdir(p.root+"/pool2", 0o700))
			last := systemd.AtBoot{Dir: p.root + "/units", Name: "last.service", Args: []string{"berth"}}
			archive, packed := imagetest.Busybox(t), p.dir+"/x.erofs"
			for _, name := range []string{packed, packed + "2"} {
				if out, err := exec.Command("mkfs.erofs", "--quiet", name, imagetest.BusyboxDir(t)).CombinedOutput(); err != nil {
					t.Fatalf("mkfs.erofs: %v: %s", err, out)
				}
			}
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
				"a host of a site": {nil, func() error { return membership.Join(p.l, member) }, func() error {
					m, err := membership.Read(p.l)
					if err == nil && (m == nil || m.Host != member.Host) {
						err = fmt.Errorf("it is %v", m)
					}
					return err
				}},
				"what a site was not told": {nil, func() error { return membership.Owe(p.l.SiteOwed(), "n", owed) }, func() error {
					all, err := membership.Owed(p.l.SiteOwed())
					if err == nil && len(all) != 1 {
						err = fmt.Errorf("owed are %v", all)
					}
					return err
				}},
				"berth pool rm":                {p.did("pool", "add", "second", "--dir", p.root+"/pool2"), p.did("pool", "rm", "second"), p.no(p.l.Scratch() + "/second.json")},
				"berth net pool rm":            {p.did("net", "pool", "add", "macs", "02:00:5e:10:00:01"), p.did("net", "pool", "rm", "macs"), p.no(p.l.Pools() + "/macs")},
				"berth image rm":               {p.did("image", "import", archive, "bb"), p.did("image", "rm", "bb"), p.no(p.l.Images() + "/records/*")},
				"berth image rm of a file":     {p.did("image", "trust", packed), p.did("image", "rm", "file:"+packed), p.no(p.l.Images() + "/packed/records/*.json")},
				"berth image prune of a file":  {p.did("image", "trust", packed+"2"), func() error { return errors.Join(os.Remove(packed+"2"), p.did("image", "prune")()) }, p.no(p.l.Images() + "/packed/records/*.json")},
				"a unit that is not any more":  {last.Write, last.Remove, p.no(last.Dir + "/last.service")},
				"a host that left its site":    {func() error { return membership.Join(away, member) }, func() error { return membership.Leave(away) }, p.no(away.Site())},
				"no more virtual functions":    {func() error { return wishes.Keep(sriov.Wish{PCI: "0000:00:00.0"}) }, func() error { return wishes.Forget("0000:00:00.0") }, p.no(string(wishes) + "/0*")},
				"what a site was told at last": {func() error { return membership.Owe(owing, "n", owed) }, func() error { return membership.Debt{Thing: owed, Node: "n"}.Settled(owing) }, p.no(owing + "/*n")},
			} {
				if act.before != nil {
					testkit.Must(p, act.before())
				}
				unix.Sync()
				testkit.Must(p, act.do())
				p.cut()
				if err := act.there(); err != nil {
					t.Errorf("%s: after a power cut: %v", what, err)
				}
			}
		})
	}
}

// did is a command as an act.
func (p *powered) did(args ...string) func() error {
	return func() error { p.Helper(); p.ok(args...); return nil }
}

// no checks that there are no such files.
func (p *powered) no(pattern string) func() error {
	return func() error {
		there, err := filepath.Glob(pattern)
		if err == nil && len(there) > 0 {
			err = fmt.Errorf("there are again %v", there)
		}
		return err
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
