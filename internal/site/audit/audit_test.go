package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/spec/roles"
	"berth/test/testkit"
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
		if err := l.Add(Line{Who: text, Role: roles.Role(text), Via: roles.ViaTLS, From: text, Act: roles.Act(text), On: text, Detail: text, Result: Refused, Error: text}); err != nil {
			t.Fatal(err)
		}
	}
	path = Reads(path)
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

// files are the files of the acts of a log.
func files(t *testing.T, path string) []string {
	t.Helper()
	full, err := filepath.Glob(path + ".*")
	if err != nil {
		t.Fatal(err)
	}
	return append(full, path)
}

// TestTurns fills the log with acts from several goroutines: all lines are there, each once, in files of bounded size. Old files go, and so
// do too many.
func TestTurns(t *testing.T) {
	const most, writers, each = 20 << 10, 4, 60
	path := filepath.Join(t.TempDir(), "sub", "audit.log")
	l, err := open(path, most)
	if err != nil {
		t.Fatal(err)
	}
	old := path + ".1" // of an older agent
	if err := os.WriteFile(old, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(old, time.Time{}, time.Now().Add(-keepFor-time.Hour)); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				if err := l.Add(Line{Who: fmt.Sprint(w), On: fmt.Sprint(i), Act: roles.NodeEnd, Result: Done, Detail: strings.Repeat("x", 100)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if _, err := os.Stat(old); err == nil {
		t.Error("an old file is there")
	}
	seen := map[string]int{}
	for _, name := range files(t, path) {
		for _, one := range lines(t, name) {
			seen[one.Who+"/"+one.On]++
		}
		if info, err := os.Stat(name); err != nil || info.Size() > most {
			t.Errorf("%s: %v bytes, %v", name, info.Size(), err)
		}
	}
	for w := range writers {
		for i := range each {
			if n := seen[fmt.Sprintf("%d/%d", w, i)]; n != 1 {
				t.Errorf("line %d of writer %d is there %d times", i, w, n)
			}
		}
	}
	for i := range mostFiles + 5 {
		if err := os.WriteFile(fmt.Sprint(path, ".more", i), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l.acts.size = most
	if err := l.Add(Line{Act: roles.NodeEnd, Result: Done}); err != nil {
		t.Fatal(err)
	}
	if n := len(files(t, path)); n != mostFiles+1 {
		t.Errorf("%d files, want %d full ones and another", n, mostFiles)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Add(Line{}); err == nil {
		t.Error("a closed log took a line")
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
	if err := l.Add(Line{Time: now, Who: "ann", Role: roles.Operator, Via: roles.ViaTLS, From: "192.0.2.1:5", Act: roles.NodeMake, On: "job-1", Detail: "template job", Result: Done}); err != nil {
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

// TestReadsKeepActs: a caller who only reads, and is refused, in long names of control characters, does not make the log forget what
// others did, nor that others read. What of his is not kept is counted.
func TestReadsKeepActs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	add := func(line Line) {
		t.Helper()
		if err := l.Add(line); err != nil {
			t.Fatal(err)
		}
	}
	act := Line{Who: "root", Role: roles.Admin, Via: roles.ViaUnix, Act: roles.NodeEnd, On: "n", Result: Done}
	add(act)
	failed := act
	failed.Result, failed.Begun = Refused, true // what came of an act that has begun is beside its beginning
	add(failed)
	read := Line{Who: "vic", Role: roles.Viewer, Via: roles.ViaTLS, Act: roles.NodeRead, On: "n", Result: Done}
	add(read)
	name := strings.Repeat("\x01", 1024)
	const asked = 6000
	for range asked {
		add(Line{Who: "eve", Role: roles.Viewer, Via: roles.ViaTLS, Act: roles.NodeRead, On: name, Result: Refused, Error: name})
	}
	const left = 3 // before their turn
	for range left {
		add(Line{Who: "eve", Role: roles.Viewer, Via: roles.ViaTLS, Act: roles.NodeEnd, On: name, Result: Failed, Error: "context canceled"})
	}
	add(read)
	l.shares.end(l.tellDropped) // as once a minute
	add(Line{Who: "eve", Role: roles.Viewer, Via: roles.ViaTLS, Act: roles.NodeRead, On: "n", Result: Done})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got := lines(t, path); len(got) != 2 || got[0].Who != "root" || got[1].Result != Refused {
		t.Errorf("the acts are %+v", got)
	}
	kept, dropped, others := 0, 0, 0
	all := lines(t, Reads(path))
	for _, one := range all {
		switch {
		case one.Who == "vic":
			others++
		case one.Result == Dropped:
			dropped += one.Dropped
		default:
			kept++
		}
	}
	if kept < 10 || kept+dropped != asked+left+1 || others != 2 || all[len(all)-1].On != "n" {
		t.Errorf("of %d lines %d are kept and %d told as dropped; others have %d", asked+left+1, kept, dropped, others)
	}
	if info, err := os.Stat(Reads(path)); err != nil || info.Size() > share+10<<10 {
		t.Errorf("reads take %d bytes, %v", info.Size(), err)
	}
}

// TestMirror: acts are told to the system's log, without what may be secret, also after it was started anew; reads are not. Nobody waits where there is none.
func TestMirror(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "log")
	l, err := Open(filepath.Join(dir, "audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.Mirror(socket)
	add := func(act roles.Act, on string) {
		t.Helper()
		if err := l.Add(Line{Who: "root", Act: act, On: on, Detail: "secret", Result: Done, Error: "secret"}); err != nil {
			t.Fatal(err)
		}
	}
	add(roles.NodeEnd, "unheard")
	for _, on := range []string{"first", "second"} {
		hears, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		add(roles.NodeRead, "read")
		add(roles.NodeEnd, on)
		if err := hears.SetReadDeadline(time.Now().Add(testkit.Bound())); err != nil {
			t.Fatal(err)
		}
		p := make([]byte, 10000)
		n, err := hears.Read(p)
		if text := string(p[:n]); err != nil || !strings.HasPrefix(text, "<85>berthd-audit[") || !strings.Contains(text, `"on":"`+on+`"`) || strings.Contains(text, "secret") {
			t.Errorf("%q, %v", text, err)
		}
		hears.Close()
		if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
}

// TestSpent: an operator who has filled his share of the acts in an hour has spent it; all of his acts are there, and others have not spent anything.
func TestSpent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ann, root := roles.Who{Name: "ann", Role: roles.Operator, Via: roles.ViaTLS}, roles.Who{Name: "root", Role: roles.Admin, Via: roles.ViaUnix}
	long, n := strings.Repeat("0", mostField), 0
	for ; !l.Spent(ann) && n < 2*actShare/mostField; n++ {
		for _, w := range []roles.Who{ann, root} {
			if err := l.Add(Line{Who: w.Name, Role: w.Role, Via: w.Via, Act: roles.NodeEnd, Detail: long, Begun: true, Result: Begins}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n < actShare/(2*mostField) || n >= 2*actShare/mostField || l.Spent(root) {
		t.Errorf("spent after %d lines: %v; root: %v", n, l.Spent(ann), l.Spent(root))
	}
	if all := lines(t, path); len(all) != 2*n {
		t.Errorf("%d lines of %d are there", len(all), 2*n)
	}
}
