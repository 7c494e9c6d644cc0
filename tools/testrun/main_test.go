package main

import (
	"debug/buildinfo"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"berth/test/testkit"
)

// module is a small module with each outcome of a test: passes, fails, skips, panics, broken builds and early exits.
const module = `
-- go.mod --
module m
go 1.26
-- good/good_test.go --
package good
import "testing"
func TestPlain(t *testing.T) {}
func TestSubs(t *testing.T) {
	t.Run("a", func(t *testing.T) {})
	t.Run("b/with/slashes", func(t *testing.T) {})
	t.Run("c", func(t *testing.T) { t.Skip("needs a unicorn:\n  none is here") })
}
-- bad/bad_test.go --
package bad
import "testing"
func TestSub(t *testing.T) { t.Run("a", func(t *testing.T) { t.Error("the reason of a") }); t.Run("b", func(t *testing.T) {}) }
func TestItself(t *testing.T) { t.Run("a", func(t *testing.T) {}); t.Error("not a subtest's fault") }
func TestBare(t *testing.T) { t.SkipNow() }
-- panics/panics_test.go --
package panics
import "testing"
func TestPanic(t *testing.T) { panic("oh dear") }
-- nobuild/nobuild_test.go --
package nobuild
import "testing"
func TestNever(t *testing.T) { undefined() }
-- exits/exits_test.go --
package exits
import ("os"; "testing")
func TestMain(m *testing.M) { os.Exit(3) }
-- empty/empty.go --
package empty
-- other/good/good_test.go --
package good
import "testing"
func TestPlain(t *testing.T) {}
-- skips/skips_test.go --
package skips
import "testing"
func TestOne(t *testing.T) { t.Skip("needs a unicorn") }
-- slow/slow_test.go --
package slow
import ("testing"; "time")
func TestSleeps(t *testing.T) { t.Run("inside", func(t *testing.T) { time.Sleep(time.Second) }) }
-- flaky/flaky_test.go --
package flaky
import ("fmt"; "os"; "testing")
func nth(name string) int {
	text, _ := os.ReadFile(os.Getenv("M_STATE") + name)
	os.WriteFile(os.Getenv("M_STATE") + name, append(text, '.'), 0o644)
	return len(text) + 1
}
func TestOnce(t *testing.T) { t.Run("inside", func(t *testing.T) { if nth("once") == 1 { t.Error("the first time") } }) }
func TestEveryOther(t *testing.T) { if nth("other") % 2 == 1 { t.Error("every other time") } }
func TestFine(t *testing.T) {}
var _ = fmt.Sprint
-- finals/finals_test.go --
package finals
import ("os"; "testing")
func TestFinal(t *testing.T) {
	if text, _ := os.ReadFile(os.Getenv("M_STATE") + "final"); len(text) == 0 { t.Error("lost"); t.Log(os.Getenv("M_SAYS")) }
	os.WriteFile(os.Getenv("M_STATE") + "final", []byte("x"), 0o644)
}
-- beside/beside_test.go --
package beside
import ("os"; "testing")
func nth(name string) int {
	text, _ := os.ReadFile(os.Getenv("M_STATE") + name)
	os.WriteFile(os.Getenv("M_STATE") + name, append(text, '.'), 0o644)
	return len(text) + 1
}
func TestFirst(t *testing.T) { if nth("first") == 1 { t.Error("the first time") } }
func TestSecond(t *testing.T) { if nth("second") == 2 { t.Error(os.Getenv("M_SAYS")) } }
-- awaits/awaits_test.go --
package awaits
import ("os"; "testing"; "time")
func TestOther(t *testing.T) { for { if _, err := os.Stat(os.Getenv("M_STATE") + "came"); err == nil { return }; time.Sleep(time.Millisecond) } }
-- comes/comes_test.go --
package comes
import ("os"; "testing")
func TestComes(t *testing.T) { os.WriteFile(os.Getenv("M_STATE") + "came", nil, 0o644) }
-- hangs/hangs_test.go --
package hangs
import ("testing"; "time")
func TestQuick(t *testing.T) {}
func TestHangs(t *testing.T) { time.Sleep(time.Hour) }
-- short/short_test.go --
package short
import ("os"; "testing")
func TestShort(t *testing.T) { if !testing.Short() { t.Error("it is not short") } }
func TestFolder(t *testing.T) { if _, err := os.Stat("short_test.go"); err != nil { t.Error(err) } }
`

