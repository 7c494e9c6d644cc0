package bench

import (
	"fmt"
	"io"
	"strings"
)

// Text writes the report for a person: no line is wider than 80 columns, no colour.
func (r *NetReport) Text(w io.Writer) error {
	var b strings.Builder
	r.textHead(&b)
	r.textArms(&b)
	r.textCompared(&b)
	r.textNotes(&b)
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("print the report: %w", err)
	}
	return nil
}

func (r *NetReport) textHead(b *strings.Builder) {
	emulatedFirst(b, r.Machine)
	if r.OwnPeer {
		fmt.Fprintln(b, "Network, to a peer on this machine: its software path is measured, no wire")
	} else {
		fmt.Fprintf(b, "Network, to the peer %s\n", r.Arms[0].Peer)
	}
	if r.Partial {
		fmt.Fprintln(b, "PARTIAL: the run was interrupted")
	}
	m := r.Machine
	wrap(b, "", fmt.Sprintf("Linux %s, %d cores, %s; one TCP stream, %d s after %d s of warm-up a trial, %d pairs a line planned, seed %d",
		m.Kernel, m.Cores, r.Iperf, r.RunMillis/1000, r.Warm/1000, r.Pairs, r.Seed))
	fmt.Fprintln(b)
}

func (r *NetReport) textArms(b *strings.Builder) {
	const line = "%-14s %-10s %12s %12s %12s\n"
	for i, row := range r.Rows {
		trips := row.Name == roundTrip
		switch {
		case trips:
			fmt.Fprintf(b, line, "medians", "arm", "p50 us", "p99 us", "trips/s")
		case i == 0:
			fmt.Fprintf(b, line, "medians", "arm", "Mbit/s", "CPU s/GB", "resent")
		}
		name := row.Name
		for _, a := range row.Arms {
			if a.Arm == nullArm && len(r.Arms) > 2 {
				continue // its penalty says it all
			}
			if trips {
				perSecond := float64(a.Trips) * 1000 / float64(max(a.RunMillis, 1))
				fmt.Fprintf(b, line, name, a.Arm, short(a.P50), short(a.P99), short(perSecond))
			} else {
				fmt.Fprintf(b, line, name, a.Arm, short(a.Bits/1e6), short(a.CPU), fmt.Sprint(a.Retransmits))
			}
			name = ""
		}
	}
	fmt.Fprintln(b)
}

func (r *NetReport) textCompared(b *strings.Builder) {
	// The widest line: 12 + 8 + 20 + 20 + 5 + 10 and five spaces.
	const line = "%-12s %-8s %-20s %-20s %5s %s\n"
	fmt.Fprintf(b, line, "% worse", "arm", "than host (95 %)", "host twice (95 %)", "could", "verdict")
	for _, row := range r.Rows {
		for _, of := range measures(row.Name) {
			label, null := of.label, row.penalty(nullArm, of.name)
			for _, a := range r.Arms {
				c := row.penalty(a.Name, of.name)
				if c == nil || a.Name == nullArm && len(r.Arms) > 2 {
					continue
				}
				could := "-"
				if c.Could != nil {
					could = short(*c.Could)
				}
				fmt.Fprintf(b, line, label, a.Name, withInterval(c), withInterval(null), could, c.Verdict)
				label, null = "", nil
			}
		}
	}
	fmt.Fprintln(b)
}

// penalty returns the comparison of an arm by a measure, nil if there is none.
func (r *NetResult) penalty(arm, measure string) *Comparison {
	for _, c := range r.Compared {
		if c.Arm == arm && c.Measure == measure {
			return c.Penalty
		}
	}
	return nil
}

func (r *NetReport) textNotes(b *strings.Builder) {
	wrap(b, "", fmt.Sprintf("Less speed, more CPU time, longer round trips are worse, in %% of the host's. The margin is %s %%: "+
		"`equivalent` says that a difference is shown to be smaller, `worse` and `better` that there is one and not one shown to "+
		"be smaller, `undecided` that this run cannot tell; `could` is the smallest margin that it could have decided.", short(r.MarginPct)))
	if s := CarryNote(r.Carry); s != "" {
		wrap(b, "", s)
	}
	for _, row := range r.Rows {
		for _, f := range row.Flags {
			wrap(b, "! ", row.Name+": "+strings.Replace(f.sentence(0, 0), "the disk", "the network", 1))
		}
	}
	for _, n := range r.Notes {
		wrap(b, "- ", n)
	}
}
