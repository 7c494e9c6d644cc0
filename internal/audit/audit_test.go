package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/may"
)

func lines(t *testing.T, path string) []Line {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(text) > 0 && !bytes.HasSuffix(text, []byte("\n")) {
		t.Fatalf("%s does not end with a line", path)
	}
	var all []Line
	for one := range bytes.Lines(text) {
		var l Line
		if err := json.Unmarshal(one, &l); err != nil {
			t.Fatalf("%q: %v", one, err)
		}
		all = append(all, l)
	}
	return all
}

// TestHostileTexts writes texts that would end a line, begin another, or turn what a terminal shows.
func TestHostileTexts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	texts := []string{
		"a\nb", "a\r\nb", "a\"}\n{\"who\":\"root\"", "\x00\x1b[2J", "\u2028{\"x\":1}\u2029", "\x85next", "\u202egnp.exe", "\xff\xfe", strings.Repeat("é", 5000), `\n\u000a`,
	}
	for _, text := range texts {
		if err := l.Add(Line{Who: text, Role: may.Role(text), Via: may.ViaTLS, From: text, Act: may.Act(text), On: text, Detail: text, Result: Refused, Error: text}); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(text, []byte("\n")); n != len(texts) {
		t.Errorf("%d lines, not %d", n, len(texts))
	}
	for i, c := range string(text) {
		if c < ' ' && c != '\n' || c >= 0x7f && c < 0xa0 || c >= 0x2028 && c <= 0x202e {
			t.Errorf("%q at byte %d", c, i)
		}
	}
	for i, got := range lines(t, path) {
		if got.Result != Refused || len(got.Who) > mostField+len("…") || got.Who != got.On {
			t.Errorf("line %d: %+v", i, got)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// TestTurns fills the log from several goroutines: the last lines are all there, each once, in two files of bounded size.
func TestTurns(t *testing.T) {
	const most, writers, each = 20 << 10, 4, 60
	path := filepath.Join(t.TempDir(), "sub", "audit")
	l, err := open(path, most)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				if err := l.Add(Line{Who: fmt.Sprint(w), On: fmt.Sprint(i), Act: may.NodeEnd, Result: Done, Detail: strings.Repeat("x", 100)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Add(Line{}); err == nil {
		t.Error("a closed log took a line")
	}
	seen := map[string]int{}
	for _, name := range []string{path + ".1", path} {
		for _, one := range lines(t, name) {
			if seen[one.Who+"/"+one.On]++; seen[one.Who+"/"+one.On] > 1 {
				t.Errorf("%s/%s is there twice", one.Who, one.On)
			}
		}
		if info, err := os.Stat(name); err != nil || info.Size() > most {
			t.Errorf("%s: %v bytes, %v", name, info.Size(), err)
		}
	}
	// Older lines go, those of a writer that was early perhaps all; of each writer no line is lost behind one that is there.
	if len(seen) == 0 {
		t.Error("no line is there")
	}
	for w := range writers {
		there := false
		for i := range each {
			is := seen[fmt.Sprintf("%d/%d", w, i)] == 1
			if there && !is {
				t.Errorf("line %d of writer %d is lost", i, w)
			}
			there = there || is
		}
	}
}

// TestBegunLine opens a log whose last line a kill cut short.
func TestBegunLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	if err := os.WriteFile(path, []byte(`{"who":"ann"}`+"\n"+`{"who":"b`), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 11, 23, 1, 2, 3, 4, time.FixedZone("", 3600))
	if err := l.Add(Line{Time: now, Who: "ann", Role: may.Operator, Via: may.ViaTLS, From: "192.0.2.1:5", Act: may.NodeMake, On: "job-1", Detail: "template job", Result: Done}); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"who":"ann"}
{"who":"b
{"time":"2026-11-23T00:02:03.000000004Z","who":"ann","role":"operator","via":"tls","from":"192.0.2.1:5","act":"node.make","on":"job-1","detail":"template job","result":"done"}
`
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Error(diff)
	}
}
