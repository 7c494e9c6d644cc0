package sitecli

import (
	"time"

	"github.com/spf13/cobra"

	"berth/internal/site/certs"
	"berth/internal/spec/roles"
	"berth/internal/sys/refuse"
)

func (a *app) certsIssue() *cobra.Command {
	var role, output string
	var life time.Duration
	c := &cobra.Command{
		Use: "issue [--role ROLE] NAME [ADDRESS...]", Short: "issue a certificate", Args: cobra.MinimumNArgs(1),
		Long: `Issue a certificate with a new key: for a host, with the addresses and other
names by which it is reached, or with --role for a person or a service. It is
written as a bundle, NAME.tar, for berth certs install there: whoever reads the
file on its way has the key in it.

The roles: admin is root on each host of the site; operator makes nodes from
templates, and sees and ends its own; viewer reads.`,
		Example: "  berth certs issue node7 192.0.2.7\n  berth certs issue --role operator --for 720h slurm\n  berth certs issue -o - node7 | ssh node7 berth certs install -",
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.signer()
			if err != nil {
				return err
			}
			if err := checkOutput(output, args[0]); err != nil {
				return err
			}
			var b certs.Bundle
			switch {
			case role == "" && cmd.Flags().Changed("for"):
				return refuse.Invalidf("--for goes with --role: certificates of hosts last %d days, and are renewed", int(certs.HostLife.Hours()/24))
			case role == "":
				b, err = s.IssueHost(cmd.Context(), args[0], args[1:])
			case len(args) > 1:
				return refuse.Invalidf("%d names: a certificate with a role is for one person", len(args))
			default:
				b, err = s.IssueUser(cmd.Context(), args[0], roles.Role(role), life)
			}
			if err != nil {
				return err
			}
			return a.hand(b, output)
		},
	}
	c.Flags().StringVar(&role, "role", "", "for a person or a service: admin, operator or viewer, as `ROLE`")
	c.Flags().DurationVar(&life, "for", certs.UserLife, "how long it lasts, with --role: `TIME`, at most 2160h")
	return outputFlag(c, &output)
}
