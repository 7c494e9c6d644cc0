package main

import (
	"context"
	"os"
	"strings"
	"testing"

	"berth/internal/bench/report"
	"berth/tools/promise"
	"berth/tools/promise/faketest"
)

func TestNullRows(t *testing.T) {
	s, err := nullRows(t.Context(), 101, faketest.Options(t), faketest.Disk(1, 1000, .02), faketest.Disk(2, 1000, .02), func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	n := countRows(s)
	if n.rows != 101 || s.Experiments[0].Rows[0].Compared[0].Penalty.Pairs != 12 || s.Partial {
		t.Errorf("%+v", n)
	}
	if err := promise.Missed(n.criteria()); err != nil {
		t.Errorf("%v: %+v", err, n)
	}
	if text := n.text(s, "m1"); !strings.HasPrefix(text, "machine m1: ") || !strings.Contains(text, "\n101 rows") {
		t.Error(text)
	}
}

// TestNullRowsThatDiffer checks that arms that do differ do not pass for a null experiment.
func TestNullRowsThatDiffer(t *testing.T) {
	s, err := nullRows(t.Context(), 4, faketest.Options(t), faketest.Disk(1, 1000, .02), faketest.Disk(2, 500, .02), func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	if n := countRows(s); promise.Missed(n.criteria()) == nil || n.called != 4 {
		t.Errorf("%+v", n)
	}
}

func TestNullRowsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := nullRows(ctx, 100, faketest.Options(t), faketest.Disk(1, 1000, .02), faketest.Disk(2, 1000, .02), func(done int) {
		if done == 8 {
			cancel()
		}
	})
	if err == nil || !s.Partial || countRows(s).rows != 8 {
		t.Errorf("%v %+v", err, s)
	}
}

// TestKept checks that the text that is kept says what the data that are kept say.
func TestKept(t *testing.T) {
	r, err := report.Open("../../docs/evidence/null-rows.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	kept, err := os.ReadFile("../../docs/evidence/null-rows.txt")
	if err != nil {
		t.Fatal(err)
	}
	_, want, _ := strings.Cut(string(kept), "\n") // the first line has the machine's name
	if _, got, _ := strings.Cut(countRows(r.Study).text(r.Study, ""), "\n"); got != want {
		t.Errorf("want\n%s\ngot\n%s", want, got)
	}
}
