package sitecli

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/site/certs"
	"berth/internal/spec/roles"
	"berth/internal/sys/file"
	"berth/internal/sys/refuse"
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

func (a *app) certsLs() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use: "ls", Short: "list the certificates that were issued",
		Long:    "List the certificates that the authority on this host issued and that still\nlast; with --all also those that are over or revoked. What ended a month ago is\nforgotten.",
		Example: "  berth certs ls\n  berth certs ls --all --json",
		RunE: func(*cobra.Command, []string) error {
			s, err := a.signer()
			if err != nil {
				return err
			}
			issued, err := s.List()
			if err != nil {
				return err
			}
			now, shown := time.Now(), []certs.Issued{}
			for _, i := range issued {
				if all || i.Live(now) {
					shown = append(shown, i)
				}
			}
			if a.json {
				return a.printJSON(shown)
			}
			w := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tROLE\tUNTIL\tSTATE\tSERIAL")
			for _, i := range shown {
				state := "valid"
				switch {
				case !i.Revoked.IsZero():
					state = "revoked"
				case !i.Live(now):
					state = "over"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", i.Name, i.Role, day(i.Until), state, i.Serial)
			}
			return w.Flush()
		},
	}
	c.Flags().BoolVarP(&all, "all", "a", false, "also those that are over or revoked")
	return a.jsonFlag(c)
}
