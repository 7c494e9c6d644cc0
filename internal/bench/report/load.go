// Package report shows a finished benchmark as a page, as a table for spreadsheets and as text for a terminal.
package report

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"berth/internal/bench/result"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/refuse"
)

// Report is a finished benchmark.
type Report struct {
	Study *result.Study
	Raw   []byte // the JSON as it was written: attached to the page
	Name  string // the file name of Raw, without extension
}

// Of returns the report of a study that was just measured. name is the file name of its JSON, without extension.
func Of(s *result.Study, name string) (*Report, error) {
	var b bytes.Buffer
	if err := s.JSON(&b); err != nil {
		return nil, fmt.Errorf("write the study as JSON: %w", err)
	}
	return &Report{Study: s, Raw: b.Bytes(), Name: name}, nil
}

// mostBytes bounds the size of a report that is read. A run of a day has some tens of megabytes.
const mostBytes = 1 << 30

// Read reads the JSON of berth bench or of docs/evidence, plain or compressed by gzip as in the attachment of a page. It refuses
// unknown formats (exit code 2).
func Read(in io.Reader, name string) (*Report, error) {
	raw, err := io.ReadAll(io.LimitReader(in, mostBytes))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if bytes.HasPrefix(raw, []byte{0x1f, 0x8b}) {
		if raw, err = Unzip(raw); err != nil {
			return nil, refuse.Invalidf("not a whole gzip file: it was cut off, or is damaged")
		}
	}
	study, err := parse(raw)
	if err != nil {
		return nil, refuse.Invalidf("%w; berth bench report shows what berth bench wrote with --json", err)
	}
	return &Report{Study: study, Raw: raw, Name: name}, nil
}

// Open reads the report in a file (see Read). An error names the file.
func Open(path string) (*Report, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, refuse.NotFoundf("there is no report %s", path)
	}
	if err != nil {
		return nil, fmt.Errorf("read a report: %w", err)
	}
	defer f.Close()
	name := strings.TrimSuffix(filepath.Base(path), ".gz")
	r, err := Read(f, strings.TrimSuffix(name, filepath.Ext(name)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// Unzip is the reverse of Zip.
func Unzip(raw []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(z, mostBytes))
}

// parse reads the study of a document: the document itself, or its field "study". Tests that keep data of their own put their
// result there.
func parse(raw []byte) (*result.Study, error) {
	var head struct {
		Format string          `json:"format"`
		Study  json.RawMessage `json:"study"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, fmt.Errorf("not the JSON of berth bench: %s", jsonfile.Wrong(raw, err))
	}
	switch {
	case head.Study != nil:
		return parse(head.Study)
	case head.Format == "":
		return nil, errors.New("not the JSON of berth bench: it has no format")
	case head.Format != result.Format:
		return nil, fmt.Errorf("its format is %q; this berth shows %s", head.Format, result.Format)
	}
	var s result.Study
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, fmt.Errorf("not a whole report of berth bench: %s", jsonfile.Wrong(raw, err))
	}
	return &s, nil
}
