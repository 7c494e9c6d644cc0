// Command again judges kept measurements by the current method. It measures nothing. It rewrites each JSON file and, where one
// exists, the .txt file beside it. go run ./tools/again docs/evidence/*.json*
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"berth/internal/bench/report"
	"berth/internal/bench/result"
)

// own are the experiments whose tools judge them in a way of their own: go run ./tools/nullrows, knowndiff, benchstart.
var own = []string{"null", "known", "start"}

func main() {
	for _, path := range os.Args[1:] {
		if err := again(path); err != nil {
			fmt.Fprintf(os.Stderr, "again: %s: %v\n", path, err)
			os.Exit(1)
		}
	}
}

func again(path string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	packed := strings.HasSuffix(path, ".gz")
	if packed {
		if raw, err = report.Unzip(raw); err != nil {
			return err
		}
	}
	var is struct {
		Format string `json:"format"`
	}
	if err := json.Unmarshal(raw, &is); err != nil {
		return err
	}
	if is.Format != result.Format { // such as the headline, whose document is its own (test/lab/headline)
		fmt.Printf("%s: nothing is judged here\n", path)
		return nil
	}
	var s result.Study
	if err := json.Unmarshal(raw, &s); err != nil {
		return err
	}
	if len(s.Experiments) == 0 || slices.Contains(own, s.Experiments[0].Name) && s.OneByOne {
		fmt.Printf("%s: nothing is judged here\n", path)
		return nil
	}
	base := strings.TrimSuffix(strings.TrimSuffix(path, ".gz"), ".json")
	s.Judge()
	var b bytes.Buffer
	if err := s.JSON(&b); err != nil {
		return err
	}
	if bytes.Equal(b.Bytes(), raw) {
		return nil
	}
	data := b.Bytes()
	if packed {
		if data, err = report.Zip(data); err != nil {
			return err
		}
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		return err
	}
	b.Reset()
	if _, err := os.Stat(base + ".txt"); err != nil {
		return nil //nolint:nilerr // it has no text beside it
	}
	r, err := report.Of(&s, base)
	if err != nil {
		return err
	}
	if err := r.Text(&b); err != nil {
		return err
	}
	return os.WriteFile(base+".txt", b.Bytes(), 0o644)
}