// enter makes the module and changes to its folder.
func enter(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	if err := txtar.Write(txtar.Parse([]byte(module)), dir); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
}

// list writes a file of lines and returns its path.
func list(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "list")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRun(t *testing.T) {
	enter(t)
	tests := []struct {
		name    string
		allowed string // content of the list; "-": none
		o       options
		ok      bool
		last    string
		has     []string
	}{
		{"good", "-", options{patterns: []string{"./good"}}, true, "3 passed, 0 failed, 1 skipped", []string{
			"built 1 test programs in ", "...  m/good\n", "ok   m/good 0.", "skipped: needs a unicorn: none is here\n    m/good.TestSubs/c\n",
		}},
		{"one base name", "-", options{patterns: []string{"./good", "./other/good"}}, true, "4 passed, 0 failed, 1 skipped", []string{
			"ok   m/good ", "ok   m/other/good ",
		}},
		{"only", "-", options{patterns: []string{"./good"}, only: "^TestPlain$"}, true, "1 passed, 0 failed, 0 skipped", nil},
		{"all skipped", "-", options{patterns: []string{"./skips"}}, true, "0 passed, 0 failed, 1 skipped", []string{"ok   m/skips "}},
		{"short", "-", options{patterns: []string{"./short"}, short: true}, true, "2 passed, 0 failed, 0 skipped", nil},
		{"not short", "-", options{patterns: []string{"./short"}}, false, "1 passed, 1 failed, 0 skipped", []string{"it is not short"}},
		{"allowed", "# why\nneeds a unicorn.*\n", options{patterns: []string{"./good"}}, true, "3 passed, 0 failed, 1 skipped", nil},
		{"not allowed", "unicorn\n", options{patterns: []string{"./good"}}, false, "3 passed, 0 failed, 1 skipped", []string{"NOT ALLOWED: needs a unicorn"}},
		{"bad", ".*\n", options{patterns: []string{"./bad"}}, false, "2 passed, 2 failed, 1 skipped", []string{
			"the reason of a", "FAIL m/bad TestItself\n", "failed: m/bad.TestItself: bad_test.go:4: not a subtest's fault\n", "failed: m/bad.TestSub/a: ", "NOT ALLOWED: no reason given",
		}},
		{"panic", "-", options{patterns: []string{"./panics"}}, false, "0 passed, 1 failed, 0 skipped", []string{"oh dear"}},
		{"no build", "-", options{patterns: []string{"./nobuild", "./good"}}, false, "3 passed, 1 failed, 1 skipped", []string{
			"undefined: undefined", "FAIL m/nobuild does not build\n",
		}},
		{"exits", "-", options{patterns: []string{"./exits"}}, false, "0 passed, 1 failed, 0 skipped", nil},
		{"empty", "-", options{patterns: []string{"./empty"}}, true, "0 passed, 0 failed, 0 skipped", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			skips := ""
			if tt.allowed != "-" {
				skips = list(t, tt.allowed)
			}
			var out strings.Builder
			tt.o.atOnce, tt.o.every, tt.o.packageClock = 2, time.Hour, time.Hour
			ok, err := tt.o.main(t.Context(), files{skips: skips}, &out)
			if ok != tt.ok || err != nil {
				t.Errorf("ok = %v, %v; want %v", ok, err, tt.ok)
			}
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			if last := lines[len(lines)-1]; last != tt.last {
				t.Errorf("last line %q, want %q", last, tt.last)
			}
			for _, s := range tt.has {
				if !strings.Contains(out.String(), s) {
					t.Errorf("no %q", s)
				}
			}
			if t.Failed() {
				t.Log(out.String())
			}
		})
	}
}

