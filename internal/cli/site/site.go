// Package site starts the program berth-site, which has the commands berth certs, host, template and slurm, and carries out
// --host: package sitecli has what they do.
package site

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"berth/internal/sys/layout"
	"berth/internal/sys/sibling"
)

// App has what the commands need of the command line.
type App struct {
	Layout func() layout.Layout
}

// program speaks HTTPS and makes certificates. It is a program of its own because both would slow each start of berth.
const program = "berth-site"

// Become replaces this process by berth-site.
func Become(args []string) error {
	path, err := sibling.Find(program, "other hosts, certificates and templates are reached", "make install puts both there")
	if err != nil {
		return err
	}
	if err := unix.Exec(path, append([]string{path}, args...), os.Environ()); err != nil {
		return fmt.Errorf("start %s: %w", path, err)
	}
	return nil
}

// Commands are the commands that berth-site has itself: their flags, help and arguments are defined there.
func (a App) Commands() []*cobra.Command {
	of := func(use, short, long, example string) *cobra.Command {
		return &cobra.Command{
			Use: use, Short: short, Long: long, Example: example, Args: cobra.ArbitraryArgs,
			DisableFlagParsing: true, DisableFlagsInUseLine: true, ValidArgsFunction: cobra.NoFileCompletions,
			RunE: func(cmd *cobra.Command, args []string) error {
				if len(args) == 1 && (args[0] == "--help" || args[0] == "-h") {
					return cmd.Help()
				}
				return Become(append(append(a.Layout().Args(), cmd.Name()), args...))
			},
		}
	}
	return []*cobra.Command{
		of("certs COMMAND", "the certificates of a site", "The certificates with which the hosts and users of a site know each other: a\nsmall authority, whose key is on one host only.",
			"  berth certs init\n  berth certs issue node7\n  berth certs issue --role viewer ann"),
		of("host COMMAND", "the hosts of a site", "The hosts of a site, as this host's agent knows them.",
			"  berth host ls\n  berth host drain node7\n  berth host forget node7"),
		of("template COMMAND", "the templates from which operators make nodes", "The templates that admins keep in /etc/berth/templates, from which operators\nmake nodes.",
			"  berth template ls"),
		of("slurm COMMAND", "worker nodes on demand for a site's Slurm", "Worker nodes that a site's Slurm has made when a job needs them, and removed\nwhen nothing runs on them (share/doc/berth/slurm.md). config makes Slurm's files\nfrom /etc/berth/slurm.yaml; berth slurm config --help says how.",
			"  berth slurm config --diff\n  berth slurm config --output /etc/slurm"),
	}
}
