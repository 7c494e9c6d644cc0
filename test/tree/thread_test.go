package tree

import (
	"go/ast"
	"strings"
	"testing"
)

// TestOnePlaceOwnsThreads checks that a goroutine gets a thread of its own by package thread only: any other could get the main thread,
// which does not end with it, and whose namespaces /proc shows as those of the process.
func TestOnePlaceOwnsThreads(t *testing.T) {
	set, all := sources(t)
	found := 0
	for _, s := range all {
		if !strings.HasPrefix(s.pkg, "internal/") || s.test {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			g, ok := n.(*ast.GoStmt)
			if !ok {
				return true
			}
			if f, ok := g.Call.Fun.(*ast.FuncLit); ok && locks(f.Body) {
				if found++; s.pkg != "internal/sys/thread" {
					t.Errorf("%s: a thread is locked by package thread only", set.Position(g.Pos()))
				}
			}
			return true
		})
	}
	if found == 0 {
		t.Error("package thread was not found")
	}
}

// locks reports whether runtime.LockOSThread is called in a function itself.
func locks(body *ast.BlockStmt) bool {
	for _, s := range body.List {
		e, _ := s.(*ast.ExprStmt)
		if e == nil {
			continue
		}
		call, _ := e.X.(*ast.CallExpr)
		if call == nil {
			continue
		}
		if f, ok := call.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "LockOSThread" {
			return true
		}
	}
	return false
}
