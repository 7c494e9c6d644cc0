package report

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"berth/internal/bench/result"
	"berth/internal/sys/text"
)

// Fact is a name and a value.
type Fact struct{ Name, Value string }

// addFact appends a fact, unless its value is empty (unknown).
func addFact(all *[]Fact, name, value string) {
	if value != "" {
		*all = append(*all, Fact{Name: name, Value: value})
	}
}

// machineFacts returns the facts about the machine and the run.
func machineFacts(s *result.Study) []Fact {
	var all []Fact
	m := s.Machine
	cpu := m.CPU
	if m.Cores > 0 {
		cpu = strings.TrimPrefix(fmt.Sprintf("%s, %s", cpu, text.Count(m.Cores, "core")), ", ")
	}
	addFact(&all, "CPU", cpu)
	addFact(&all, "CPU governor", m.Governor)
	addFact(&all, "emulated by", s.Emulated)
	addFact(&all, "kernel", m.Kernel)
	for _, t := range s.Tools {
		addFact(&all, t.Name, t.Version)
	}
	addFact(&all, "Berth", s.Berth)
	if !s.Started.IsZero() {
		addFact(&all, "started", s.Started.UTC().Format("2006-01-02 15:04:05 UTC"))
		addFact(&all, "took", s.Ended.Sub(s.Started).Round(time.Second).String())
	}
	if len(s.Sessions) > 1 {
		addFact(&all, "sessions", fmt.Sprint(len(s.Sessions)))
	}
	resumed := 0
	for _, one := range s.Sessions {
		resumed += one.Resumed
	}
	if resumed > 0 {
		addFact(&all, "resumed", text.Count(resumed, "time"))
	}
	if s.Budget > 0 {
		addFact(&all, "budget", time.Duration(s.Budget*float64(time.Second)).Round(time.Second).String())
	}
	addFact(&all, "margin", percent(s.MarginPct)+" %")
	if s.Seed != 0 {
		addFact(&all, "seed", fmt.Sprint(s.Seed))
	}
	return all
}

// experimentFacts returns the facts about the design and the conditions of an experiment.
func experimentFacts(e *result.Experiment) []Fact {
	var all []Fact
	addFact(&all, "setting", e.Setting)
	d := e.Design
	if d.RunMillis > 0 {
		addFact(&all, "trial", fmt.Sprintf("%s after %s of warm-up", millis(d.RunMillis), millis(d.WarmMillis)))
	}
	addFact(&all, "published design", d.Published)
	pairs := text.Count(d.Pairs, "pair") + " a row and session"
	if d.WantedPairs > 0 {
		pairs += fmt.Sprintf("; the pilot of %s asked for %d", text.Count(d.PilotPairs, "pair"), d.WantedPairs)
	}
	if d.Short {
		pairs += fmt.Sprintf(". The time was too short for them: with this many, a margin of %s %% can be decided", figure(d.CouldPct))
	}
	addFact(&all, "design", pairs)
	if b := d.Batch; b != nil {
		text := fmt.Sprintf("%d trials of an arm in a row, of which the first %d do not count; the datum of a round is the mean of the others. Why: %s", b.Trials, b.Dropped, b.Why)
		if b.Rounds > 0 {
			text = fmt.Sprintf("MEASURED AGAIN after the pairs, which do not count: %d rounds of ", b.Rounds) + text
		}
		addFact(&all, "batches", text)
	}
	addFact(&all, "carry-over", carry(e))
	if s := d.Steady; s != nil {
		text := fmt.Sprintf("reached after %.0f s of writing (%s)", s.Seconds, s.Criterion)
		if !s.Attained {
			text = fmt.Sprintf("NOT reached in %.0f s of writing (%s)", s.Seconds, s.Criterion)
		}
		addFact(&all, "steady state", text)
	}
	for _, t := range e.Targets {
		addFact(&all, "measured on", target(t))
	}
	for _, a := range e.Arms {
		if a.Emulated != "" {
			addFact(&all, "CPU of "+a.Title, "emulated by "+a.Emulated)
		}
	}
	addFact(&all, "conditions", conditions(e))
	return all
}

// carry says whether a trial changes the result of the next (carry-over).
func carry(e *result.Experiment) string {
	if e.Design.Batch == nil || len(e.Carry) == 0 {
		return strings.TrimPrefix(result.CarryNote(e.Carry), "Carry-over from one trial to the next: ")
	}
	least := 1.0
	for _, c := range e.Carry {
		least = min(least, c.Adjusted)
	}
	text := "the first trials of a batch that count are not shown to differ from those after them"
	if least <= 0.05 {
		text = "CARRY-OVER LEFT: the first trials of a batch that count still differ from those after them"
	}
	return fmt.Sprintf("%s (smallest p = %s, corrected for %d arms)", text, figure(least), len(e.Carry))
}

