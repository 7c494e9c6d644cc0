package cli

import (
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/node"
)

func (a *app) lsCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "ls", Short: "list the nodes",
		Long:    "List the nodes of this host. A node without a user namespace is marked: its root is the host's.",
		Example: "  berth ls\n  berth ls --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := a.open()
			if err != nil {
				return err
			}
			all, err := b.List(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(all)
			}
			return a.printList(all)
		},
	}
	return a.jsonFlag(c)
}

func (a *app) printList(all []node.Status) error {
	w := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tSTATE\tPID\tIMAGE\tADDRESS\tSINCE")
	for _, s := range all {
		pid, since := "-", s.Ended
		if s.State == node.Running {
			pid, since = strconv.Itoa(s.PID), s.Started
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", s.Name, stateText(&s), pid, shorten(s.Image, 24),
			orDash(strings.Join(s.Addresses, " ")), ago(since))
	}
	return w.Flush()
}

func stateText(s *node.Status) string {
	text := s.State
	if s.State != node.Running && s.Exit != nil {
		text += " " + s.Exit.String()
	}
	if !s.UserNS {
		text += " NO-USERNS"
	}
	return text
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func shorten(s string, most int) string {
	r := []rune(s)
	if len(r) <= most {
		return s
	}
	return "…" + string(r[len(r)-most+1:])
}

// ago writes how long ago t was, in its largest unit.
func ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	d := time.Since(t)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

func (a *app) showCmd() *cobra.Command {
	var specOnly bool
	c := &cobra.Command{
		Use: "show NAME", Short: "show a node: its identity, and its limits as the kernel has them", Args: cobra.ExactArgs(1),
		Long: `Show a node: state, process, ids, network, and each limit as asked, as read back from the
kernel (with the kernel's own rounding), and by what it is honoured.`,
		Example: "  berth show wn-001\n  berth show wn-001 --spec    the spec as it is now\n  berth show wn-001 --json",
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := a.open()
			if err != nil {
				return err
			}
			if specOnly {
				text, err := b.SpecText(args[0])
				if err != nil {
					return err
				}
				_, err = a.Out.Write(text)
				return err
			}
			d, err := b.Show(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(d)
			}
			return a.printDetail(d)
		},
	}
	c.Flags().BoolVar(&specOnly, "spec", false, "print the spec as it is now, with what was set live")
	return a.jsonFlag(c)
}

func (a *app) printDetail(d *node.Detail) error {
	w := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
	row := func(k, v string) {
		if v != "" {
			fmt.Fprintf(w, "%s\t%s\n", k, v)
		}
	}
	row("name", d.Name)
	row("host name", d.Hostname)
	row("state", stateText(&d.Status))
	if d.State == node.Running {
		row("pid", strconv.Itoa(d.PID))
		row("running for", ago(d.Started))
	}
	row("phase", d.Phase)
	row("image", d.Image)
	row("command", strings.Join(d.Command, " "))
	row("runtime", d.Runtime)
	row("user ids", d.IDs)
	row("cgroup", d.Cgroup)
	if d.Usage != nil && d.Usage.OOMKills != nil && *d.Usage.OOMKills > 0 {
		row("out of memory", fmt.Sprintf("%d processes were killed", *d.Usage.OOMKills))
	}
	for _, l := range d.Links {
		row("link "+l.Name, strings.TrimSpace(fmt.Sprintf("%s %s mtu %d %s", l.Mode, l.MAC, l.MTU, strings.Join(l.Address, " "))))
	}
	if err := w.Flush(); err != nil || len(d.Limits) == 0 {
		return err
	}
	fmt.Fprintln(a.Out)
	fmt.Fprintln(w, "LIMIT\tASKED\tREAD BACK\tHONOURED BY")
	var notes []string
	for _, l := range d.Limits {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", l.Key, l.Asked, orDash(l.ReadBack), l.HonouredBy)
		if l.Note != "" {
			notes = append(notes, l.Key+": "+l.Note)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, n := range notes {
		fmt.Fprintln(a.Out, n)
	}
	return nil
}
