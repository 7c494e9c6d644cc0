package report

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestEvidence shows every JSON that the project keeps, in each form: what cannot be read again is no evidence.
func TestEvidence(t *testing.T) {
	files, err := filepath.Glob("../../docs/evidence/*.json*")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			r, err := Read(f, filepath.Base(path))
			if err != nil {
				t.Fatal(err)
			}
			var text, page, table bytes.Buffer
			if err := r.Text(&text); err != nil {
				t.Error(err)
			}
			if err := r.HTML(&page); err != nil {
				t.Error(err)
			}
			if err := r.CSV(&table); err != nil {
				t.Error(err)
			}
			for line := range strings.Lines(text.String()) {
				if utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > textWidth {
					t.Errorf("wider than %d columns: %q", textWidth, line)
				}
			}
			for _, e := range r.Study.Experiments {
				if e.Skipped == "" && (len(e.Rows) == 0 || !strings.Contains(text.String(), e.Rows[0].Name) && len(lines(&e)) > 0) {
					t.Errorf("%s has nothing to show", e.Name)
				}
			}
			if len(r.Study.Experiments) == 0 || page.Len() < 2000 || strings.Count(table.String(), "\n") < 2 {
				t.Errorf("%d experiments, a page of %d bytes, a table of %q", len(r.Study.Experiments), page.Len(), table.String())
			}
		})
	}
}

// The forms of make bench-start, and of a headline of the first format and of one with sessions.
func TestKeptForms(t *testing.T) {
	for _, c := range []struct {
		name, doc string
		want      []string
	}{
		{"start", `{"format": "berth-bench-start/1", "runs": 5, "batch": {"trials": 5, "dropped": 2, "why": "it carries over"}, "rows": [
			{"what": "run / runc run", "unit": "ms", "berth": 14, "other": 10, "ratio": {"rounds": 5, "factor": 1.4, "ci95": [1.3, 1.48]}, "target": "at most 1.5 times", "met": true,
			 "runs": [{"berth": 14, "other": 10}], "carry_over": [{"arm": "runc", "p": 0.4, "p_corrected": 0.8}]},
			{"what": "berth --version", "unit": "ms", "berth": 1, "target": "under 10 ms", "met": true}]}`,
			[]string{"+40.0 (+30.0..+48.0)", "5 trials of an arm in a row", "not shown to differ", "at most 1.5 times: met"}},
		{"headline", `{"format": "berth-headline/2", "trials": [` + strings.Repeat(`
			{"session": 1, "round": 0, "arm": "alone", "p50_ms": 1, "p99_ms": 9},`, 2) + trialsOf(7) + `]}`,
			[]string{"+900", "EMULATED"}},
		{"shares", `{"format": "berth-shares/1", "rows": [
			{"kind": "share", "name": "bfq 75:25", "asked": [75, 25], "bytes_per_second": [[74, 26], [78, 22], [76, 24]]},
			{"kind": "rate", "name": "10 MB/s", "asked": [1e7], "bytes_per_second": [[9.9e6], [1e7]]}]}`, []string{"shares: Shares of a disk by weight", "rates: Rates"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := Read(strings.NewReader(c.doc), c.name)
			if err != nil {
				t.Fatal(err)
			}
			var b bytes.Buffer
			if err := r.Text(&b); err != nil {
				t.Fatal(err)
			}
			flat := strings.Join(strings.Fields(b.String()), " ")
			for _, w := range c.want {
				if !strings.Contains(flat, w) {
					t.Errorf("%q is not in\n%s", w, b.String())
				}
			}
		})
	}
}

func trialsOf(rounds int) string {
	var all []string
	for i := range rounds {
		for _, arm := range []string{"alone", "io.max"} {
			ms := map[string]string{"alone": "1", "io.max": "10"}[arm]
			all = append(all, `{"session": 1, "round": `+string(rune('1'+i))+`, "arm": "`+arm+`", "p50_ms": `+ms+`, "p99_ms": `+ms+`}`)
		}
	}
	return strings.Join(all, ",\n")
}
