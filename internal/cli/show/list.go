// Package show prints nodes, their limits and plans, and the state of the host, as text for users.
package show

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"berth/internal/node"
	"berth/internal/node/protect"
	"berth/internal/sys/proof"
	"berth/internal/sys/text"
)

// List writes the nodes and the protected services of a host. The ports that nodes publish are the last column, or lines of
// their own where it would not fit into width columns (0: no bound).
func List(out io.Writer, width int, all []node.Status, protected []protect.Service) error {
	published := slices.ContainsFunc(all, func(s node.Status) bool { return ports(&s) != "" })
	table, err := list(all, protected, published)
	if err != nil {
		return err
	}
	if published && width > 0 && widest(table) > width {
		if table, err = list(all, protected, false); err != nil {
			return err
		}
	} else {
		published = false
	}
	if _, err := io.WriteString(out, table); err != nil {
		return err
	}
	for _, s := range all {
		if p := ports(&s); published && p != "" {
			text.Wrap(out, width, 2, "", s.Name+": ports "+p)
		}
	}
	for _, s := range all {
		for _, t := range s.Trouble {
			fmt.Fprintf(out, "%s: %s\n", s.Name, t)
		}
		NotStarted(out, width, &s)
	}
	lost(out, width, all, protected)
	return nil
}

// NotStarted says why the restarts of a node fail.
func NotStarted(out io.Writer, width int, s *node.Status) {
	if s.Refused != nil {
		text.Wrap(out, width, 2, "", s.Name+": its restart failed, "+text.Count(s.Refused.Times, "time")+" until now: "+s.Refused.Why)
	}
}

// lost says what another program has taken from nodes and services, and whose journal is lost.
func lost(out io.Writer, width int, all []node.Status, protected []protect.Service) {
	say := func(name string, what []string) {
		for _, l := range what {
			text.Wrap(out, width, 2, "", name+": "+l+"; berth repair gives it back")
		}
	}
	for _, s := range all {
		say(s.Name, s.Lost)
	}
	for _, p := range protected {
		say(p.Name, p.Lost)
		if p.Damaged != "" {
			text.Wrap(out, width, 2, "", p.Name+": "+p.Damaged)
		}
	}
}

func widest(table string) (n int) {
	for line := range strings.Lines(table) {
		n = max(n, utf8.RuneCountInString(line)-1)
	}
	return n
}

// ports are the host's that lead to a running node.
func ports(s *node.Status) string {
	var all []string
	for _, w := range s.Wires {
		all = append(all, w.Ports...)
	}
	return text.Either(s.Runs(), strings.Join(all, ", "), "")
}

// list is the table of nodes and protected services.
func list(all []node.Status, protected []protect.Service, published bool) (string, error) {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tSTATE\tPID\tSINCE\tIMAGE\tADDRESS"+text.Either(published, "\tPORTS", ""))
	for _, s := range all {
		pid, since := "-", s.Ended
		if s.Runs() {
			pid, since = strconv.Itoa(s.PID), s.Started
		}
		row := []string{s.Name, stateText(&s), pid, text.Ago(since), text.Shorten(s.Image, 24), text.OrDash(strings.Join(s.Addresses, " "))}
		if published {
			row = append(row, text.OrDash(ports(&s)))
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	protectedRows(w, protected, published)
	err := w.Flush()
	return out.String(), err
}

// exitText says how a node's process 1 ended.
func exitText(s *node.Status) string {
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
	words := s.State
	if !s.Runs() && s.Exit != nil {
		words += " " + exitText(s)
	}
	switch {
	case s.Restarting && s.Restarts > 0:
		words += ", restarting, " + text.Count(s.Restarts, "time")
	case s.Restarting:
		words += ", restarting"
	case s.Runs() && s.Restarts > 0 && time.Since(s.Started) < node.RanWell:
		words += restarts(s.Restarts)
	}
	if s.Health != nil && s.State == node.Running {
		words += ", " + s.Health.State
	}
	if !s.UserNS {
		words += " NO-USERNS"
	}
	if len(s.Unsafe) > 0 {
		words += " UNSAFE-DEVICE"
	}
	if s.NewPrivileges {
		words += " NEW-PRIVILEGES"
	}
	if s.SharedIDs != "" {
		words += " HOST-USERS"
	}
	if len(s.MaySpoof) > 0 {
		words += " MAY-SPOOF"
	}
	if len(s.Trouble) > 0 {
		words += " NOT-CONNECTED"
	}
	if len(s.Lost) > 0 {
		words += " LIMITS-LOST"
	}
	return words
}

// restartsBefore says how often a node was restarted, unless stateText says so already.
func restartsBefore(s *node.Status) string {
	if s.Restarting || s.Runs() && time.Since(s.Started) < node.RanWell {
		return ""
	}
	return restarts(s.Restarts)
}

func restarts(n int) string {
	if n == 0 {
		return ""
	}
	return ", restarted " + text.Count(n, "time")
}

// protectedRows adds the protected services to the list of nodes.
func protectedRows(w *tabwriter.Writer, all []protect.Service, published bool) {
	for _, p := range all {
		state, pid := "protected", "-"
		switch {
		case p.Damaged != "":
			state = "protected, damaged"
		case p.Gone:
			state = "protected, gone"
		case len(p.PIDs) > 0:
			pid = strconv.Itoa(p.PIDs[0])
			if n := len(p.PIDs) - 1; n > 0 {
				pid += "+" + strconv.Itoa(n)
			}
		}
		if slices.ContainsFunc(p.Values, func(v proof.Limit) bool { return strings.HasPrefix(v.Key, "disk ") && !v.Holds }) {
			state += ", engine off"
		}
		if len(p.Lost) > 0 {
			state += ", LIMITS-LOST"
		}
		fmt.Fprintln(w, strings.Join([]string{p.Name, state, pid, text.Ago(p.Since), "-", "-"}, "\t")+text.Either(published, "\t-", ""))
	}
}
