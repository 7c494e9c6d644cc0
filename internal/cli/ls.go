package cli

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/cgroup"
	"berth/internal/node"
	"berth/internal/oci"
)

func (a *app) lsCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "ls", Short: "list the nodes",
		Long: `List the nodes of this host, with the exit status of those that ended, and how
often one was restarted that does not stay up. A node without a user namespace
is marked NO-USERNS: its root is the host's. One whose spec forces a device on
it that no node should have is marked UNSAFE-DEVICE, one whose spec lets it send
from others' addresses MAY-SPOOF. NOT-CONNECTED is one whose bridge or parent is
gone: the lines below the list say which.
Services of the host that berth protect gave class storage follow.`,
		Example: "  berth ls\n  berth ls --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := a.attended(cmd.Context())
			if err != nil {
				return err
			}
			all, err := b.List(cmd.Context())
			if err != nil {
				return err
			}
			protected, err := b.Protected(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(listed(all, protected))
			}
			return printList(a.Out, all, protected)
		},
	}
	return a.jsonFlag(c)
}

// listed puts nodes and protected services into one list.
func listed(nodes []node.Status, protected []node.Protected) []any {
	all := make([]any, 0, len(nodes)+len(protected))
	for _, n := range nodes {
		all = append(all, n)
	}
	for _, p := range protected {
		all = append(all, p)
	}
	return all
}

func printList(out io.Writer, all []node.Status, protected []node.Protected) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tSTATE\tPID\tSINCE\tIMAGE\tADDRESS")
	for _, s := range all {
		pid, since := "-", s.Ended
		if s.State == node.Running {
			pid, since = strconv.Itoa(s.PID), s.Started
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", s.Name, stateText(&s), pid, ago(since), shorten(s.Image, 24),
			orDash(strings.Join(s.Addresses, " ")))
	}
	protectedRows(w, protected)
	if err := w.Flush(); err != nil {
		return err
	}
	for _, s := range all {
		for _, t := range s.Trouble {
			fmt.Fprintf(out, "%s: %s\n", s.Name, t)
		}
	}
	return nil
}

// exitText says how a node's process 1 ended. If an init calls reboot(2) in its PID namespace, the kernel ends it: by
// SIGINT for power off and halt, by SIGHUP for a restart (pid_namespaces(7)).
func exitText(s *node.Status) string {
	if s.InitKind != "" && !s.Exit.OOM {
		switch s.Exit.Signal {
		case "SIGINT":
			return "(shut down)"
		case "SIGHUP":
			return "(wants to boot again)"
		}
	}
	if s.Exit.Unknown && !s.Exit.After.IsZero() {
		return fmt.Sprintf("unknown, between %s and %s", clock(s.Exit.After, s.Ended), clock(s.Ended, s.Exit.After))
	}
	return s.Exit.String()
}

// clock writes the time of day of t, with the date unless t and other are both of today.
func clock(t, other time.Time) string {
	const day = "2006-01-02"
	t, other, now := t.Local(), other.Local(), time.Now()
	if t.Format(day) == other.Format(day) && t.Format(day) == now.Format(day) {
		return t.Format("15:04:05")
	}
	return t.Format(day + " 15:04")
}

func stateText(s *node.Status) string {
	text := s.State
	if s.State != node.Running && s.Exit != nil {
		text += " " + exitText(s)
	}
	switch {
	case s.Restarting && s.Restarts > 0:
		text += ", restarting, " + count(s.Restarts, "time")
	case s.Restarting:
		text += ", restarting"
	case s.State == node.Running && s.Restarts > 0 && time.Since(s.Started) < node.RanWell:
		text += restarts(s.Restarts)
	}
	if !s.UserNS {
		text += " NO-USERNS"
	}
	if len(s.Unsafe) > 0 {
		text += " UNSAFE-DEVICE"
	}
	if len(s.MaySpoof) > 0 {
		text += " MAY-SPOOF"
	}
	if len(s.Trouble) > 0 {
		text += " NOT-CONNECTED"
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
		Long: `Show a node: state, process, ids, network, and each limit as asked, as read
back from the kernel (with the kernel's own rounding), and by what it is
honoured.`,
		ValidArgsFunction: a.nodeNames(1),
		Example:           "  berth show wn-001\n  berth show wn-001 --spec    the spec as it is now\n  berth show wn-001 --json",
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := a.attended(cmd.Context())
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
			return printDetail(a.Out, columns(a.Out), d)
		},
	}
	c.Flags().BoolVar(&specOnly, "spec", false, "print the spec as it is now, with what was set live")
	return a.jsonFlag(c)
}

