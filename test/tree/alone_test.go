package tree

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// TestAlone checks the list of packages that make test runs one at a time, first, or plain: each has tests, each package whose tests
// build berth, to start nodes with it, is in the list, and those without the race detector start nothing beside themselves, or are below
// test/ or tools/, whose own code is not what is tested.
func TestAlone(t *testing.T) {
	tested, plain, drives := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, line := range entries(t, "alone") {
		words := strings.Fields(strings.TrimPrefix(line, module+"/"))
		tested[words[0]], plain[words[0]], drives[words[0]] = false, slices.Contains(words, "plain"), slices.Contains(words, "drives")
	}
	_, all := sources(t)
	for _, s := range all {
		if what := concurrent(s.file); plain[s.pkg] && what != "" {
			t.Errorf("%s: %s: package %s needs the race detector, and is plain in test/alone", s.path, what, s.pkg)
		}
		if drives[s.pkg] && strings.HasPrefix(s.pkg, "internal/") {
			t.Errorf("%s: package %s is a product's, and needs the race detector: it cannot drive others in test/alone", s.path, s.pkg)
			drives[s.pkg] = false
		}
		if !s.test {
			continue
		}
		_, alone := tested[s.pkg]
		if alone {
			tested[s.pkg] = true
		}
		runs := slices.ContainsFunc([]string{"test/built", "test/env", "cmd/berth"}, func(p string) bool { return strings.Contains(string(s.text), `"`+module+"/"+p+`"`) })
		if !alone && runs {
			t.Errorf("%s builds berth: package %s belongs in test/alone", s.path, s.pkg)
		}
	}
	for pkg, tests := range tested {
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
