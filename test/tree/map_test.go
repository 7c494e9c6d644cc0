package tree

import (
	"bytes"
	"fmt"
	"go/doc"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"berth/test/testkit"
)

// The sizes that a newcomer has to learn, and the connections through which a change of one room can break another. These
// numbers may only fall.
const (
	mostNames   = 14  // in internal/
	mostDoors   = 8   // packages of a room that others import; spec and sys are made to be imported
	mostImports = 170 // between rooms, one for each pair of packages; imports of host, spec and sys are not counted
	mostArrows  = 54  // from room to room
)

// TestRoomsAreApart checks that rooms have few doors, and that few imports lead through them. Packages that only tests import are not counted.
func TestRoomsAreApart(t *testing.T) {
	names, err := os.ReadDir(filepath.Join(root, "internal"))
	if err != nil || len(names) > mostNames {
		t.Errorf("internal/ holds %d names, more than %d: a package belongs in a room (%v)", len(names), mostNames, err)
	}
	imports, doors := map[[2]string]bool{}, map[string]map[string]bool{}
	arrows, crossed := map[string]bool{}, map[string]bool{} // from rooms to rooms, and to packages
	_, all := sources(t)
	for _, s := range all {
		pkg, internal := strings.CutPrefix(s.pkg, "internal/")
		if !internal || s.test || forTests(pkg) {
			continue
		}
		for _, imp := range s.file.Imports {
			target, own := strings.CutPrefix(strings.Trim(imp.Path.Value, `"`), module+"/internal/")
			if !own || forTests(target) || !placed(pkg) || !placed(target) || inRoom(pkg).name == inRoom(target).name {
				continue
			}
			from, to := inRoom(pkg).name, inRoom(target).name
			arrows[from+" → "+to], crossed[from+" → "+target] = true, true
			if doors[to] == nil {
				doors[to] = map[string]bool{}
			}
			doors[to][target] = true
			if !slices.Contains(everybodys, to) {
				imports[[2]string{pkg, target}] = true
			}
		}
	}
	for _, r := range rooms {
		of := slices.Sorted(maps.Keys(doors[r.name]))
		t.Logf("%-8s %2d doors: %s", r.name, len(of), strings.Join(of, " "))
		if len(of) > mostDoors && r.name != "spec" && r.name != "sys" {
			t.Errorf("other rooms import %d packages of %s, more than %d: %v", len(of), r.name, mostDoors, of)
		}
	}
	for _, r := range rooms {
		for to := range strings.FieldsSeq(r.uses) {
			if !arrows[r.name+" → "+to] {
				t.Errorf("room %s uses nothing of %s: take it from its line in rooms_test.go", r.name, to)
			}
		}
		for _, pkg := range passages[r.name] {
			if !crossed[r.name+" → "+pkg] {
				t.Errorf("room %s does not import %s: take it from passages in rooms_test.go", r.name, pkg)
			}
		}
	}
	t.Logf("%d arrows, %d imports between rooms", len(arrows), len(imports))
	if len(arrows) > mostArrows {
		t.Errorf("%d arrows between rooms, more than %d", len(arrows), mostArrows)
	}
	if len(imports) > mostImports {
		t.Errorf("%d imports between rooms, more than %d: what is asked for together lies together", len(imports), mostImports)
	}
}

// forTests reports whether only tests import a package.
func forTests(pkg string) bool { return strings.HasSuffix(pkg, "test") }

// The map stands between these lines of docs/ARCHITECTURE.md.
const (
	mapBegins = "<!-- go test ./test/tree -run TestMap -update makes the map from test/tree/rooms_test.go and the comments of the packages -->\n"
	mapEnds   = "<!-- end of the map -->\n"
)

// TestMap checks that the map of rooms in docs/ARCHITECTURE.md is that of the tree, and that each place of the order is a package.
func TestMap(t *testing.T) {
	said := map[string]string{} // the first sentence of each package's comment
	_, all := sources(t)
	for _, s := range all {
		if pkg, internal := strings.CutPrefix(s.pkg, "internal/"); internal && s.file.Doc != nil && strings.HasPrefix(s.file.Doc.Text(), "Package ") {
			said[pkg] = sentence(s.file.Doc.Text())
		}
	}
	var b strings.Builder
	for _, r := range rooms {
		fmt.Fprintf(&b, "\n### %s\n\n%s\n\n| package | |\n|---|---|\n", r.name, r.is)
		for _, pkg := range slices.Concat(r.rows()...) {
			if said[pkg] == "" {
				t.Errorf("test/tree/rooms_test.go names %s, which is no package with a comment", pkg)
			}
			fmt.Fprintf(&b, "| `%s` | %s |\n", pkg, said[pkg])
		}
	}
	page := filepath.Join(root, "docs/ARCHITECTURE.md")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := bytes.Cut(text, []byte(mapBegins))
	_, after, ends := bytes.Cut(rest, []byte(mapEnds))
	if !begins || !ends {
		t.Fatal("docs/ARCHITECTURE.md has no place for the map")
	}
	want := slices.Concat(before, []byte(mapBegins), []byte(b.String()), []byte("\n"+mapEnds), after)
	testkit.Golden(t, page, string(want))
}

var docLink = regexp.MustCompile(`\[([A-Z]\w*)\]`)

// sentence returns the first sentence of a package comment, without the package's name.
func sentence(comment string) string {
	var none doc.Package
	s := none.Synopsis(comment)
	s = strings.TrimSpace(strings.SplitN(s, " ", 3)[2])
	s = strings.TrimPrefix(s, "is ")
	return strings.ReplaceAll(docLink.ReplaceAllString(s, "$1"), "|", `\|`)
}
