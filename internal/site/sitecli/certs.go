package sitecli

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/site/certs"
	"berth/internal/sys/file"
	"berth/internal/sys/text"
)

// certsCmd returns the command berth certs.
func (a *app) certsCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "certs", Short: "the certificates of a site",
		Long: `The certificates with which the hosts and users of a site know each other. One
host, the signer, has the key of a small authority in /etc/berth/ca; it never
leaves it. Certificates of hosts last 30 days, and their agents renew them;
those of people last 12 hours. Whoever has one with the role admin is root on
each host of the site, and so is whoever can read the authority's key.`,
		Example: "  berth certs init 192.0.2.1\n  berth certs issue node7 192.0.2.7\n  berth certs issue --role viewer ann\n  berth certs revoke ann",
	}
	c.AddCommand(a.certsInit(), a.certsIssue(), a.certsInstall(), a.certsRenew(), a.certsRevoke(), a.certsLs())
	return c
}

// folder returns a folder of certificates: of the authority or this host, below /etc/berth or the root.
func (a *app) folder(name string) (string, error) {
	l, err := a.layout()
	return l.Etc(name), err
}

func (a *app) signer() (*certs.Signer, error) {
	dir, err := a.folder("ca")
	if err != nil {
		return nil, err
	}
	return certs.OpenSigner(dir)
}

func outputFlag(c *cobra.Command, output *string) *cobra.Command {
	c.Flags().StringVarP(output, "output", "o", "", "write the bundle to `FILE`; - is standard output (default: NAME.tar)")
	return c
}

// checkOutput refuses a file to which a bundle for name cannot be written, before the certificate is issued.
func checkOutput(output, name string) error {
	if output == "-" {
		return nil
	}
	return file.CheckOutput(cmp.Or(output, filepath.Base(name)+".tar"))
}

// hand writes a bundle for its owner. The message about its owner goes to standard error: standard output may be the bundle.
func (a *app) hand(b certs.Bundle, output string) error {
	name := b.Cert.Subject.CommonName
	if output == "-" {
		return b.Tar(text.Raw(a.Out))
	}
	if output == "" {
		output = name + ".tar"
	}
	if err := file.Output(output, 0o600, func(f *os.File) error { return b.Tar(f) }); err != nil {
		return err
	}
	who, err := certs.Identity(b.Cert)
	if err != nil {
		return err
	}
	fmt.Fprintf(a.Out, "%s: %s, until %s; there: berth certs install %s\n", output, who, day(b.Cert.NotAfter), filepath.Base(output))
	return nil
}

func day(t time.Time) string { return t.Local().Format("2006-01-02 15:04") }