// TestProgress checks that a run says what is running, that packages of -alone come last and one at a time, others of it first, and that the result is kept.
func TestProgress(t *testing.T) {
	enter(t)
	var out strings.Builder
	result := filepath.Join(t.TempDir(), "result")
	o := options{patterns: []string{"./good", "./other/good", "./short", "./slow"}, short: true, atOnce: 1, every: 200 * time.Millisecond, packageClock: time.Hour}
	alone := list(t, "# it sleeps\nm/slow\n\nm/good\nm/short first\n")
	ok, err := o.main(t.Context(), files{alone: alone, result: result, events: result + ".json"}, &out)
	if !ok || err != nil {
		t.Fatalf("%v, %v\n%s", ok, err, out.String())
	}
	order := regexp.MustCompile(`(?s)\.\.\.  m/short\n.*ok   m/short.*\.\.\.  m/other/good\n.*ok   m/other/good.*\.\.\.  m/good\n.*ok   m/good.*\.\.\.  m/slow\n.*\.\.\.  0 min, 3 of 4 packages done; ` +
		`now m/slow [01]s \(TestSleeps\)\n.*ok   m/slow`)
	if !order.MatchString(out.String()) {
		t.Errorf("it says\n%s", out.String())
	}
	text, err := os.ReadFile(result)
	if err != nil {
		t.Fatal(err)
	}
	if events, err := os.ReadFile(result + ".json"); err != nil || !strings.Contains(string(events), `"Action":"pass","Package":"m/slow","Test":"TestSleeps"`) {
		t.Errorf("of events it keeps %v\n%s", err, events)
	}
	if !regexp.MustCompile(`^\d{4}-\d\d-\d\d, commit .*, 0\.\d minutes\n\n +1\.\d s +\d+\.\d s CPU  m/slow\n(.*\n){4}7 passed, 0 failed, 1 skipped\n$`).Match(text) {
		t.Errorf("it keeps\n%s", text)
	}
}

// TestWaits checks that a package that mostly waits runs beside the others: it ends when a package has run that begins later.
func TestWaits(t *testing.T) {
	enter(t)
	t.Setenv("M_STATE", t.TempDir()+"/")
	var out strings.Builder
	o := options{patterns: []string{"./awaits", "./comes"}, atOnce: 1, every: time.Hour, packageClock: testkit.Bound()}
	if ok, err := o.main(t.Context(), files{alone: list(t, "m/awaits waits drives\n")}, &out); !ok || err != nil {
		t.Errorf("%v, %v\n%s", ok, err, out.String())
	}
}

func TestNoSuchPackage(t *testing.T) {
	enter(t)
	var out strings.Builder
	if ok, err := (options{patterns: []string{"./none"}, atOnce: 1, every: time.Hour}).main(t.Context(), files{}, &out); ok || err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("%v, %v: %s", ok, err, out.String())
	}
}

func TestAloneListIsChecked(t *testing.T) {
	for _, text := range []string{"m/slow last\n", "m/slow first m/good\n"} {
		if err := new(options).readAlone(list(t, text)); err == nil || !strings.Contains(err.Error(), strings.TrimSpace(text)) {
			t.Errorf("%q gives %v", text, err)
		}
	}
}

// TestPlain checks that the packages that are plain are built without the race detector, and no others.
func TestPlain(t *testing.T) {
	enter(t)
	o := options{patterns: []string{"./good", "./short"}, race: true}
	if err := o.readAlone(list(t, "m/good measures\n")); err != nil {
		t.Fatal(err)
	}
	if _, _, alone := o.order([]pack{{path: "m/good"}, {path: "m/short"}}); len(alone) != 1 || alone[0].path != "m/good" {
		t.Errorf("alone run %+v", alone)
	}
	drives := options{}
	if err := drives.readAlone(list(t, "m/good first drives\nm/short drives\n")); err != nil || !slices.Equal(drives.alone, []string{"m/short"}) ||
		!slices.Equal(drives.first, []string{"m/good"}) || len(drives.plain) != 2 {
		t.Errorf("%+v, %v", drives, err)
	}
	if err := o.readAlone(list(t, "m/good plain\n")); err != nil || len(o.alone) != 1 {
		t.Fatal(o.alone, err)
	}
	packs, err := o.list(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	built, err := o.build(t.Context(), packs, t.TempDir(), newTally(io.Discard))
	if err != nil || len(built) != 2 {
		t.Fatalf("%+v, %v", built, err)
	}
	for _, p := range built {
		info, err := buildinfo.ReadFile(p.program)
		if err != nil {
			t.Fatal(err)
		}
		race := slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "-race" && s.Value == "true" })
		if race == (p.path == "m/good") {
			t.Errorf("%s is built with the race detector: %v", p.path, race)
		}
	}
}

func TestAllowListIsChecked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "allowed")
	if err := os.WriteFile(path, []byte("# fine\n(\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readAllowList(path); err == nil || !strings.Contains(err.Error(), path+":2:") {
		t.Errorf("a bad expression gives %v", err)
	}
}
