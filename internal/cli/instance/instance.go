// Package instance is the commands berth instance: a user gets a node of the site's Slurm for some hours, and needs to know
// nothing of Slurm.
package instance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"berth/internal/cli/act"
	"berth/internal/site/slurm/instance"
	"berth/internal/sys/file"
	"berth/internal/sys/refuse"
	"berth/internal/sys/text"
)

// port is where an instance's sshd listens: a user may open no port below 1024.
const port = 2222

// Commands is what the commands need of the command line.
type Commands struct {
	act.App
}

// Instance returns the command berth instance.
func (c Commands) Instance() *cobra.Command {
	i := &cobra.Command{
		Use: "instance", Short: "a node of the pool for some hours, reached by ssh",
		Long: `A fresh node of the site's pool, for the user who calls, until its time is over
or it is ended. The pool is Slurm's: the node is a job of that user there, with
the limits of its template (share/doc/berth/slurm.md).`,
		Example: "  berth instance up --time 4h\n  berth instance ls\n  berth instance ssh 17\n  berth instance down 17",
	}
	i.AddCommand(c.up(), c.ls(), c.ssh(), c.down())
	return i
}

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

func (c Commands) ls() *cobra.Command {
	var everybody bool
	cmd := c.JSONFlag(&cobra.Command{
		Use: "ls", Short: "the instances that are up or wait", Args: cobra.NoArgs,
		Long:              "List your instances: which wait and why, which are up, where, and until when.",
		Example:           "  berth instance ls\n  berth instance ls --all --json",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := instance.List(cmd.Context(), everybody)
			if err != nil {
				return err
			}
			if *c.JSON {
				return c.PrintJSON(all)
			}
			rows := [][]string{{"INSTANCE", "USER", "STATE", "NODE", "ADDRESS", "UNTIL"}}
			for _, i := range all {
				rows = append(rows, []string{strconv.Itoa(i.Job), i.User, state(i), text.OrDash(i.Node), text.OrDash(i.Address), until(i)})
			}
			return text.Rows(c.Out, text.Columns(c.Out), rows)
		},
	})
	cmd.Flags().BoolVar(&everybody, "all", false, "of all users")
	return cmd
}

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

func (c Commands) down() *cobra.Command {
	return &cobra.Command{
		Use: "down INSTANCE…", Short: "end instances, and give their nodes back", Args: cobra.MinimumNArgs(1),
		Long:              "End instances. What they wrote to their own root and scratch is gone.",
		Example:           "  berth instance down 17",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.Each(args, func(name string) error {
				i, err := find(cmd.Context(), name)
				if err != nil {
					return err
				}
				if err := instance.Down(cmd.Context(), i.Job); err != nil {
					return err
				}
				fmt.Fprintf(c.Out, "instance %d ends\n", i.Job)
				return forget(i.Job)
			})
		},
	}
}

// find returns the instance that a user names.
func find(ctx context.Context, name string) (instance.Instance, error) {
	id, err := strconv.Atoi(name)
	if err != nil || id < 1 {
		return instance.Instance{}, refuse.Invalidf("%q is no number of an instance (berth instance ls lists them)", name)
	}
	return instance.Find(ctx, id)
}

// words says what an instance does now.
func words(i instance.Instance) string {
	switch {
	case i.State == "RUNNING":
		return "is on node " + i.Node
	case i.State == "CONFIGURING":
		return "has node " + i.Node + ", which is being made"
	case i.Waits() && i.Reason != "":
		return "waits: " + i.Reason
	case i.Waits():
		return "waits"
	}
	return "has ended: " + i.State
}

func state(i instance.Instance) string {
	if i.Reason != "" {
		return strings.ToLower(i.State) + ": " + i.Reason
	}
	return strings.ToLower(i.State)
}

func until(i instance.Instance) string {
	if i.Until.IsZero() {
		return "-"
	}
	return i.Until.Format("2006-01-02 15:04")
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

// folder keeps the host keys of the user's instances.
func folder() string {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "berth", "instances")
	}
	return filepath.Join(home(), ".local", "state", "berth", "instances")
}

func home() string {
	if dir := os.Getenv("HOME"); dir != "" {
		return dir
	}
	if u, err := user.Current(); err == nil {
		return u.HomeDir
	}
	return "/"
}

// known is the file with the host key of an instance.
func known(id int) string { return filepath.Join(folder(), strconv.Itoa(id)) }

// remember keeps an instance's host key.
func remember(id int, address, key string) error {
	if err := os.MkdirAll(folder(), 0o700); err != nil {
		return fmt.Errorf("keep the host key of instance %d: %w", id, err)
	}
	line := fmt.Sprintf("[%s]:%d %s\n", address, port, key)
	if err := file.Write(known(id), []byte(line), 0o600); err != nil {
		return fmt.Errorf("keep the host key of instance %d: %w", id, err)
	}
	return nil
}

func forget(id int) error {
	if err := os.Remove(known(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("forget the host key of instance %d: %w", id, err)
	}
	return nil
}
