package step

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"syscall"

	"berth/internal/sys/fault"
	"berth/internal/sys/file"
	"berth/internal/sys/jsonfile"
)

// Note records a value under a name, in place of an earlier one: it is for facts that matter later and are no steps, such
// as the node's owner or how it ended. Notes fit on a full disk: there is always room for some.
func (j *Journal) Note(name string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("journal note %s: %w", name, err)
	}
	note := map[string]json.RawMessage{name: text}
	if err := j.write(record{Note: note}); err != nil {
		return err
	}
	j.take(note)
	fault.Point("noted " + name)
	j.shorten()
	return nil
}

// Noted reads the value noted last under a name into value. It reports whether there is one.
func (j *Journal) Noted(name string, value any) (bool, error) {
	text, ok := j.notes[name]
	if !ok {
		return false, nil
	}
	if err := json.Unmarshal(text, value); err != nil {
		return false, fmt.Errorf("note %s in the journal of %s: %s", name, j.Node, jsonfile.Wrong(text, err))
	}
	return true, nil
}

func (j *Journal) take(note map[string]json.RawMessage) {
	if j.notes == nil {
		j.notes = map[string]json.RawMessage{}
	}
	maps.Copy(j.notes, note)
}

// kept is how many bytes are reserved on the disk behind the records of a journal, for notes, phases and undos: they must be
// written on a full disk too.
const kept = 4 << 10

// reserve makes room for n more bytes, and for kept bytes behind them. A file system that cannot reserve is no error.
func (j *Journal) reserve(f *os.File, n int64) error {
	if j.size+n+kept <= j.reserved {
		return nil
	}
	const (
		block    = 4 << 10 // so that not every write reserves
		keepSize = 1       // FALLOC_FL_KEEP_SIZE
	)
	size := (j.size + n + kept + block - 1) / block * block
	err := syscall.Fallocate(int(f.Fd()), keepSize, 0, size)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return err
	}
	j.reserved = size
	return nil
}

// announces reports whether one of the records announces a change of the host. Without the reserved bytes behind it
// nothing is begun.
func announces(records []record) bool {
	for _, r := range records {
		if r.Berth != 0 || r.Begin != nil || r.Set != nil {
			return true
		}
	}
	return false
}

// mark is a position in a journal: the bytes and steps before it. The zero value is no position.
type mark struct {
	size  int64
	steps int
}

// longest is how many bytes of ended live changes and notes a journal keeps: some hundred of them, still read in a
// millisecond.
const longest = 64 << 10

// markTail is called before a record is added. It keeps tail at the first of the live changes and notes that end the
// journal.
func (j *Journal) markTail(r record) {
	drops := r.Set != nil || r.Note != nil
	switch {
	case drops && j.tail == mark{}:
		j.tail = mark{j.size, len(j.steps)}
	case !drops && j.Set == nil:
		j.tail = mark{}
	}
}

// shorten drops the records of ended live changes and of notes at the end of a long journal, and writes the notes that hold
// anew. It replaces the file instead of truncating it, because another process may be reading it. An error only means
// that the journal stays long.
func (j *Journal) shorten() {
	if j.Set != nil || j.tail == (mark{}) || j.size-j.tail.size <= longest {
		return
	}
	short := *j
	short.path, short.size, short.steps, short.reserved = j.path+".tmp", j.tail.size, j.steps[:j.tail.steps:j.tail.steps], 0
	short.tail = mark{}
	err := short.copyFrom(j.path)
	if err == nil && len(j.notes) > 0 {
		err = short.write(record{Note: j.notes})
	}
	if err == nil {
		short.fresh = false
		err = short.syncFile() // before it has the name: a power cut would leave neither
	}
	if err == nil {
		fault.Point("journal written anew")
		err = os.Rename(short.path, j.path)
	}
	if err != nil {
		_ = os.Remove(short.path)
		return
	}
	short.path, short.fresh = j.path, true
	*j = short
}

// copyFrom makes the file of a journal of the first records in another file.
func (j *Journal) copyFrom(path string) error {
	src, err := os.Open(path)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := file.Fresh(j.path, 0o600)
	if err != nil {
		return err
	}
	if _, err = io.CopyN(dst, src, j.size); err == nil {
		err = j.reserve(dst, 0)
	}
	return errors.Join(err, dst.Close())
}