func millis(ms int64) string { return (time.Duration(ms) * time.Millisecond).String() }

// target describes a disk: "file /srv/x of 1024 MiB; nvme0n1 (MODEL), scheduler none; xfs on /srv (noatime)".
func target(t result.DiskUsed) string {
	s := fmt.Sprintf("%s %s of %d MiB", t.Kind, t.Path, t.Size>>20)
	disk := t.Device
	if t.Model != "" {
		disk += " (" + t.Model + ")"
	}
	if disk != "" {
		if t.Turns() {
			disk += ", turning"
		}
		if t.Scheduler != "" {
			disk += ", scheduler " + t.Scheduler
		}
		if t.WriteCache != "" {
			disk += ", " + t.WriteCache
		}
		s += "; " + disk
	}
	if t.FileSystem != "" {
		s += "; " + t.FileSystem + " on " + t.Mount
		if t.MountOpts != "" {
			s += " (" + t.MountOpts + ")"
		}
	}
	return s
}

// conditions sums up disturbances during the trials: steal, other programs, heat, failures.
func conditions(e *result.Experiment) string {
	marked, all := disturbed(e)
	if all == 0 {
		return ""
	}
	var steal, other, hot float64
	throttled, failed, told, recorded := int64(0), 0, 0, false
	for _, t := range e.Trials {
		c := t.Conditions
		if t.Round <= 0 || c == nil {
			continue
		}
		recorded = true
		if c.StealPct != nil {
			told++
			steal = max(steal, *c.StealPct)
		}
		if c.OtherPct != nil { // of a machine's trials it is not known
			other = max(other, *c.OtherPct)
		}
		hot = max(hot, c.DiskTempC, c.CPUTempC)
		throttled += c.Throttled
		if t.Error != "" {
			failed++
		}
	}
	if !recorded {
		return ""
	}
	s := fmt.Sprintf("%s: %d disturbed, %d failed; ", text.Count(all, "trial"), marked, failed)
	if told == 0 {
		s += "CPU time of the hypervisor and of other programs: not measured, the trials are too short for the kernel's ticks"
	} else {
		s += fmt.Sprintf("most CPU time taken by the hypervisor %s %%, by other programs %s %%", figure(steal), figure(other))
	}
	if told > 0 && told < all {
		s += fmt.Sprintf(" (told of %s; the others are too short)", text.Count(told, "trial"))
	}
	if throttled > 0 {
		s += fmt.Sprintf("; throttled by heat %s", text.Count(int(throttled), "time"))
	}
	if hot > 0 {
		s += fmt.Sprintf("; hottest %.0f °C", hot)
	}
	return s
}

// flagMeanings explains each flag that occurs once.
func flagMeanings(e *result.Experiment) []Fact {
	var all []Fact
	seen := map[result.Flag]bool{}
	for _, r := range e.Rows {
		for _, f := range r.Flags {
			if !seen[f] {
				seen[f] = true
				addFact(&all, string(f), flagMeaning(f))
			}
		}
	}
	return all
}

// flagged names the rows with a flag.
func flagged(e *result.Experiment, flag string) []string {
	var rows []string
	for _, r := range e.Rows {
		if slices.Contains(r.Flags, result.Flag(flag)) {
			rows = append(rows, r.Name)
		}
	}
	return rows
}

func flagMeaning(f result.Flag) string {
	switch f {
	case result.SchedulerBound:
		return "more than 16 threads a core: the host itself waits for CPUs more than for the disk"
	case result.TrialError:
		return "a trial failed; its pair is left out, and the raw data have its message"
	case result.Disturbed:
		return "more than a tenth of the trials lie far from their median, or ran while something else used the machine; none was dropped"
	case result.ArmsDiffer:
		return "the host was called different from itself: do not trust this row"
	case result.Drifts:
		return "the last third of the host's trials differs from the first by more than a tenth: neighbours are still comparable, the medians less so"
	case result.EmulatedCPU:
		return "the CPU of this arm is emulated in one of the runs or both: its figures show that it works, not what it costs"
	case result.NotSteady:
		return "the disk had not reached its steady state"
	}
	return "see docs/bench-json.md"
}

// commands returns the command of each row. It is the same in every arm.
func commands(e *result.Experiment) []Fact {
	var all []Fact
	for _, r := range e.Rows {
		if len(r.Command) > 0 {
			addFact(&all, r.Name, shell(r.Command))
		}
	}
	return all
}

// shell quotes a command for a shell.
func shell(args []string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = a
		if a == "" || strings.Trim(a, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+./:,%@") != "" {
			quoted[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}
