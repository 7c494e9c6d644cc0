package help

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/sys/refuse"
)

// TestErrorsAreSentences checks that each error has its own line and each line begins with the program's name.
func TestErrorsAreSentences(t *testing.T) {
	var b bytes.Buffer
	PrintError(&b, refuse.Join([]error{refuse.NotFoundf("no node a; berth ls lists the nodes"), errors.New("b: a\nc: d")}))
	if diff := cmp.Diff("berth: no node a; berth ls lists the nodes\nberth: b: a\nberth: c: d\n", b.String()); diff != "" {
		t.Error(diff)
	}
}
