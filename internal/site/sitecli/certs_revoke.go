package sitecli

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"berth/internal/site/certs"
)

func (a *app) certsRevoke() *cobra.Command {
	return &cobra.Command{
		Use: "revoke NAME|SERIAL", Short: "revoke certificates before their time", Args: cobra.ExactArgs(1),
		Long: `Revoke all certificates of a name, or the one with a serial of berth certs ls.
The list of revoked certificates reaches the agents of the site by themselves;
each then refuses these certificates, and ends connections that are open with
them. By hand: berth certs install revoked.crl.`,
		Example: "  berth certs revoke ann\n  berth certs revoke node7",
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.signer()
			if err != nil {
				return err
			}
			revoked, err := s.Revoke(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if len(revoked) == 0 {
				fmt.Fprintf(a.Out, "%s: no certificate that still lasts\n", args[0])
			}
			for _, i := range revoked {
				fmt.Fprintf(a.Out, "%s %s: revoked %s\n", i.Role, i.Name, i.Serial)
			}
			return a.spread(s)
		},
	}
}

// spread gives the list to this host's agent, which gives it to the others.
func (a *app) spread(s *certs.Signer) error {
	list, err := s.Revoked()
	if err != nil {
		return err
	}
	dir, err := a.folder("certs")
	if err != nil {
		return err
	}
	_, err = certs.Update(dir, list)
	if errors.Is(err, fs.ErrNotExist) { // the signer need not be a host of the site
		return nil
	}
	return err
}
