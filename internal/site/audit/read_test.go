package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/spec/roles"
)

// TestTell reads what a log wrote into several files, with a line that a kill cut off, beside reads: all lines, each once, in order.
func TestTell(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	if _, err := Tell(path, Wish{}, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of no log: %v", err)
	}
	l, err := open(path, 1000)
	if err != nil {
		t.Fatal(err)
	}
	const first = 1_800_000_000
	add := func(n int, who string, act roles.Act, on string) {
		t.Helper()
		if err := l.Add(Line{Time: time.Unix(first+int64(n), 0), Who: who, Role: roles.Operator, Act: act, On: on, Result: Done, Begun: true}); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 30 {
		add(3*n, "ann", roles.NodeMake, fmt.Sprint("job-", n))
		add(3*n+1, "bob", roles.NodeRead, fmt.Sprint("job-", n))
		add(3*n+2, "bob", roles.NodeApply, fmt.Sprintf("job-%d other", n))
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if n := len(files(t, path)); n < 5 {
		t.Fatalf("%d files", n)
	}
	newest, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer newest.Close()
	fmt.Fprintf(newest, "{\"who\":\"cut\n%s\n{\"who\":\"it is being writ", strings.Repeat("x", 100<<10))
	for what, tc := range map[string]struct {
		wish Wish
		want int
	}{
		"acts": {Wish{}, 60}, "one's": {Wish{Who: "bob"}, 30}, "a node's": {Wish{Node: "job-7"}, 2}, "another's": {Wish{Node: "other"}, 30}, "nobody's": {Wish{Who: "an"}, 0},
		"since": {Wish{Since: time.Unix(first+60, 0)}, 20}, "until": {Wish{Until: time.Unix(first+2, 0)}, 2},
	} {
		n, last := 0, time.Time{}
		damaged, err := Tell(path, tc.wish, func(l Line) error {
			if l.Time.Before(last) || strings.HasSuffix(string(l.Act), ".read") {
				t.Errorf("%s: %s after %s", what, l, last)
			}
			n, last = n+1, l.Time
			return nil
		})
		if err != nil || n != tc.want || damaged != 2 {
			t.Errorf("%s: %d lines, want %d; %d damaged, %v", what, n, tc.want, damaged, err)
		}
	}
	var got, want []string
	if _, err := Tell(path, Wish{Reads: true, Since: time.Unix(first+80, 0)}, func(l Line) error { got = append(got, l.String()); return nil }); err != nil {
		t.Fatal(err)
	}
	for n := 26; n < 30; n++ {
		at := func(n int) string { return time.Unix(first+int64(n), 0).Format("2006-01-02 15:04:05.000") }
		if n > 26 {
			want = append(want, fmt.Sprintf("%s operator ann node.make job-%d done", at(3*n), n), fmt.Sprintf("%s operator bob node.read job-%d done", at(3*n+1), n))
		}
		want = append(want, fmt.Sprintf("%s operator bob node.apply job-%d other done", at(3*n+2), n))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
