package tree

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// mostFloors is the largest number of files on the deepest chain of a package.
const mostFloors = 7

// TestPackagesAreShallow checks that a reader who follows a call through one package passes few files.
func TestPackagesAreShallow(t *testing.T) {
	for _, p := range listed(t) {
		name := strings.TrimPrefix(p.ImportPath, module+"/internal/")
		chain := longest(p.uses(t))
		t.Logf("%2d of %2d files: %s", len(chain), len(p.GoFiles), name)
		if len(chain) > mostFloors {
			t.Errorf("package %s is %d files deep, more than %d: %s", name, len(chain), mostFloors, strings.Join(chain, " → "))
		}
	}
}

// goPackage is what go list -json tells of a package.
type goPackage struct {
	Dir, ImportPath, Export string
	Standard                bool
	GoFiles                 []string
	exports                 map[string]string // of all packages: path to export data
}

// listed compiles the packages below internal/ and returns them.
func listed(t *testing.T) (own []goPackage) {
	t.Helper()
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=Dir,ImportPath,Export,Standard,GoFiles", "./internal/...")
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	exports := map[string]string{}
	for all := json.NewDecoder(out); ; {
		p := goPackage{exports: exports}
		if err := all.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		if strings.HasPrefix(p.ImportPath, module+"/internal/") {
			own = append(own, p)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("go list: %v", err)
	}
	return own
}

// uses returns for each file of the package the files whose functions, types, constants, variables and methods it uses.
func (p goPackage) uses(t *testing.T) map[string]map[string]bool {
	t.Helper()
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	config := types.Config{Importer: importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) { return os.Open(p.exports[path]) })}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	pkg, err := config.Check(p.ImportPath, set, files, info)
	if err != nil {
		t.Fatal(err)
	}
	file := func(at token.Pos) string { return filepath.Base(set.Position(at).Filename) }
	uses := map[string]map[string]bool{}
	for _, name := range p.GoFiles {
		uses[name] = map[string]bool{}
	}
	for id, object := range info.Uses {
		if object.Pkg() != pkg {
			continue
		}
		if v, ok := object.(*types.Var); ok && v.IsField() { // its type is declared at the same place
			continue
		}
		if from, to := file(id.Pos()), file(object.Pos()); from != to {
			uses[from][to] = true
		}
	}
	return uses
}

// longest returns the deepest chain of files, each of which uses the next. Where files use each other in a circle, order says
// which of them stands above; what a file uses above itself does not count.
func longest(uses map[string]map[string]bool) []string {
	var best []string
	below := map[string][]string{} // the deepest chain from a file downwards
	for _, file := range slices.Backward(order(uses)) {
		chain := []string{}
		for _, next := range slices.Sorted(maps.Keys(uses[file])) {
			if len(below[next]) > len(chain) { // none yet: it stands above
				chain = below[next]
			}
		}
		below[file] = append([]string{file}, chain...)
		if len(below[file]) > len(best) {
			best = below[file]
		}
	}
	return best
}

// order sorts files so that few use one before them (Eades, Lin, Smyth 1993: A fast and effective heuristic for the feedback
// arc set problem): again and again it takes a file that uses none of the rest to the end, or one that none of the rest uses
// to the front, or else the one that uses most and is used least.
func order(uses map[string]map[string]bool) []string {
	rest := slices.Sorted(maps.Keys(uses))
	var front, back []string
	for len(rest) > 0 {
		at, most := 0, -len(uses)
		end := false
		for i, file := range rest {
			out, in := 0, 0
			for _, other := range rest {
				if uses[file][other] {
					out++
				}
				if uses[other][file] {
					in++
				}
			}
			switch {
			case out == 0:
				at, most, end = i, len(uses)+1, true
			case in == 0 && most <= len(uses):
				at, most = i, len(uses)
			case out-in > most:
				at, most = i, out-in
			}
		}
		if end {
			back = append(back, rest[at])
		} else {
			front = append(front, rest[at])
		}
		rest = slices.Delete(rest, at, at+1)
	}
	slices.Reverse(back)
	return append(front, back...)
}

func TestLongest(t *testing.T) {
	uses := map[string]map[string]bool{
		"a": {"b": true}, "b": {"c": true, "d": true}, "c": {"b": true, "d": true}, "d": {}, "e": {"d": true},
	}
	if got := strings.Join(longest(uses), " "); got != "a b c d" {
		t.Errorf("the deepest chain is %q", got)
	}
}
