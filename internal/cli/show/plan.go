package show

import (
	"fmt"
	"io"
	"strings"

	"berth/internal/node"
	"berth/internal/spec/vnode"
	"berth/internal/sys/layout"
	"berth/internal/sys/step"
	"berth/internal/sys/text"
)

// Outcome writes what apply did to a node.
func Outcome(w io.Writer, o *node.Outcome) {
	fmt.Fprintf(w, "%s %s\n", o.Node, o.Did)
	for _, d := range vnode.ByEntry(o.Changes) {
		fmt.Fprintf(w, "    %s\n", difference(d))
	}
	for _, d := range o.Restored {
		fmt.Fprintf(w, "    %s, that another program had changed\n", difference(d))
	}
}

func difference(d vnode.Difference) string {
	return fmt.Sprintf("%s: %s → %s", d.Key, orNone(d.Old), orNone(d.New))
}

func orNone(s string) string {
	if s == "" {
		return "(none)"
	}
	return s
}

// Proposal writes what a command would do. It abbreviates the node's own folders as LIB and RUN, and writes the kind of
// a step only if the step before has another kind.
func Proposal(w io.Writer, width int, p *node.Proposal, dirs layout.Node) {
	fmt.Fprintf(w, "%s: %s\n", p.Node, p.Summary())
	for _, g := range p.Gone {
		text.Wrap(w, width, 8, "    ", g)
	}
	if len(p.Drift) > 0 {
		fmt.Fprintln(w, "    changed live since it was applied:")
	}
	for _, d := range vnode.ByEntry(p.Drift) {
		text.Wrap(w, width, 8, "      ", difference(d))
	}
	if len(p.Differences) > 0 {
		fmt.Fprintf(w, "    %s would change:\n", p.Command)
	}
	for _, d := range vnode.ByEntry(p.Differences) {
		text.Wrap(w, width, 8, "      ", difference(d)+text.Either(d.Live, "", " (needs a restart)"))
	}
	if len(p.Lost) > 0 {
		fmt.Fprintln(w, "    changed by another program:")
	}
	for _, d := range p.Lost {
		text.Wrap(w, width, 8, "      ", difference(d))
	}
	short := strings.NewReplacer(dirs.Lib+"/", "LIB/", dirs.Run+"/", "RUN/")
	shortened := false
	shorten := func(long string) string {
		line := short.Replace(long)
		shortened = shortened || line != long
		return line
	}
	if len(p.Removes) > 0 {
		fmt.Fprintln(w, "    would be removed, with what the node wrote there:")
	}
	for _, r := range p.Removes {
		text.Wrap(w, width, 8, "      ", shorten(r))
	}
	for i, s := range p.Steps {
		p.Steps[i].Text = shorten(s.Text)
	}
	Steps(w, width, p.Steps)
	if shortened {
		text.Wrap(w, width, 2, "", "LIB is "+dirs.Lib+", RUN is "+dirs.Run)
	}
}

// Steps writes the steps of a plan.
func Steps(w io.Writer, width int, steps []step.Line) {
	var notes []text.Note
	kind := ""
	for i, s := range steps {
		if s.Kind == kind {
			s.Kind = ""
		} else {
			kind = s.Kind
		}
		text.Wrap(w, width, 23, fmt.Sprintf("%4d  %-16s ", i+1, s.Kind), s.Text)
		key, _, _ := strings.Cut(s.Text, " ")
		notes = append(notes, text.Note{Key: key, Text: s.Note})
	}
	text.Notes(w, width, notes)
}

// Set writes the limits that were set, as asked and as read back.
func Set(out io.Writer, width int, done []node.SetResult) error {
	var rows [][]string
	var notes []text.Note
	for _, d := range done {
		row := []string{d.Key, d.Asked, "from the next start", ""}
		if d.Note != "" {
			row = []string{d.Key, d.Asked, "stored", d.By}
			notes = append(notes, text.Note{Key: d.Key, Text: d.Note})
		} else if d.ReadBack != "" {
			row = []string{d.Key, d.Asked, "read back " + d.ReadBack, d.By}
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		return nil
	}
	if err := text.Rows(out, width, rows); err != nil {
		return err
	}
	text.Notes(out, width, notes)
	return nil
}
