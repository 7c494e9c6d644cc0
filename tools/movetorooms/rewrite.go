package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const module = "berth/"

var (
	folder     = regexp.MustCompile(`(^|[^\w-])((?:internal|test)/[\w/-]+)(\.[a-z]+\b)?`)
	codeInPage = regexp.MustCompile("`([a-z]\\w*(?:/[\\w.*]*)+)`")
)

// rewrite returns what a file says after the move.
func (t tree) rewrite(name string, text []byte) ([]byte, error) {
	switch {
	case strings.HasPrefix(name, "docs/evidence/") && path.Ext(name) != ".md", name == "CHANGELOG.md", strings.Contains(name, "/testdata/"), bytes.IndexByte(text, 0) >= 0:
		return text, nil
	case path.Ext(name) == ".go":
		changed, err := t.code(name, text)
		if err != nil {
			return nil, err
		}
		changed = t.folders(changed)
		if was, err := format.Source(text); err == nil && bytes.Equal(was, text) {
			return format.Source(changed) // imports are in order again
		}
		return changed, nil
	case path.Ext(name) == ".md":
		text = t.page(name, text)
	case name == ".golangci.yml" && !bytes.Contains(text, []byte("bench/commands")):
		text = bytes.Replace(text, []byte(`"!**/internal/cli/**", `), []byte(`"!**/internal/cli/**", "!**/internal/bench/commands/**", "!**/internal/sys/help/**", `), 1)
	}
	return t.folders(text), nil
}

// folders gives each path below internal/ or test/ that a text names its new place.
func (t tree) folders(text []byte) []byte {
	return folder.ReplaceAllFunc(text, func(hit []byte) []byte {
		m := folder.FindSubmatch(hit)
		before, dir, ext := string(m[1]), string(m[2]), string(m[3])
		if to, moves := t.moves[dir+ext]; moves {
			return []byte(before + to)
		}
		bare := strings.TrimRight(dir, "/")
		to, _ := place(bare)
		return []byte(before + to + dir[len(bare):] + ext)
	})
}

// page does what only pages need: they name files and packages from internal/ on, and packages by their names alone.
func (t tree) page(name string, text []byte) []byte {
	text = codeInPage.ReplaceAllFunc(text, func(hit []byte) []byte {
		said := strings.Trim(string(hit), "`")
		if there, err := filepath.Glob(path.Join("internal", said)); err != nil || len(there) == 0 {
			return hit
		}
		if to, moves := t.moves["internal/"+said]; moves {
			return []byte("`" + strings.TrimPrefix(to, "internal/") + "`")
		}
		dir := path.Dir("internal/" + said + "x")
		if info, err := os.Stat("internal/" + said); err == nil && info.IsDir() {
			dir = strings.TrimRight("internal/"+said, "/")
		}
		to, _ := place(dir)
		return []byte("`" + strings.TrimPrefix(to, "internal/") + strings.TrimPrefix("internal/"+said, dir) + "`")
	})
	for dir := range places {
		from, to, yes := renamed(dir)
		if !yes || from == "bench" || from == "site" { // others have these names, too
			continue
		}
		tick := "`?"
		if from == "may" {
			tick = "`"
		}
		text = regexp.MustCompile("([Pp]ackages? "+tick+")"+from+`\b`).ReplaceAll(text, []byte("${1}"+to))
		if name == "docs/ARCHITECTURE.md" && from != "limit" {
			text = bytes.ReplaceAll(text, []byte("`"+from+"`"), []byte("`"+to+"`"))
		}
		if name == "docs/ARCHITECTURE.md" {
			text = regexp.MustCompile("`"+from+`\.([A-Z])`).ReplaceAll(text, []byte("`"+to+".${1}"))
		}
	}
	return text
}

// edit replaces bytes of a file.
type edit struct {
	at, end int
	text    string
}

// code renames packages in a Go file: its own, and those that it imports.
func (t tree) code(name string, text []byte) ([]byte, error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, text, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	var edits []edit
	replace := func(n ast.Node, to string) {
		at := set.Position(n.Pos()).Offset
		edits = append(edits, edit{at, at + int(n.End()-n.Pos()), to})
	}
	dir := path.Dir(name)
	from, now, own := renamed(dir)
	if own {
		replace(file.Name, now+strings.TrimPrefix(file.Name.Name, from))
	}
	qualifiers := map[string]string{}
	for _, spec := range file.Imports {
		at, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		if from, to, yes := renamed(strings.TrimPrefix(at, module)); yes && strings.HasPrefix(at, module) && spec.Name == nil {
			if clash := visible(file, from, to); clash != nil && clashes[name] == nil {
				fmt.Printf("%s: %s is a name here already: the import keeps the name %s\n", set.Position(clash.Pos()), to, from)
				replace(spec.Path, from+" "+spec.Path.Value)
				continue
			}
			qualifiers[from] = to
		}
	}
	for _, id := range packages(file) {
		if to, yes := qualifiers[id.Name]; yes {
			replace(id, to)
		}
	}
	clashing(file, clashes[name], replace)
	for _, group := range file.Comments {
		for _, c := range group.List {
			said := comment(c.Text)
			for was, to := range clashes[name] {
				if strings.HasPrefix(said, "// "+was+" ") {
					said = "// " + to + strings.TrimPrefix(said, "// "+was)
				}
			}
			if own && group == file.Doc {
				said = strings.Replace(said, "// Package "+from+" ", "// Package "+now+" ", 1)
			}
			if said != c.Text {
				replace(c, said)
			}
		}
	}
	t.relative(file, name, replace)
	if strings.HasPrefix(name, "test/tree/") {
		layers(file, replace)
	}
	slices.SortFunc(edits, func(a, b edit) int { return b.at - a.at })
	for _, e := range edits {
		text = slices.Concat(text[:e.at], []byte(e.text), text[e.end:])
	}
	return text, nil
}

