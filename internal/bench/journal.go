package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"berth/internal/bench/bed"
	"berth/internal/bench/result"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/lock"
	"berth/internal/sys/refuse"
)

// JournalFormat names the journal of a run and its version; docs/bench-json.md describes it.
const JournalFormat = "berth-bench-journal/2"

// journal is the file to which a run appends one JSON document per line. A process that is killed can only leave an incomplete last
// line: the kernel has each line for which write has returned. The file is locked while a run uses it.
type journal struct {
	f     *os.File
	whole int64    // bytes of whole lines
	torn  bool     // an incomplete line may follow
	lines []record // that were there when it was opened
}

// record is one line; one of its fields is set.
type record struct {
	Start      *startRecord      `json:"start,omitempty"` // the first line
	Leg        *legRecord        `json:"leg,omitempty"`   // the run went on after it
	Experiment *experimentRecord `json:"experiment,omitempty"`
	Trial      *trialRecord      `json:"trial,omitempty"`
	End        *endRecord        `json:"end,omitempty"`
}

type startRecord struct {
	Format  string       `json:"format"`
	Options bed.Options  `json:"options"`
	Study   result.Study `json:"study"` // without experiments
}

type legRecord struct {
	Session result.Session `json:"session"`
}

// experimentRecord is written before the first trial of an experiment, and again when the number of pairs is fixed.
type experimentRecord struct {
	Session    int               `json:"session"`
	Tool       *result.Tool      `json:"tool,omitempty"`
	Experiment result.Experiment `json:"experiment"` // without trials
}

type trialRecord struct {
	Experiment string `json:"experiment"`
	result.Trial
}

// endRecord says that an experiment needs no more trials.
type endRecord struct {
	Session    int    `json:"session"`
	Experiment string `json:"experiment"`
	Error      string `json:"error,omitempty"` // why it ended early
}

// ErrThere is why a run does not begin: the journal is one of a run before.
var ErrThere = errors.New("exists")

// newJournal makes the file, which must not be there yet.
func newJournal(path string, start startRecord) (*journal, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o644)
	if errors.Is(err, os.ErrExist) {
		return nil, refuse.Busyf("%s %w: go on with it by --resume, or write to another place", path, ErrThere)
	}
	if err != nil {
		return nil, fmt.Errorf("make the journal: %w", err)
	}
	j := &journal{f: f}
	if err := j.lock(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if err := j.add(record{Start: &start}); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return j, nil
}

// openJournal opens a journal to go on with it. A torn last line is cut off.
func openJournal(path string) (*journal, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, refuse.NotFoundf("there is no run to go on with: %s is not there", path)
	}
	if err != nil {
		return nil, fmt.Errorf("open the journal: %w", err)
	}
	j := &journal{f: f}
	if err := j.lock(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if err := j.read(path); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return j, nil
}

func (j *journal) lock() error {
	free, err := lock.Try(j.f)
	if err == nil && !free {
		err = refuse.Busyf("another berth bench run is at work on %s", j.f.Name())
	}
	return err
}

func (j *journal) read(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the journal: %w", err)
	}
	whole := text[:bytes.LastIndexByte(text, '\n')+1]
	if j.lines, err = readJournal(whole); err != nil {
		return refuse.Invalidf("%s: %w", path, err)
	}
	j.whole, j.torn = int64(len(whole)), len(whole) < len(text)
	return j.mend()
}

// mend cuts off an incomplete line, so that the next record begins a new line.
func (j *journal) mend() error {
	if !j.torn {
		return nil
	}
	if err := j.f.Truncate(j.whole); err != nil {
		return fmt.Errorf("cut off the journal's torn line: %w", err)
	}
	j.torn = false
	return nil
}

func readJournal(text []byte) ([]record, error) {
	var all []record
	n := 0
	for line := range bytes.Lines(text) {
		n++
		var r record
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("line %d is damaged: %s", n, jsonfile.Wrong(line, err))
		}
		all = append(all, r)
	}
	switch {
	case len(all) == 0 || all[0].Start == nil:
		return nil, errors.New("it is not the journal of a berth bench run, or that was killed before it began")
	case all[0].Start.Format != JournalFormat:
		return nil, fmt.Errorf("its format is %q; this berth knows %s", all[0].Start.Format, JournalFormat)
	}
	return all, nil
}

// add appends a line. If the disk becomes full in the middle, add cuts the line off again: there may be room for the next record, which
// must begin a new line.
func (j *journal) add(r record) error {
	if j.f == nil {
		return nil // a run that cannot be resumed
	}
	if err := j.mend(); err != nil {
		return err
	}
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	line = append(line, '\n')
	if _, err := j.f.Write(line); err != nil {
		j.torn = true
		return errors.Join(fmt.Errorf("write the journal: %w", err), j.mend())
	}
	j.whole += int64(len(line))
	return nil
}

// sync writes the journal to the disk. It is called between rounds, so that it does not disturb a trial.
func (j *journal) sync() {
	if j.f != nil {
		_ = j.f.Sync()
	}
}

// study returns what the lines say: the options, the study with its trials, and the experiments that have ended.
func (j *journal) study() (bed.Options, *result.Study, []endRecord) {
	start := j.lines[0].Start
	s := start.Study
	var ended []endRecord
	for _, r := range j.lines[1:] {
		switch {
		case r.Leg != nil:
			s.SetSession(r.Leg.Session)
		case r.Experiment != nil:
			s.Begin(r.Experiment.Tool, r.Experiment.Experiment)
		case r.Trial != nil:
			if e := s.Experiment(r.Trial.Experiment); e != nil {
				e.Trials = append(e.Trials, r.Trial.Trial)
			}
		case r.End != nil && r.End.Error == "": // one that broke is tried again: what broke it may have been mended
			ended = append(ended, *r.End)
		}
	}
	return start.Options, &s, ended
}
