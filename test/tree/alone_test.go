package tree

import (
	"go/ast"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAlone checks the list of packages that make test runs one at a time, first, or plain: each has tests, each package whose tests
// build berth, to start nodes with it, is in the list, and those without the race detector start nothing beside themselves.
func TestAlone(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "test/alone"))
	if err != nil {
		t.Fatal(err)
	}
	listed, plain := map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if pkg, own := strings.CutPrefix(strings.TrimSpace(line), module+"/"); own {
			pkg, word, _ := strings.Cut(pkg, " ")
			listed[pkg], plain[pkg] = false, word == "plain"
		}
	}
	_, all := sources(t)
	for _, s := range all {
		if what := concurrent(s.file); plain[s.pkg] && what != "" {
			t.Errorf("%s: %s: package %s needs the race detector, and is plain in test/alone", s.path, what, s.pkg)
		}
		if !s.test {
			continue
		}
		_, alone := listed[s.pkg]
		if alone {
			listed[s.pkg] = true
		}
		runs := strings.Contains(string(s.text), `"`+module+`/test/built"`) || strings.Contains(string(s.text), `"`+module+`/cmd/berth"`)
		if !alone && runs {
			t.Errorf("%s builds berth: package %s belongs in test/alone", s.path, s.pkg)
		}
	}
	for pkg, tests := range listed {
		if !tests {
			t.Errorf("test/alone names %s, which has no tests", pkg)
		}
	}
}

// concurrent returns what a file starts beside itself, "" if it starts nothing.
func concurrent(file *ast.File) (what string) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			what = "a go statement"
		case *ast.CallExpr:
			if sel, ok := n.Fun.(*ast.SelectorExpr); ok && (sel.Sel.Name == "Go" || sel.Sel.Name == "Parallel" || sel.Sel.Name == "AfterFunc") {
				what = "a call of " + sel.Sel.Name
			}
		}
		return what == ""
	})
	return what
}
