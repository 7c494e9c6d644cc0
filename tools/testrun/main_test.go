package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
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
`

func TestRun(t *testing.T) {
	dir := t.TempDir()
	if err := txtar.Write(txtar.Parse([]byte(module)), dir); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	tests := []struct {
		name    string
		allowed string // content of the list; "-": none
		args    []string
		ok      bool
		last    string
		has     []string
	}{
		{"good", "-", []string{"./good"}, true, "3 passed, 0 failed, 1 skipped", []string{
			"ok   m/good", "skipped: needs a unicorn: none is here\n    m/good.TestSubs/c\n",
		}},
		{"allowed", "# why\nneeds a unicorn.*\n", []string{"./good"}, true, "3 passed, 0 failed, 1 skipped", nil},
		{"not allowed", "unicorn\n", []string{"./good"}, false, "3 passed, 0 failed, 1 skipped", []string{"NOT ALLOWED: needs a unicorn"}},
		{"bad", ".*\n", []string{"./bad"}, false, "2 passed, 2 failed, 1 skipped", []string{
			"the reason of a", "FAIL m/bad TestItself\n", "NOT ALLOWED: no reason given",
		}},
		{"panic", "-", []string{"./panics"}, false, "0 passed, 1 failed, 0 skipped", []string{"oh dear"}},
		{"no build", "-", []string{"./nobuild", "./good"}, false, "3 passed, 1 failed, 1 skipped", []string{"undefined: undefined"}},
		{"exits", "-", []string{"./exits"}, false, "0 passed, 1 failed, 0 skipped", nil},
		{"empty", "-", []string{"./empty"}, true, "0 passed, 0 failed, 0 skipped", nil},
		{"no such package", "-", []string{"./none"}, false, "0 passed, 1 failed, 0 skipped", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var allowed *allowList
			if tt.allowed != "-" {
				path := filepath.Join(t.TempDir(), "allowed")
				if err := os.WriteFile(path, []byte(tt.allowed), 0o644); err != nil {
					t.Fatal(err)
				}
				var err error
				if allowed, err = readAllowList(path); err != nil {
					t.Fatal(err)
				}
			}
			var out strings.Builder
			ok, err := run(tt.args, allowed, &out)
			if ok != tt.ok {
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

func TestAllowListIsChecked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "allowed")
	if err := os.WriteFile(path, []byte("# fine\n(\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readAllowList(path); err == nil || !strings.Contains(err.Error(), path+":2:") {
		t.Errorf("a bad expression gives %v", err)
	}
}
