package sitecli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/site/certs"
	"berth/internal/sys/refuse"
)

func (a *app) certsInit() *cobra.Command {
	var name string
	c := &cobra.Command{
		Use: "init [ADDRESS...]", Short: "begin a site: an authority on this host", Args: cobra.ArbitraryArgs,
		Long: `Make the authority of a new site in /etc/berth/ca, and issue this host's own
certificate into /etc/berth/certs. ADDRESS are the addresses and other names by
which this host is reached. Keep a copy of /etc/berth/ca where only admins of
the site can read it.`,
		Example: "  berth certs init 192.0.2.1 node1.example.org",
		RunE: func(cmd *cobra.Command, addresses []string) error {
			if name == "" {
				full, err := os.Hostname()
				if err != nil {
					return fmt.Errorf("ask for this host's name: %w", err)
				}
				name = strings.ToLower(full)
			}
			ca, err := a.folder("ca")
			if err != nil {
				return err
			}
			own, err := a.folder("certs")
			if err != nil {
				return err
			}
			if _, err := os.Stat(filepath.Join(own, certs.CAFile)); err == nil {
				return refuse.Busyf("this host is of a site: %s holds its certificates; remove that folder first to begin another site", own)
			}
			s, err := certs.Init(ca)
			if err != nil {
				return err
			}
			b, err := s.IssueHost(cmd.Context(), name, addresses)
			if err == nil {
				err = certs.Install(own, b)
			}
			if err != nil {
				return fmt.Errorf("the authority is made, but this host has no certificate yet: %w", err)
			}
			fmt.Fprintf(a.Out, "authority: %s\ncertificate of host %s: %s, until %s\n", ca, name, own, day(b.Cert.NotAfter))
			return nil
		},
	}
	c.Flags().StringVar(&name, "name", "", "`NAME` of this host in the site (default: its host name)")
	return c
}
