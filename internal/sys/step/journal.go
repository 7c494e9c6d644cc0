package step

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"berth/internal/sys/fault"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/refuse"
)

// version is the format of the journal, the only one that is read.
const version = 3

// Phase is the phase of a journal. It decides what is done with the journal of a killed process.
type Phase string

// The phases. After a kill, a journal in Creating is rolled back, one in Removing is rolled forward.
const (
	Creating Phase = "creating"
	Up       Phase = "up"
	Removing Phase = "removing"
)

// Journal is the list of steps that were taken. It is kept in a file of one JSON record a line, each written before the host is
// changed. The file outlives the process that writes it; unless it Lasts, it need not outlive the boot, which ends everything in the
// kernel that it could name.
type Journal struct {
	Node  string
	Boot  string // boot id of the kernel whose state this is
	Phase Phase
	Set   *Set // a live change that was begun and not ended; its steps are the last ones

	// Lasts says that the journal must outlive a power cut, with the results of its steps: Sync returns when they are on the disk. Its
	// owner sets it, before the first step.
	Lasts bool
	made  []Lasting // steps done, and not yet known to be on the disk
	fresh bool      // the file's name may not be on the disk
	path  string
	file  stamp // the file as this process last left it
	size  int64 // bytes of whole records
	tail  mark  // where the records at the end begin that may be dropped: ended live changes and notes
	steps []entry

	notes    map[string]json.RawMessage
	reserved int64 // bytes of the file that have their place on the disk, as far as is known
}

type entry struct {
	step   Step
	done   bool // done, and its undo not begun
	undone bool
}

// record is one line of the file. Exactly one group of its fields is used.
type record struct {
	Berth int    `json:"berth,omitempty"` // the first line: the format, with Boot and Node
	Boot  string `json:"boot,omitempty"`
	Node  string `json:"node,omitempty"`

	Phase Phase `json:"phase,omitempty"`

	Begin  *int            `json:"begin,omitempty"` // number of a step
	Done   *int            `json:"done,omitempty"`
	Undo   *int            `json:"undo,omitempty"` // its undo was begun
	Undone *int            `json:"undone,omitempty"`
	Kind   string          `json:"kind,omitempty"`
	Step   json.RawMessage `json:"step,omitempty"` // of done: only if doing it changed a field

	Note map[string]json.RawMessage `json:"note,omitempty"`

	Set    *Set `json:"set,omitempty"`
	SetEnd bool `json:"set_end,omitempty"`
}

// Create starts a journal in phase Creating. It fails if the file exists.
func Create(path, node, boot string) (*Journal, error) {
	j := &Journal{Node: node, Boot: boot, Phase: Creating, path: path, fresh: true}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create journal: %w", err)
	}
	f.Close()
	if err := j.write(record{Berth: version, Boot: boot, Node: node}, record{Phase: Creating}); err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	fault.Point("journal created")
	return j, nil
}

// Open reads a journal. A last record that was torn by a kill or a full disk is left out: its step was not begun. The
// error satisfies errors.Is(err, fs.ErrNotExist) if there is no journal.
func Open(path string, kinds Kinds) (*Journal, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	j, err := parse(b, kinds.Decode)
	if err != nil {
		return nil, &refuse.Error{Kind: refuse.Failed, What: fmt.Sprintf("%s (the journal of what was changed) cannot be read: %v", path, err), Remedy: journalRemedy, Err: err}
	}
	j.path = path
	return j, nil
}

// decoder reads one step from its journal record; nil, if the reader does not want it.
type decoder func(kind string, data json.RawMessage) (Step, error)

func parse(b []byte, decode decoder) (*Journal, error) {
	j := &Journal{Phase: Creating}
	for n := 1; ; n++ {
		line, rest, whole := bytes.Cut(b, []byte("\n"))
		if !whole || bytes.IndexByte(line, 0) >= 0 { // torn, or lost in a power cut: the next record is written over it
			return j, nil
		}
		var r record
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("line %d: %s", n, jsonfile.Wrong(line, err))
		}
		if err := j.fold(n, r, decode); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		j.size += int64(len(line)) + 1
		b = rest
	}
}

