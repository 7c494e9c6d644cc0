package sitecli

import "github.com/spf13/cobra"

func (a *app) certsRenew() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "renew NAME", Short: "issue a certificate again", Args: cobra.ExactArgs(1),
		Long: `Issue a certificate with the name, the role and the addresses of the last one
with this name, with a new key, as long as that one is not revoked. Agents renew
the certificates of their hosts by themselves, at two thirds of their time: this
is for people, and for hosts that were off for a month.`,
		Example: "  berth certs renew ann",
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.signer()
			if err != nil {
				return err
			}
			if err := checkOutput(output, args[0]); err != nil {
				return err
			}
			b, err := s.Reissue(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.hand(b, output)
		},
	}
	return outputFlag(c, &output)
}
