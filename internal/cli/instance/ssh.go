package instance

import (
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"berth/internal/site/slurm/instance"
	"berth/internal/sys/refuse"
)

func (c Commands) ssh() *cobra.Command {
	return &cobra.Command{
		Use: "ssh INSTANCE [-- COMMAND [ARG…]]", Short: "log in to an instance", Args: cobra.MinimumNArgs(1),
		Long: `Become the ssh that reaches an instance, whose host key was learned when it came
up. For scp, rsync and others, berth instance up prints the options.`,
		Example:           "  berth instance ssh 17\n  berth instance ssh 17 -- nproc",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			i, err := find(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if i.State != "RUNNING" {
				return refuse.Busyf("instance %d %s", i.Job, words(i))
			}
			if _, err := os.Stat(known(i.Job)); err != nil {
				return refuse.NotFoundf("the host key of instance %d is not known here (%s): it came up on another host, or for another user", i.Job, known(i.Job))
			}
			return become(append(ssh(i), args[1:]...))
		},
	}
}

// ssh is the command that logs in to an instance.
func ssh(i instance.Instance) []string {
	return []string{"ssh", "-p", strconv.Itoa(port), "-o", "UserKnownHostsFile=" + known(i.Job), "-o", "StrictHostKeyChecking=yes", i.User + "@" + i.Address}
}

// become replaces this process by a program.
func become(argv []string) error {
	path, err := lookPath(argv[0])
	if err != nil {
		return err
	}
	if err := unix.Exec(path, argv, os.Environ()); err != nil {
		return fmt.Errorf("start %s: %w", path, err)
	}
	return nil
}
