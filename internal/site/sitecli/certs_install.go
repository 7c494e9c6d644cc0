package sitecli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"berth/internal/site/certs"
	"berth/internal/spec/roles"
	"berth/internal/sys/refuse"
)

func (a *app) certsInstall() *cobra.Command {
	return &cobra.Command{
		Use: "install FILE", Short: "put a bundle in its place", Args: cobra.ExactArgs(1),
		Long: `Put a bundle of berth certs issue in its place: a host's into /etc/berth/certs, a
person's into ~/.config/berth. FILE may also be a list of revoked certificates,
as /etc/berth/ca/revoked.crl of the signer; - is standard input. An agent that
has a certificate already takes the new one up at once; with its first one it is
started anew: systemctl restart berthd.`,
		Example: "  berth certs install node7.tar\n  ssh node1 cat /etc/berth/ca/revoked.crl | berth certs install -",
		RunE: func(_ *cobra.Command, args []string) error {
			in := io.Reader(a.In)
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if errors.Is(err, fs.ErrNotExist) {
					return refuse.NotFoundf("there is no file %s", args[0])
				}
				if err != nil {
					return fmt.Errorf("read bundle: %w", err)
				}
				defer f.Close()
				in = f
			}
			data, err := io.ReadAll(io.LimitReader(in, 4<<20))
			if err != nil {
				return fmt.Errorf("read bundle: %w", err)
			}
			if bytes.HasPrefix(data, []byte("-----BEGIN X509 CRL-----")) {
				return a.installRevoked(data)
			}
			return a.installBundle(data)
		},
	}
}

func (a *app) installBundle(data []byte) error {
	b, err := certs.Unpack(bytes.NewReader(data))
	if err != nil {
		return err
	}
	who, err := certs.Identity(b.Cert)
	if err != nil {
		return err
	}
	dir, err := a.folder("certs")
	if err == nil && who.Role != roles.Host {
		dir, err = a.userFolder()
	}
	if err == nil {
		err = certs.Install(dir, b)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(a.Out, "%s: %s, until %s\n", dir, who, day(b.Cert.NotAfter))
	return nil
}

func (a *app) userFolder() (string, error) {
	if a.root != "" {
		return a.folder("user")
	}
	return certs.UserDir()
}

// installRevoked gives a list to the folders that are there.
func (a *app) installRevoked(data []byte) error {
	host, err := a.folder("certs")
	if err != nil {
		return err
	}
	user, err := a.userFolder()
	if err != nil {
		return err
	}
	there := 0
	for _, dir := range []string{host, user} {
		if _, err := os.Stat(filepath.Join(dir, certs.CAFile)); err != nil {
			continue
		}
		there++
		changed, err := certs.Update(dir, data)
		if err != nil {
			return err
		}
		did := "has it, or a newer one"
		if changed {
			did = "updated"
		}
		fmt.Fprintf(a.Out, "%s: %s\n", dir, did)
	}
	if there == 0 {
		return refuse.NotFoundf("there is no certificate in %s or %s: begin with berth certs install", host, user)
	}
	return nil
}