// packages returns the names of packages in a file, as far as they qualify something.
func packages(file *ast.File) (all []*ast.Ident) {
	ast.Inspect(file, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if id, ok := sel.X.(*ast.Ident); ok && id.Obj == nil && slices.Contains(file.Unresolved, id) {
				all = append(all, id)
			}
		}
		return true
	})
	return all
}

// clashing renames variables and functions whose names packages get.
func clashing(file *ast.File, names map[string]string, replace func(ast.Node, string)) {
	other := map[*ast.Ident]bool{} // fields and methods of something, packages, keys
	for _, s := range file.Imports {
		if to, yes := names[path.Base(strings.Trim(s.Path.Value, `"`))]; yes && to != "" {
			return // done before
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			other[n.Sel] = true
		case *ast.KeyValueExpr:
			if id, ok := n.Key.(*ast.Ident); ok {
				other[id] = true
			}
		case *ast.Field:
			if n.Names != nil {
				for _, id := range n.Names {
					other[id] = true
				}
			}
		case *ast.Ident:
			if to, yes := names[n.Name]; yes && !other[n] {
				replace(n, to)
			}
		}
		return true
	})
}

// visible returns a declaration of a name in a block or a list of parameters in which a package that is to get this name is used, nil if there is none.
func visible(file *ast.File, from, to string) (clash *ast.Ident) {
	var uses []*ast.Ident
	for _, id := range packages(file) {
		if id.Name == from {
			uses = append(uses, id)
		}
	}
	if file.Scope.Lookup(to) != nil {
		return file.Name
	}
	var blocks []ast.Node
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case nil:
			blocks = blocks[:len(blocks)-1]
			return true
		case *ast.Ident:
			if n.Name != to || n.Obj == nil || n.Obj.Pos() != n.Pos() || n.Obj.Kind != ast.Var && n.Obj.Kind != ast.Con && n.Obj.Kind != ast.Typ {
				break
			}
			for _, at := range slices.Backward(blocks) {
				switch at.(type) {
				case *ast.BlockStmt, *ast.FuncDecl, *ast.FuncLit, *ast.IfStmt, *ast.ForStmt, *ast.RangeStmt, *ast.SwitchStmt, *ast.CaseClause, *ast.CommClause, *ast.TypeSwitchStmt:
				default:
					continue
				}
				for _, use := range uses {
					if n.Pos() < use.Pos() && use.End() <= at.End() && clash == nil {
						clash = n
					}
				}
				break
			}
		}
		blocks = append(blocks, n)
		return true
	})
	return clash
}

// comment gives the packages that a comment names their new names.
func comment(said string) string {
	for dir := range places {
		from, to, yes := renamed(dir)
		if !yes || from == "bench" || from == "site" {
			continue
		}
		if !strings.Contains(said, from) {
			continue
		}
		if from != "may" { // a word, too
			said = regexp.MustCompile(`\b(packages? )`+from+`\b`).ReplaceAllString(said, "${1}"+to)
		}
		said = regexp.MustCompile(`(^|[^\w.])`+from+`\.([A-Z])`).ReplaceAllString(said, "${1}"+to+".${2}")
	}
	return said
}

// relative mends paths that lead from a file that moves to others of the tree: to files, and to folders that are not packages.
func (t tree) relative(file *ast.File, name string, replace func(ast.Node, string)) {
	dir, to := path.Dir(name), path.Dir(t.after(name))
	if dir == to {
		return
	}
	ast.Inspect(file, func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return true
		}
		said, err := strconv.Unquote(lit.Value)
		if err != nil || !strings.HasPrefix(said, "../") || strings.Trim(said, "./") == "" {
			return true
		}
		target := path.Join(dir, said)
		there, err := filepath.Glob(target)
		if err != nil || len(there) == 0 || !filepath.IsLocal(target) {
			return true
		}
		info, err := os.Stat(there[0])
		if err != nil || info.IsDir() && strings.HasPrefix(target, "internal") {
			return true
		}
		moved, _ := place(path.Dir(target))
		rel, err := filepath.Rel(to, path.Join(moved, path.Base(t.after(target))))
		if err == nil {
			replace(lit, strconv.Quote(rel))
		}
		return true
	})
}

// layers gives the lists of test/tree, which name packages without internal/ before them, the new names.
func layers(file *ast.File, replace func(ast.Node, string)) {
	lists := []string{"layers", "beside", "leaves", "only", "standardOnly"}
	mend := func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			said, err := strconv.Unquote(lit.Value)
			if to, known := place("internal/" + said); err == nil && known {
				replace(lit, strconv.Quote(strings.TrimPrefix(to, "internal/")))
			}
		}
		return true
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			if slices.Contains(lists, n.Names[0].Name) {
				ast.Inspect(n, mend)
				return false
			}
		case *ast.BinaryExpr:
			if id, ok := n.X.(*ast.Ident); ok && id.Name == "pkg" {
				mend(n.Y)
			}
		case *ast.CallExpr:
			if id, ok := n.Fun.(*ast.Ident); ok && id.Name == "layer" {
				mend(n.Args[0])
			}
		}
		return true
	})
}
