// Package audit writes and reads the agent's audit: a line of JSON for each act, with who asked, from where, for what, and what
// came of it.
//
// Acts that change something are kept by their age, and are sent to the system's log too. Reads, and acts that were refused before
// they began, go to a second file. Each caller has a share of that file, so that no caller can push out the lines of others.
package audit

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"berth/internal/spec/roles"
)

// Line is one act.
type Line struct {
	Time   time.Time  `json:"time"`
	Who    string     `json:"who"`
	Role   roles.Role `json:"role"`
	Via    string     `json:"via"`            // unix | tls
	From   string     `json:"from,omitempty"` // the address, or the process and its user
	Act    roles.Act  `json:"act"`
	On     string     `json:"on,omitempty"`     // a node, a host, an image
	Detail string     `json:"detail,omitempty"` // the template, the words of a command
	Result string     `json:"result"`           // begins | done | refused | failed
	Exit   *int       `json:"exit,omitempty"`   // of a command
	Error  string     `json:"error,omitempty"`

	Dropped int  `json:"dropped,omitempty"` // for act Dropped: lines of this caller above its share
	Begun   bool `json:"-"`                 // it has a line with Begins
}

// The results of an act. One that changes something has a line before it, whose result is Begins: it stays alone if the agent is
// killed.
const (
	Begins  = "begins"
	Done    = "done"
	Refused = "refused"
	Failed  = "failed"
	Dropped = "dropped" // lines of reads and refusals, not kept
)

// Log is the two files, and the system's log. Its methods may be called at the same time: a reader does not wait for the disk, and
// no method waits for a reader.
type Log struct {
	acts, reads kept
	shares      shares
	actShares   shares
	system      system
}

// Open opens the log whose acts are at path, for appending, and creates it, for root alone. Reads and refusals are in the file beside it
// that Reads names. Only one process may have it open. A line that a killed process began is ended.
func Open(path string) (*Log, error) { return open(path, mostBytes) }

// Reads returns the path of the file of reads and refusals beside the file of acts at path.
func Reads(path string) string { return strings.TrimSuffix(path, ".log") + "-reads.log" }

func open(path string, most int64) (*Log, error) {
	l := &Log{acts: kept{path: path, most: most, turned: byAge}, reads: kept{path: Reads(path), most: most, turned: one}, shares: newShares(share, period), actShares: newShares(actShare, actPeriod)}
	if err := l.acts.open(); err != nil {
		return nil, err
	}
	if err := l.reads.open(); err != nil {
		_ = l.acts.close()
		return nil, err
	}
	return l, nil
}

// Mirror tells acts, without their words and errors, to the system's log from now on: journald or syslogd, at this socket (SystemLog). If
// there is no such socket, nothing is sent.
func (l *Log) Mirror(socket string) { l.system.at = socket }

// Add writes a line and returns when the disk has it, or for a read or a refusal, when the kernel has it, or it is counted as one above
// the caller's share. Texts that users gave cannot end a line: JSON writes their control characters as \u00XX, and long ones are cut.
func (l *Log) Add(line Line) error {
	text, err := encode(&line)
	if err != nil {
		return err
	}
	if !line.changes() {
		if !l.shares.take(line, len(text), l.tellDropped) {
			return nil
		}
		return l.reads.add(text, false)
	}
	if line.Role == roles.Operator {
		l.actShares.take(line, len(text), func([]Line) {}) // it is written all the same
	}
	err = l.acts.add(text, true)
	if err != nil && line.Result == Begins { // it is not begun
		return err
	}
	line.Detail, line.Error = "", "" // others than root read the system's log, and words may hold secrets
	if text, err := encode(&line); err == nil {
		l.system.tell(text)
	}
	return err
}

// changes reports whether a line is for an act that changes something and has begun: an act that was refused, or whose caller left before
// its turn, changed nothing.
func (l *Line) changes() bool {
	return !reads(l.Act) && (l.Begun || l.Result != Refused && l.Result != Failed)
}

// tellDropped reports the callers who had more lines than their share.
func (l *Log) tellDropped(all []Line) {
	for _, line := range all {
		text, err := encode(&line)
		if err == nil {
			err = l.reads.add(text, false)
		}
		lost(line, err)
	}
}

// Close closes the log.
func (l *Log) Close() error {
	l.shares.end(l.tellDropped)
	l.actShares.end(func([]Line) {})
	err := l.acts.close()
	if other := l.reads.close(); err == nil {
		err = other
	}
	return err
}

func encode(line *Line) ([]byte, error) {
	if line.Time.IsZero() {
		line.Time = time.Now()
	}
	line.Time = line.Time.UTC()
	for _, text := range []*string{&line.Who, &line.From, &line.On, &line.Detail, &line.Error} {
		*text = cut(*text)
	}
	line.Role, line.Act = roles.Role(cut(string(line.Role))), roles.Act(cut(string(line.Act)))
	text, err := json.Marshal(line)
	if err != nil {
		return nil, fmt.Errorf("write audit log: %w", err)
	}
	return append(text, '\n'), nil
}

// mostField is the most bytes of a text that a user gave, as JSON has it.
const mostField = 1024

// cut returns valid text that JSON writes in at most mostField bytes, without characters that could turn or hide what a terminal shows of
// the line.
func cut(text string) string {
	text = strings.Map(func(c rune) rune {
		switch {
		case c >= 0x80 && c < 0xa0, c == 0x061c, c >= 0x200b && c <= 0x200f, c >= 0x2028 && c <= 0x202e, c >= 0x2060 && c <= 0x2069, c == 0xfeff:
			return utf8.RuneError
		}
		return c
	}, strings.ToValidUTF8(text[:min(len(text), mostField+utf8.UTFMax)], string(utf8.RuneError)))
	length := 0
	for i, c := range text {
		switch {
		case c < ' ', c == 0x7f, c == '<', c == '>', c == '&':
			length += len(`\u0000`)
		case c == '"', c == '\\':
			length += len(`\"`)
		default:
			length += utf8.RuneLen(c)
		}
		if length > mostField {
			return text[:i] + "…"
		}
	}
	return text
}
