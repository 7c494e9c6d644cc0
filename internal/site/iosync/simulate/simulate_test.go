package simulate_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"berth/internal/site/iosync/simulate"
)

func run(t *testing.T, p simulate.Plan) *simulate.Result {
	t.Helper()
	r, err := simulate.Run(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestConverges: with load on all servers or on one, that moves, messages that are lost and servers that are silent, nodes get at
// least 95 % of what they may within 3 s, and never more than they may.
func TestConverges(t *testing.T) {
	t.Parallel()
	for _, p := range []simulate.Plan{
		{Nodes: 300, Servers: 40, Each: 8, Seconds: 50, Lost: 0.01, Silent: 0.05, Seed: 1},
		{Nodes: 20, Servers: 4, Each: 4, Seconds: 50, Seed: 2},
		{Nodes: 5, Servers: 1, Each: 1, Seconds: 30, Lost: 0.2, Silent: 1, Seed: 3},
		{Nodes: 10, Servers: 160, Each: 160, Seconds: 50, Lost: 0.1, Seed: 4},
	} {
		r := run(t, p)
		if r.Most > 1+1e-9 {
			t.Errorf("%+v: a node was allowed %g of its allowance", p, r.Most)
		}
		if r.Back < 0 || r.Back > 3 {
			t.Errorf("%+v: 95 %% again after %g s", p, r.Back)
		}
		if last := r.Rounds[len(r.Rounds)-1]; last.Got < 0.95 || last.Worst < 0.95 {
			t.Errorf("%+v: at the end nodes got %g, the worst %g", p, last.Got, last.Worst)
		}
	}
}

// TestSame: the same plan gives the same result.
func TestSame(t *testing.T) {
	t.Parallel()
	p := simulate.Plan{Nodes: 50, Servers: 10, Each: 3, Seconds: 20, Lost: 0.1, Silent: 0.2, Seed: 7}
	if diff := cmp.Diff(run(t, p), run(t, p), cmpopts.IgnoreFields(simulate.Round{}, "Took"), cmpopts.IgnoreFields(simulate.Result{}, "Slow")); diff != "" {
		t.Error(diff)
	}
}
