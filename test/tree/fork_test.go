package tree

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// noKeepers lists the rooms and packages whose code the keeper never runs.
var noKeepers = []string{"cli", "bench", "site/sitecli"}

// TestOnePlaceForks checks that code which the keeper may run starts and waits for processes by package fork only: any
// other wait could lose an exit status to the keeper's reaping of orphans.
func TestOnePlaceForks(t *testing.T) {
	byHand := []string{"StartProcess", "ForkExec", "Wait4", "Waitid"}
	ofCommand := []string{"Run", "Start", "Wait", "Output", "CombinedOutput"}
	set, all := sources(t)
	for _, s := range all {
		pkg, internal := strings.CutPrefix(s.pkg, "internal/")
		if !internal || s.test || pkg == "sys/fork" || strings.HasSuffix(pkg, "test") || slices.ContainsFunc(noKeepers, func(p string) bool { return pkg == p || strings.HasPrefix(pkg, p+"/") }) {
			continue
		}
		commands := slices.ContainsFunc(s.file.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"os/exec"` })
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			f, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, _ := f.X.(*ast.Ident)
			if x != nil && x.Name == "fork" {
				return true
			}
			known := slices.Contains(byHand, f.Sel.Name) && x != nil && slices.Contains([]string{"os", "unix", "syscall"}, x.Name) && !waitsForOne(call)
			if known || commands && len(call.Args) == 0 && slices.Contains(ofCommand, f.Sel.Name) {
				t.Errorf("%s: %s: a process is started and waited for by package fork only", set.Position(call.Pos()), f.Sel.Name)
			}
			return true
		})
	}
}

// waitsForOne reports whether a call is wait4(2) for one process that the caller names.
func waitsForOne(call *ast.CallExpr) bool {
	if f := call.Fun.(*ast.SelectorExpr); f.Sel.Name != "Wait4" || len(call.Args) == 0 {
		return false
	}
	_, minusOne := call.Args[0].(*ast.UnaryExpr)
	return !minusOne
}
