// Command again judges kept measurements by the current method. It measures nothing. It rewrites each JSON file and, where one
// exists, the .txt file beside it. go run ./tools/again docs/evidence/*.json*
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"berth/internal/bench"
	"berth/internal/report"
)

func main() {
	for _, path := range os.Args[1:] {
		if err := again(path); err != nil {
			fmt.Fprintf(os.Stderr, "again: %s: %v\n", path, err)
			os.Exit(1)
		}
	}
}

// document is a kept measurement.
type document interface {
	JudgeAgain()
	JSON(w io.Writer) error
	Text(w io.Writer) error
}

// study is a bench.Study whose text is that of berth bench report.
type study struct {
	*bench.Study
	name string
}

func (s study) JudgeAgain() {
	for i := range s.Experiments {
		for j := range s.Experiments[i].Trials {
			s.Experiments[i].Trials[j].Untell(s.Machine.Cores) // earlier versions kept these values for trials that are too short
		}
	}
	s.Judge()
}

func (s study) Text(w io.Writer) error {
	r, err := report.Of(s.Study, s.name)
	if err != nil {
		return err
	}
	return r.Text(w)
}

func again(path string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	packed := strings.HasSuffix(path, ".gz")
	if packed {
		z, err := gzip.NewReader(bytes.NewReader(raw))
		if err != nil {
			return err
		}
		if raw, err = io.ReadAll(z); err != nil {
			return err
		}
	}
	var head struct{ Format string }
	if err := json.Unmarshal(raw, &head); err != nil {
		return err
	}
	base := strings.TrimSuffix(strings.TrimSuffix(path, ".gz"), ".json")
	doc := map[string]document{
		bench.Format: &bench.Report{}, bench.IsolationFormat: &bench.Isolation{}, bench.ExplainFormat: &bench.Explained{},
		bench.NullFormat: &bench.NullReport{}, bench.KnownFormat: &bench.KnownReport{}, bench.StudyFormat: &study{&bench.Study{}, base},
	}[head.Format]
	if doc == nil {
		fmt.Printf("%s: %s has nothing that is judged here\n", path, head.Format)
		return nil
	}
	if err := json.Unmarshal(raw, doc); err != nil {
		return err
	}
	doc.JudgeAgain()
	var b bytes.Buffer
	if err := doc.JSON(&b); err != nil {
		return err
	}
	if bytes.Equal(b.Bytes(), raw) {
		return nil
	}
	if packed {
		if b, err = zip(b.Bytes()); err != nil {
			return err
		}
	}
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		return err
	}
	b.Reset()
	if _, err := os.Stat(base + ".txt"); err != nil {
		return nil //nolint:nilerr // it has no text beside it
	}
	if err := doc.Text(&b); err != nil {
		return err
	}
	return os.WriteFile(base+".txt", b.Bytes(), 0o644)
}

// zip compresses data. The header has no name and no time, so the same data always give the same file.
func zip(data []byte) (b bytes.Buffer, err error) {
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return b, err
	}
	if _, err := z.Write(data); err != nil {
		return b, err
	}
	return b, z.Close()
}