// fold applies one record to the journal's state.
func (j *Journal) fold(line int, r record, decode decoder) error {
	j.markTail(r)
	switch {
	case line == 1:
		if r.Berth != version {
			return fmt.Errorf("format %d, this berth reads %d", r.Berth, version)
		}
		j.Node, j.Boot = r.Node, r.Boot
	case r.Phase != "":
		j.Phase = r.Phase
	case r.Begin != nil:
		if *r.Begin != len(j.steps) {
			return fmt.Errorf("step %d begun as number %d", *r.Begin, len(j.steps))
		}
		s, err := decode(r.Kind, r.Step)
		if err != nil {
			return err
		}
		j.steps = append(j.steps, entry{step: s})
	case r.Done != nil:
		e, err := j.entry(*r.Done)
		if err != nil {
			return err
		}
		if r.Step != nil && e.step != nil {
			if e.step, err = decode(e.step.Kind(), r.Step); err != nil {
				return err
			}
		}
		e.done = true
	case r.Undo != nil:
		e, err := j.entry(*r.Undo)
		if err != nil {
			return err
		}
		e.done = false
	case r.Undone != nil:
		e, err := j.entry(*r.Undone)
		if err != nil {
			return err
		}
		e.undone = true
	case r.Note != nil:
		j.take(r.Note)
	case r.Set != nil:
		j.Set = r.Set
	case r.SetEnd:
		j.endSet()
	default:
		return errors.New("a record that says nothing")
	}
	return nil
}

func (j *Journal) entry(i int) (*entry, error) {
	if i < 0 || i >= len(j.steps) {
		return nil, fmt.Errorf("no step %d was begun", i)
	}
	return &j.steps[i], nil
}

// Steps returns the steps begun and not undone, in order.
func (j *Journal) Steps() []Step {
	var all []Step
	for _, e := range j.steps {
		if !e.undone {
			all = append(all, e.step)
		}
	}
	return all
}

// SetPhase changes the phase.
func (j *Journal) SetPhase(p Phase) error {
	err := j.write(record{Phase: p})
	if err == nil {
		err = j.Sync()
	}
	if err != nil {
		return err
	}
	j.Phase = p
	fault.Point("phase " + string(p) + " of " + j.path)
	return nil
}

// Do prepares, does and verifies one step, and journals it before and after.
func (j *Journal) Do(ctx context.Context, s Step) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if p, ok := s.(Preparer); ok {
		if err := p.Prepare(ctx); err != nil {
			return err
		}
	}
	i := len(j.steps)
	begun, err := marshal(s)
	if err == nil {
		err = j.write(record{Begin: &i, Kind: s.Kind(), Step: begun})
	}
	if err != nil {
		return err
	}
	j.steps = append(j.steps, entry{step: s})
	return j.carryOut(ctx, i, begun, "")
}

// carryOut does and verifies step i, whose record is begun, and journals that it is done. again is part of the names of the
// fault points.
func (j *Journal) carryOut(ctx context.Context, i int, begun json.RawMessage, again string) error {
	s := j.steps[i].step
	if err := j.announce(s); err != nil {
		return err
	}
	fault.Point("begun " + again + s.Kind())
	if err := s.Do(ctx); err != nil {
		return err
	}
	fault.Point("did " + again + s.Kind())
	if err := s.Verify(ctx); err != nil {
		return err
	}
	done, err := marshal(s)
	if err != nil {
		return err
	}
	if bytes.Equal(done, begun) {
		done = nil
	}
	if err := j.write(record{Done: &i, Step: done}); err != nil {
		return err
	}
	j.steps[i].done = true
	if l, ok := s.(Lasting); ok && j.Lasts {
		j.made = append(j.made, l)
	}
	fault.Point("done " + again + s.Kind())
	return nil
}

