// Package report shows a finished benchmark as a page, as a table for spreadsheets and as text for a terminal.
package report

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"berth/internal/bench"
	"berth/internal/jsonfile"
	"berth/internal/refuse"
)

// Report is a finished benchmark.
type Report struct {
	Study *bench.Study
	Raw   []byte // the JSON as it was written: attached to the page
	Name  string // the file name of Raw, without extension
	Title string // of the page; "" for a default
}

// Of returns the report of a study that was just measured. name is the file name of its JSON, without extension.
func Of(s *bench.Study, name string) (*Report, error) {
	var b bytes.Buffer
	if err := s.JSON(&b); err != nil {
		return nil, fmt.Errorf("write the study as JSON: %w", err)
	}
	return &Report{Study: s, Raw: b.Bytes(), Name: name}, nil
}

// mostBytes bounds the size of a report that is read. A run of a day has some tens of megabytes.
const mostBytes = 1 << 30

// Read reads the JSON of any berth bench command or of docs/evidence, plain or compressed by gzip as in the attachment of
// a page. It refuses unknown formats (exit code 2).
func Read(in io.Reader, name string) (*Report, error) {
	raw, err := io.ReadAll(io.LimitReader(in, mostBytes))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if bytes.HasPrefix(raw, []byte{0x1f, 0x8b}) {
		if raw, err = unzip(raw); err != nil {
			return nil, refuse.Invalidf("not a whole gzip file: it was cut off, or is damaged")
		}
	}
	study, title, err := parse(raw)
	if err != nil {
		return nil, refuse.Invalidf("%w; berth bench report shows what berth bench wrote with --json", err)
	}
	return &Report{Study: study, Raw: raw, Name: name, Title: title}, nil
}

func unzip(raw []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(z, mostBytes))
}

// parse converts a document of any known format to a study. title is the title of the page; "" for the default.
func parse(raw []byte) (s *bench.Study, title string, err error) {
	var head struct {
		Format string `json:"format"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, "", fmt.Errorf("not the JSON of berth bench: %s", jsonfile.Wrong(raw, err))
	}
	if strings.HasPrefix(head.Format, headlineFormat) {
		s, err = as(raw, ofHeadline)
		return s, "Berth: a storage service beside batch nodes", err
	}
	if strings.HasPrefix(head.Format, sharesFormat) {
		s, err = as(raw, ofShares)
		return s, "Berth: what nodes get of a disk", err
	}
	switch head.Format {
	case bench.StudyFormat:
		s, err = as(raw, ofStudy)
	case bench.ExplainFormat:
		s, err = as(raw, ofExplain)
		title = "Berth benchmark: which ingredient of a node costs what"
	case bench.KnownFormat:
		s, err = as(raw, ofKnown)
	case bench.StartFormat:
		s, err = as(raw, ofStart)
		title = "Berth benchmark: how fast nodes start"
	case bench.Format:
		s, err = as(raw, ofDisk)
	case bench.NetFormat:
		s, err = as(raw, ofNet)
	case bench.NullFormat:
		s, err = as(raw, ofNull)
	case bench.IsolationFormat:
		s, err = as(raw, ofIsolation)
		title = "Berth benchmark: what nodes get, and what they leave to others"
	case "":
		err = fmt.Errorf("not the JSON of berth bench: it has no format")
	default:
		err = fmt.Errorf("its format is %q; this berth shows %s, %s, %s, %s, %s, %s, %s, %s, %s1 and %s1",
			head.Format, bench.StudyFormat, bench.Format, bench.NetFormat, bench.IsolationFormat, bench.ExplainFormat, bench.NullFormat, bench.KnownFormat,
			bench.StartFormat, headlineFormat, sharesFormat)
	}
	return s, title, err
}

// headlineFormat begins the format name of docs/evidence/headline*.json.
const headlineFormat = "berth-headline/"

// ofStudy removes the CPU figures of trials that are too short to measure them: some documents say 0.
func ofStudy(s *bench.Study) *bench.Study {
	for i := range s.Experiments {
		for j := range s.Experiments[i].Trials {
			s.Experiments[i].Trials[j].Untell(s.Machine.Cores)
		}
	}
	return s
}

// as reads a document of type T and converts it to a study.
func as[T any](raw []byte, convert func(*T) *bench.Study) (*bench.Study, error) {
	var doc T
	if err := json.Unmarshal(raw, &doc); err != nil {
		return nil, fmt.Errorf("not a whole report of berth bench: %s", jsonfile.Wrong(raw, err))
	}
	return convert(&doc), nil
}
