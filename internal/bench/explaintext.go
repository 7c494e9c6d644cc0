package bench

import (
	"fmt"
	"io"
	"strings"
)

const explainLine = "%-18s %-8s %-20s %-10s %-10s\n"

// Text writes the report for a person: no line is wider than 80 columns.
func (x *Explained) Text(w io.Writer) error {
	var b strings.Builder
	emulatedFirst(&b, x.Machine)
	if x.Partial {
		b.WriteString("PARTIAL: the run was interrupted\n")
	}
	wrap(&b, "", x.Answer)
	wrap(&b, "", fmt.Sprintf("%s; %d pairs planned of %d ms; Linux %s, %d cores, %s; seed %d", orDash(x.Machine.Device), x.Pairs, x.RunMillis,
		x.Machine.Kernel, x.Machine.Cores, x.Fio, x.Seed))
	b.WriteString("\n")
	fmt.Fprintf(&b, explainLine, "ingredient", "tried", "% carried (95 %)", "alone", "corrected")
	for _, r := range x.Suspects {
		alone := Undecided
		if r.Loss != nil {
			alone = r.Loss.Verdict
		}
		fmt.Fprintf(&b, explainLine, r.Name, r.Kind, withInterval(r.Loss), carries(alone), carries(r.Corrected))
	}
	b.WriteString("\n")
	for _, r := range x.Suspects {
		line := r.Name + ": " + r.What + "."
		if r.Host != nil {
			line += fmt.Sprintf(" It costs the host itself %s %%.", withInterval(r.Host))
		}
		wrap(&b, "  ", line)
	}
	b.WriteString("\n")
	wrap(&b, "", fmt.Sprintf("`carries`: a loss that the ingredient alone brings with it; `none`: shown to be less than %s %% either way; `helps`: faster "+
		"with it; `?`: this run cannot tell. `corrected`: as if all lines were one question (Holm, 5 %%). docs/METHOD.md explains.", short(x.MarginPct)))
	if x.TempC != nil {
		wrap(&b, "- ", fmt.Sprintf("the disk's temperature: %.0f degrees before, %.0f after", x.TempC[0], x.TempC[1]))
	}
	for _, f := range x.Row.Flags {
		wrap(&b, "! ", f.sentence(x.Row.Jobs, x.Machine.Cores))
	}
	if s := CarryNote(x.Carry); s != "" {
		wrap(&b, "", s)
	}
	for _, n := range x.Notes {
		wrap(&b, "- ", n)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("print the report: %w", err)
	}
	return nil
}

// carries says a verdict about an ingredient in a word.
func carries(v Verdict) string {
	switch v {
	case Worse:
		return "carries"
	case Better:
		return "helps"
	case Equivalent:
		return "none"
	}
	return "?"
}
