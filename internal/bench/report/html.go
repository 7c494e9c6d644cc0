package report

import (
	"bytes"
	"compress/gzip"
	_ "embed" // the page
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"strings"

	"berth/internal/bench/result"
)

//go:embed page.html
var pageTemplate string

//go:embed page.css
var pageStyle string

// page is the data of the template.
type page struct {
	Title    string
	Style    template.CSS
	Answer   Answer
	Overview Table
	Facts    []Fact
	Sections []section
	Notes    []string
	Files    []file
	TooLarge bool
	Margin   string
	Against  string // the references of the penalties; "" if it is only the host
}

// section is an experiment in the page.
type section struct {
	ID       string
	About    result.About
	Skipped  string
	Facts    []Fact
	Verdicts Table
	Tables   []Table
	Figures  []Figure
	Flags    []Fact
	Commands []Fact
	Nodes    []Fact
	Notes    []string
}

// file is attached to the page.
type file struct {
	Name string
	URL  template.URL
	Size string
}

// mostAttached is the greatest length of the data URL of an attachment. Browsers refuse longer ones (2 MiB).
const mostAttached = 2 << 20

// HTML writes the page: one file that needs no network and no script.
func (r *Report) HTML(w io.Writer) error {
	t, err := template.New("page").Parse(pageTemplate)
	if err != nil {
		return fmt.Errorf("read the template of the page: %w", err)
	}
	p := page{
		Title: r.title(), Style: template.CSS(pageStyle), // ours, not the user's
		Answer: r.Answer(), Overview: overview(r.Study), Facts: machineFacts(r.Study), Margin: percent(r.Study.MarginPct), Notes: r.Study.Notes,
	}
	if p.Against = against(r.Study); p.Against == "the host" {
		p.Against = ""
	}
	for i := range r.Study.Experiments {
		p.Sections = append(p.Sections, makeSection(&r.Study.Experiments[i], r.Study.MarginPct))
	}
	if p.Files, p.TooLarge, err = r.attached(); err != nil {
		return err
	}
	var b strings.Builder
	if err := t.Execute(&b, p); err != nil {
		return fmt.Errorf("make the page: %w", err)
	}
	if _, err := io.WriteString(w, printable(b.String())); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

func (r *Report) title() string {
	if r.Study.Title != "" {
		return r.Study.Title
	}
	for i := range r.Study.Experiments {
		if hasNode(&r.Study.Experiments[i]) {
			return "Berth benchmark: what a node costs"
		}
	}
	return "Berth benchmark: the host against itself"
}

func makeSection(e *result.Experiment, marginPct float64) section {
	s := section{ID: slug(e.Name), About: e.About, Skipped: e.Skipped, Facts: experimentFacts(e)}
	s.Notes = e.Notes
	if d := disagree(e); d != "" {
		s.Notes = append([]string{d}, e.Notes...)
	}
	if e.Skipped != "" || len(e.Rows) == 0 {
		return s
	}
	s.Verdicts, s.Tables, s.Figures = verdictTable(e, marginPct), figureTables(e), figures(e, marginPct)
	s.Flags, s.Commands = flagMeanings(e), commands(e)
	for _, a := range e.Arms {
		if len(a.Node) > 0 {
			addFact(&s.Nodes, a.Name, compact(a.Node))
		}
	}
	return s
}

func compact(raw json.RawMessage) string {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return string(raw)
	}
	return b.String()
}

// attached returns data URLs of the raw data and the CSV. It compresses a file that is too long for a URL, and leaves it
// out (tooLarge) if it is still too long.
func (r *Report) attached() (files []file, tooLarge bool, err error) {
	var csv bytes.Buffer
	if err := r.CSV(&csv); err != nil {
		return nil, false, err
	}
	for _, f := range []struct {
		name, kind string
		data       []byte
	}{{r.Name + ".json", "application/json", r.Raw}, {r.Name + ".csv", "text/csv", csv.Bytes()}} {
		if f.data == nil {
			continue
		}
		if base64.StdEncoding.EncodedLen(len(f.data)) > mostAttached-100 {
			if f.data, err = Zip(f.data); err != nil {
				return nil, false, err
			}
			f.name, f.kind = f.name+".gz", "application/gzip"
		}
		if base64.StdEncoding.EncodedLen(len(f.data)) > mostAttached-100 {
			tooLarge = true
			continue
		}
		files = append(files, file{
			Name: f.name, Size: figure(float64(len(f.data))/1e3) + " kB",
			URL: template.URL("data:" + f.kind + ";base64," + base64.StdEncoding.EncodeToString(f.data)), // base64 needs no escaping
		})
	}
	return files, tooLarge, nil
}

// Zip compresses data by gzip. The header has no name and no time, so the same data always give the same bytes.
func Zip(data []byte) ([]byte, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(data); err != nil {
		return nil, fmt.Errorf("compress the raw data: %w", err)
	}
	if err := z.Close(); err != nil {
		return nil, fmt.Errorf("compress the raw data: %w", err)
	}
	return b.Bytes(), nil
}
