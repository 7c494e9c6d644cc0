package instance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/site/slurm/instance"
	"berth/internal/sys/refuse"
)

func (c Commands) up() *cobra.Command {
	r := instance.Request{Port: port}
	var files []string
	cmd := c.JSONFlag(&cobra.Command{
		Use: "up", Short: "ask for a node, and wait until ssh reaches it", Args: cobra.NoArgs,
		Long: `Ask the pool for a fresh node, wait until ssh reaches it, and print the command
that does. In the node runs an sshd as the user who calls, and nothing else, so
nobody but this user logs in, and only by the keys given. While it waits, ^C
gives the node back.

Exit codes: 2 no key, or a wrong one; 3 no Slurm here, or no sshd in the node.`,
		Example: "  berth instance up --time 4h\n" +
			"  berth instance up --template gpu --time 30m --key ~/.ssh/work.pub",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if r.Time < time.Minute {
				return refuse.Invalidf("--time %s is too short: a minute or more", r.Time)
			}
			var err error
			if r.Keys, err = keys(files); err != nil {
				return err
			}
			return c.bring(cmd.Context(), r)
		},
	})
	cmd.Flags().StringVar(&r.Template, "template", "", "`NAME` of the template that the node is to be made of (default: the partition's)")
	cmd.Flags().StringVar(&r.Partition, "partition", "", "`NAME` of Slurm's partition (default: Slurm's)")
	cmd.Flags().DurationVar(&r.Time, "time", time.Hour, "`TIME` until it ends by itself")
	cmd.Flags().StringArrayVar(&files, "key", nil, "`FILE` of public keys that may log in (default: ~/.ssh/id_*.pub)")
	_ = cmd.MarkFlagFilename("key", "pub") // fails only for an unknown flag
	return cmd
}

// bring submits an instance and waits for it. What is not up at an end is given back.
func (c Commands) bring(ctx context.Context, r instance.Request) error {
	began := time.Now()
	id, err := instance.Submit(ctx, r)
	if err != nil {
		return err
	}
	i, err := instance.Wait(ctx, id, func(i instance.Instance) {
		fmt.Fprintf(c.Err, "instance %d %s\n", id, words(i))
	})
	var key string
	if err == nil {
		key, err = instance.HostKey(ctx, id)
	}
	if err == nil && i.Address == "" {
		err = fmt.Errorf("instance %d: Slurm knows no address of its node %s", id, i.Node)
	}
	if err == nil {
		err = remember(id, i.Address, key)
	}
	if err != nil {
		late, stop := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer stop()
		back := instance.Down(late, id)
		if refuse.KindOf(back) == refuse.NotFound {
			back = nil
		}
		return errors.Join(err, back)
	}
	if *c.JSON {
		return c.PrintJSON(struct {
			instance.Instance
			SSH []string `json:"ssh"`
		}{i, ssh(i)})
	}
	fmt.Fprintf(c.Err, "instance %d is up after %.1f s, until %s; berth instance down %d ends it\n", id, time.Since(began).Seconds(), until(i), id)
	fmt.Fprintln(c.Out, strings.Join(ssh(i), " "))
	return nil
}