// Undo undoes the steps for which drop returns true, last first, and goes on after a failure. It works on a full disk too:
// a record that cannot be written only means that a step is undone twice.
func (j *Journal) Undo(ctx context.Context, drop func(Step) bool) error {
	var errs []error
	for i, e := range slices.Backward(j.steps) {
		if e.undone || !drop(e.step) {
			continue
		}
		if j.write(record{Undo: &i}) == nil && j.Phase == Up { // else the disk knows that all is to be undone
			_ = j.announce(e.step)
		}
		j.steps[i].done = false
		if err := e.step.Undo(ctx); err != nil {
			errs = append(errs, fmt.Errorf("undo %s %s: %w", e.step.Kind(), e.step, err))
			continue
		}
		fault.Point("undid " + e.step.Kind())
		j.steps[i].undone = true
		_ = j.write(record{Undone: &i})
	}
	return errors.Join(errs...)
}

// Unfinished reports whether a step or its undo was begun and not ended, as after a kill.
func (j *Journal) Unfinished() bool {
	return slices.ContainsFunc(j.steps, func(e entry) bool { return !e.done && !e.undone })
}

// UndoUnfinished undoes those steps, so that each step is there whole or not at all.
func (j *Journal) UndoUnfinished(ctx context.Context) error {
	half := map[Step]bool{}
	for _, e := range j.steps {
		half[e.step] = !e.done
	}
	return j.Undo(ctx, func(s Step) bool { return half[s] })
}

// Close undoes everything and removes the journal. If something cannot be undone, the journal stays, in phase Removing.
func (j *Journal) Close(ctx context.Context) error {
	if j.Phase == Up {
		// This fails on a full disk, which does no harm: a node in phase Up whose init is gone is removed all the same.
		_ = j.SetPhase(Removing)
	}
	if err := j.Undo(ctx, func(Step) bool { return true }); err != nil {
		return err
	}
	if err := os.Remove(j.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove journal: %w", err)
	}
	fault.Point("journal removed")
	return nil
}

func marshal(s Step) (json.RawMessage, error) {
	b, err := jsonfile.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("journal %s: %w", s.Kind(), err)
	}
	return b, nil
}

// write appends records with one write call, over a torn record if there is one: that has no end of line, and what is left
// of it is a torn record again.
func (j *Journal) write(records ...record) error {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	for _, r := range records {
		if err := enc.Encode(r); err != nil {
			return fmt.Errorf("journal %s: %w", j.path, err)
		}
	}
	if j.size == 0 && records[0].Berth == 0 {
		return fmt.Errorf("write journal %s: its first record is lost", j.path)
	}
	f, err := os.OpenFile(j.path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	defer f.Close()
	if err := j.reserve(f, int64(buf.Len())); err != nil && announces(records) {
		return fmt.Errorf("write journal %s: %w", j.path, err)
	}
	if fi, err := f.Stat(); err == nil && fi.Size() > j.size+int64(buf.Len()) { // lines behind one that was lost in a power cut
		_ = f.Truncate(j.size)
		j.reserved = 0
	}
	if _, err := f.WriteAt(buf.Bytes(), j.size); err != nil {
		_ = f.Truncate(j.size) // some of the records may be whole
		j.reserved = 0
		return fmt.Errorf("write journal %s: %w", j.path, err)
	}
	for _, r := range records {
		j.markTail(r)
	}
	j.size += int64(buf.Len())
	if fi, err := f.Stat(); err == nil {
		j.file = stampOf(fi)
	}
	return nil
}

// journalRemedy says what to do with a damaged journal: only what its whole lines name can be undone by berth.
const journalRemedy = "the lines before are whole: put it back from a copy, or cut it off there (head -n) and berth repair undoes what they name"
