package result

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sample reads a study of made-up figures: a disk, a network, starts, and an experiment that was skipped.
func sample(t *testing.T) *Study {
	t.Helper()
	text, err := os.ReadFile("testdata/sample.json")
	if err != nil {
		t.Fatal(err)
	}
	var s Study
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	return &s
}

// TestJudge checks that the rows of a study follow from its trials.
func TestJudge(t *testing.T) {
	want, got := sample(t), sample(t)
	got.Judge()
	for i, e := range want.Experiments {
		if d := cmp.Diff(e.Rows, got.Experiments[i].Rows); d != "" {
			t.Errorf("%s: the rows are not those of the trials (-file +computed):\n%s", e.Name, d)
		}
	}
}
