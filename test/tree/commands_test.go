package tree

import (
	"go/ast"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestCommandsHaveTheirFiles checks that a command of the command line is in the file of its name: berth start in start.go, berth vf enable
// in vf_enable.go or, in a package of its family, in enable.go.
func TestCommandsHaveTheirFiles(t *testing.T) {
	roots := []string{"berth", "berth-sync", "help"}
	set, all := sources(t)
	for _, s := range all {
		if s.test || !strings.HasPrefix(s.pkg, "internal/") {
			continue
		}
		file := strings.TrimSuffix(path.Base(s.path), ".go")
		ast.Inspect(s.file, func(n ast.Node) bool {
			key, ok := n.(*ast.KeyValueExpr)
			if !ok {
				return true
			}
			field, ok := key.Key.(*ast.Ident)
			value, constant := key.Value.(*ast.BasicLit)
			if !ok || !constant || field.Name != "Use" {
				return true
			}
			use, err := strconv.Unquote(value.Value)
			if err != nil {
				t.Fatal(err)
			}
			name, _, _ := strings.Cut(use, " ")
			own := strings.ReplaceAll(name, "-", "_")
			if !slices.Contains(roots, name) && file != own && !strings.HasSuffix(file, "_"+own) {
				t.Errorf("%s: the command %s is in a file of another name", set.Position(n.Pos()), name)
			}
			return true
		})
	}
}
