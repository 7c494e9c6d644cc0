package tree

import (
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Patterns of the names in documents: tests, tests with their package, files.
var (
	namedTest   = regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w*`)
	testAndHome = regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)`,? (?:in `|\\(`?)((?:internal|test)/[a-z0-9/]+)")
	namedPath   = regexp.MustCompile(`\b(?:internal|test|cmd|tools)/[\w/.-]*\w`)
	namedFile   = regexp.MustCompile("`((?:\\w+/)+\\w+\\.go)`")
)

// TestDocumentsNameWhatExists checks that the tests, packages and files that the documents name are there.
func TestDocumentsNameWhatExists(t *testing.T) {
	homes := map[string][]string{} // folders of each test
	_, all := sources(t)
	for _, s := range all {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && s.test && f.Recv == nil {
				homes[f.Name.Name] = append(homes[f.Name.Name], s.pkg)
			}
		}
	}
	var names []string
	for name := range homes {
		names = append(names, name)
	}
	exists := func(name string) bool {
		for _, at := range []string{name, "internal/" + name} {
			if _, err := os.Stat(filepath.Join(root, at)); err == nil {
				return true
			}
		}
		return false
	}
	for _, name := range files(t) {
		if path.Ext(name) != ".md" || name == "CHANGELOG.md" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, test := range namedTest.FindAllString(string(text), -1) {
			if !slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, test) }) { // TestKernel… stands for several
				t.Errorf("%s names %s, and there is no such test", name, test)
			}
		}
		for _, m := range testAndHome.FindAllStringSubmatch(string(text), -1) {
			if homes[m[1]] != nil && !slices.Contains(homes[m[1]], m[2]) {
				t.Errorf("%s says that %s is in %s: it is in %v", name, m[1], m[2], homes[m[1]])
			}
		}
		for _, at := range namedPath.FindAllString(string(text), -1) {
			if at != "internal/X" && !exists(at) {
				t.Errorf("%s names %s, which is not there", name, at)
			}
		}
		for _, m := range namedFile.FindAllStringSubmatch(string(text), -1) {
			if !exists(m[1]) {
				t.Errorf("%s names %s, which is not there", name, m[1])
			}
		}
	}
}
