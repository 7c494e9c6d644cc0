package sitecli

import (
	"context"
	"log/slog"
	"log/syslog"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"berth/internal/site/slurm/power"
	"berth/internal/site/slurm/settings"
	"berth/internal/sys/refuse"
)

// powerCmds are the commands that slurmctld starts.
func (a *app) powerCmds() []*cobra.Command {
	of := func(use, short, long, example string, args cobra.PositionalArgs, do func(context.Context, *power.Power, []string) error) *cobra.Command {
		return &cobra.Command{
			Use: use, Short: short, Long: long, Example: example, Args: args,
			RunE: func(cmd *cobra.Command, args []string) error {
				l, err := a.layout()
				if err != nil {
					return err
				}
				s, err := settings.Read(l, settings.Path(l))
				if err != nil {
					return err
				}
				return do(cmd.Context(), power.Open(s, a.diary()), args)
			},
		}
	}
	return []*cobra.Command{
		of("resume HOSTLIST", "make nodes that Slurm wants (ResumeProgram)",
			"Make the nodes of a list, each on its host and of its group's template, and tell\nSlurm where they are. A node that fails is undone, and is DOWN in Slurm with the\nreason.",
			"  berth slurm resume st01-[01-03]", cobra.ExactArgs(1), func(ctx context.Context, p *power.Power, args []string) error { return p.Resume(ctx, args[0]) }),
		of("suspend HOSTLIST", "remove nodes that Slurm does not want any more (SuspendProgram)",
			"Remove the nodes of a list. It ends when nothing of them is left.",
			"  berth slurm suspend st01-[01-03]", cobra.ExactArgs(1), func(ctx context.Context, p *power.Power, args []string) error { return p.Suspend(ctx, args[0]) }),
		of("fail HOSTLIST", "remove nodes that did not answer in time (ResumeFailProgram)",
			"Remove what is left of nodes that did not answer within ResumeTimeout.",
			"  berth slurm fail st01-[01-03]", cobra.ExactArgs(1), func(ctx context.Context, p *power.Power, args []string) error { return p.Fail(ctx, args[0]) }),
		of("prolog", "ready the nodes of a job (PrologSlurmctld)",
			"Wait until the nodes of a job answer, and give them the limits that the job's\ncomment asks for. Which job that is the environment says, as slurmctld sets it.",
			"  SLURM_JOB_ID=7 SLURM_JOB_NODELIST=st01-01 berth slurm prolog", cobra.NoArgs, job((*power.Power).Prolog)),
		of("epilog", "write what a job used into the accounts (EpilogSlurmctld)",
			"Write what the nodes of a job used while it ran into the SystemComment of its record\nin Slurm's accounts, as JSON. Which job that is the environment says, as slurmctld\nsets it.",
			"  SLURM_JOB_ID=7 SLURM_JOB_NODELIST=st01-01 berth slurm epilog", cobra.NoArgs, job((*power.Power).Epilog)),
	}
}

// job calls a function with the job that the environment names.
func job(do func(*power.Power, context.Context, power.Job) error) func(context.Context, *power.Power, []string) error {
	return func(ctx context.Context, p *power.Power, _ []string) error {
		number := func(name string) (string, error) {
			n, err := strconv.ParseUint(os.Getenv(name), 10, 32)
			if err != nil {
				return "", refuse.Invalidf("%s is %.40q: slurmctld sets it to a number", name, os.Getenv(name))
			}
			return strconv.FormatUint(n, 10), nil
		}
		id, err := number("SLURM_JOB_ID")
		if err == nil && os.Getenv("SLURM_ARRAY_TASK_ID") != "" {
			var of, task string
			if of, err = number("SLURM_ARRAY_JOB_ID"); err == nil {
				task, err = number("SLURM_ARRAY_TASK_ID")
			}
			id = of + "_" + task
		}
		if err != nil {
			return err
		}
		return do(p, ctx, power.Job{ID: id, Nodes: os.Getenv("SLURM_JOB_NODELIST"), Comment: os.Getenv("SLURM_JOB_COMMENT")})
	}
}

// diary is the system's log, because the output of slurmctld's programs is not shown anywhere. Without such a log it is
// standard error.
func (a *app) diary() *slog.Logger {
	w := a.Err
	if log, err := syslog.New(syslog.LOG_DAEMON|syslog.LOG_INFO, "berth-slurm"); err == nil {
		w = log
	}
	return slog.New(slog.NewTextHandler(w, nil))
}

// slurmCmd has the commands for the batch system of a site.
func (a *app) slurmCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "slurm COMMAND", Short: "worker nodes on demand for a site's Slurm",
		Long:    "Worker nodes that a site's Slurm has made when a job needs them, and removed\nwhen nothing runs on them. /etc/berth/slurm.yaml says on which hosts\n(share/doc/berth/slurm.md).",
		Example: "  berth slurm config\n  berth slurm config --diff",
	}
	c.AddCommand(a.slurmConfigCmd())
	c.AddCommand(a.powerCmds()...)
	return c
}