func printDetail(out io.Writer, width int, d *node.Detail) error {
	row := func(k, v string) {
		if v != "" {
			wrap(out, width, 16, fmt.Sprintf("%-16s", k), v)
		}
	}
	row("name", d.Name)
	row("host name", d.Hostname)
	row("state", stateText(&d.Status)+restartsBefore(&d.Status))
	if d.State == node.Running {
		row("process 1", strconv.Itoa(d.PID)+" on the host, for "+ago(d.Started))
	}
	row("phase", d.Phase)
	row("image", d.Image)
	row("command", oci.Quote(d.Command))
	row("runtime", d.Runtime)
	row("ids on the host", d.IDs)
	row("cgroup", d.Cgroup)
	row("uses", used(d.Usage))
	row("held back", heldBack(d.Usage))
	for _, l := range d.Links {
		text := []string{l.Mode, l.MAC}
		if l.MTU != 0 { // known if the node runs or the spec gives it
			text = append(text, fmt.Sprintf("mtu %d", l.MTU))
		}
		text = append(text, l.Address...)
		if l.Lease != nil {
			text = append(text, leased(l.Lease))
		}
		if l.Spoof != nil {
			text = append(text, spoofText(l.Spoof, d.State == node.Running))
		}
		row("link "+l.Name, strings.Join(slices.DeleteFunc(text, func(s string) bool { return s == "" }), " "))
	}
	for _, e := range d.Exposed {
		row("mount "+e.Target, "EXPOSED: the host's users can run what the node leaves in "+e.Source+
			" with its set-user-id bits and capabilities: "+e.Why)
	}
	for _, t := range d.Trouble {
		row("trouble", t)
	}
	if err := printDevices(out, width, d.Devices); err != nil {
		return err
	}
	return printLimits(out, width, d.Limits)
}

// spoofText describes the spoof check of an interface; "" for a stopped node whose interface has one.
func spoofText(d *node.SpoofDetail, running bool) string {
	switch {
	case !d.Refused:
		return "may spoof"
	case !running:
		return ""
	case !d.Holds:
		return "WITHOUT its spoof check"
	}
	return "spoof check " + d.Program
}

// leased says from which server a DHCP address comes and when its lease ends.
func leased(l *node.LeaseDetail) string {
	text := "by DHCP"
	if l.Server != "" {
		text += " from " + l.Server
	}
	if l.Ends.IsZero() {
		return text + " for ever"
	}
	return text + " until " + l.Ends.Format("2006-01-02 15:04:05")
}

// used says what a running node uses; "" if u is nil.
func used(u *cgroup.Usage) string {
	if u == nil {
		return ""
	}
	var all []string
	if u.Memory != nil {
		all = append(all, human(*u.Memory)+" of memory")
	}
	if u.PIDs != nil {
		all = append(all, count(int(*u.PIDs), "task"))
	}
	if u.CPU != nil {
		all = append(all, fmt.Sprintf("%.1f s of CPU", u.CPU.Seconds()))
	}
	return strings.Join(all, ", ")
}

// restartsBefore says how often a node was restarted, unless stateText says so already.
func restartsBefore(s *node.Status) string {
	if s.Restarting || s.State == node.Running && time.Since(s.Started) < node.RanWell {
		return ""
	}
	return restarts(s.Restarts)
}

func restarts(n int) string {
	if n == 0 {
		return ""
	}
	return ", restarted " + count(n, "time")
}

func count(n int, what string) string {
	return fmt.Sprintf("%d %s%s", n, what, word(n == 1, "", "s"))
}
