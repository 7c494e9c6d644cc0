// Package tree tests the source tree itself: imports between packages, package comments, file sizes and forbidden names.
package tree

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	root   = "../.."
	module = "berth"
)

// layers lists the packages below internal/, from the top. A package may import only packages of lower layers.
var layers = [][]string{
	{"cli"},
	{"report"},
	{"plot"},
	{"api", "iosync", "slurm", "bench", "metrics", "model"},
	{"node"},
	{"plan", "spec"},
	{"cgroup", "link", "image", "image/imagetest", "oci", "gateway", "store", "ids", "device", "systemd", "names"}, // mechanisms: independent
	{"mounts", "sriov", "dhcp", "antispoof", "relay"},                                                              // used by them
	{"block"},
	{"host"},
	{"step"},
	{"vnode", "layout", "jsonfile", "space"},
	{"refuse", "bpf", "thread", "nearest", "nodelog"},
}

// beside lists the allowed imports within a layer.
var beside = map[string][]string{
	"image": {"image/imagetest"},
	"oci":   {"image/imagetest"},
}

// only lists all allowed imports of a package, where they are fewer than its layer allows.
var only = map[string][]string{
	"vnode":   {"nearest"},
	"refuse":  {},
	"layout":  {},
	"step":    {"vnode", "refuse", "jsonfile"},
	"spec":    {"vnode", "refuse", "nearest"},
	"cgroup":  {"bpf", "block", "host", "step", "refuse", "layout", "vnode"},
	"link":    {"sriov", "dhcp", "antispoof", "bpf", "thread", "block", "host", "step", "refuse", "layout", "vnode"},
	"sriov":   {"block", "host", "step", "refuse", "layout", "vnode", "jsonfile"},
	"dhcp":    {},
	"relay":   {"refuse"},
	"nodelog": {},
	"image":   {"block", "host", "step", "refuse", "layout", "vnode", "jsonfile", "nearest", "space"},
	"device":  {"mounts", "block", "host", "step", "refuse", "layout", "vnode", "jsonfile"},
	"systemd": {"step", "refuse"},
	"names":   {"vnode"},
	"ids":     {"block", "host", "step", "refuse", "layout", "vnode"},
	"oci":     {"mounts", "thread", "block", "host", "step", "refuse", "layout", "vnode", "jsonfile"},
	"gateway": {"mounts", "thread", "block", "host", "step", "refuse", "layout", "vnode"},

	"antispoof": {"bpf", "step"},
}

// standardOnly lists the packages that use only the standard library and Berth's own packages.
var standardOnly = []string{"vnode", "refuse", "layout", "step", "nearest", "jsonfile"}

// source is one parsed Go file.
type source struct {
	path string // from the root
	pkg  string // folder, from the root
	test bool
	text []byte
	file *ast.File
}

// sources parses all Go files of the tree once.
func sources(t *testing.T) (*token.FileSet, []source) {
	t.Helper()
	set := token.NewFileSet()
	var all []source
	for _, name := range files(t) {
		if !strings.HasSuffix(name, ".go") || strings.Contains(name, "/testdata/") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		file, err := parser.ParseFile(set, name, text, parser.ParseComments)
		if err != nil {
			t.Errorf("parse: %v", err)
			continue
		}
		all = append(all, source{path: name, pkg: path.Dir(name), test: strings.HasSuffix(name, "_test.go"), text: text, file: file})
	}
	if len(all) == 0 {
		t.Fatal("no Go files found: is the test in its place?")
	}
	return set, all
}

// files lists the files of the tree, except build results and git's own files.
func files(t *testing.T) []string {
	t.Helper()
	var all []string
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (name == ".git" || name == "build") {
			return fs.SkipDir
		}
		if d.Type().IsRegular() && name != ".git" { // a file in a second working tree
			all = append(all, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// layer returns the number of the layer that a package below internal/ is in.
func layer(pkg string) int {
	return slices.IndexFunc(layers, func(l []string) bool { return slices.Contains(l, pkg) })
}

// TestImportsPointDown enforces the import direction of docs/ARCHITECTURE.md.
func TestImportsPointDown(t *testing.T) {
	_, all := sources(t)
	for _, s := range all {
		pkg, internal := strings.CutPrefix(s.pkg, "internal/")
		if !internal {
			continue // cmd, tools and test may import what they like
		}
		if layer(pkg) < 0 {
			t.Errorf("%s: package %s is in no layer: give it its place in %s", s.path, pkg, "test/tree")
			continue
		}
		for _, imp := range s.file.Imports {
			name, err := strconv.Unquote(imp.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			checkImport(t, s, pkg, name)
		}
	}
}

func checkImport(t *testing.T, s source, pkg, name string) {
	t.Helper()
	target, own := strings.CutPrefix(name, module+"/internal/")
	standard := !strings.Contains(strings.Split(name, "/")[0], ".")
	switch {
	case target == pkg: // an external test of the package
	case !own && (standard || s.test || !slices.Contains(standardOnly, pkg)):
	case !own:
		t.Errorf("%s imports %s: package %s uses the standard library only", s.path, name, pkg)
	case slices.Contains(beside[pkg], target) && s.test:
	case layer(target) <= layer(pkg):
		t.Errorf("%s imports %s: imports point down, and mechanisms do not import each other", s.path, name)
	case only[pkg] != nil && !s.test && !slices.Contains(only[pkg], target):
		t.Errorf("%s imports %s: package %s may import %v only", s.path, name, pkg, only[pkg])
	}
}

// TestPackageComments checks that each package has a package comment.
func TestPackageComments(t *testing.T) {
	_, all := sources(t)
	said := map[string]int{}
	for _, s := range all {
		name := s.file.Name.Name
		if strings.HasSuffix(name, "_test") {
			continue
		}
		if _, seen := said[s.pkg]; !seen {
			said[s.pkg] = 0
		}
		if s.file.Doc == nil {
			continue
		}
		text := s.file.Doc.Text()
		if !strings.HasPrefix(text, "Package "+name+" ") && !strings.HasPrefix(text, "Command ") {
			continue // the licence of something, or a build tag's reason
		}
		said[s.pkg]++
		if len(strings.Fields(text)) < 5 {
			t.Errorf("%s: the package comment says too little: %q", s.path, text)
		}
	}
	for pkg, n := range said {
		if n != 1 {
			t.Errorf("package %s has %d package comments, not one", pkg, n)
		}
	}
}

// mostLines is the largest number of lines of a file, which keeps each file to one subject.
const mostLines = 450

func TestFilesAreSmall(t *testing.T) {
	_, all := sources(t)
	for _, s := range all {
		if n := bytes.Count(s.text, []byte("\n")); n > mostLines {
			t.Errorf("%s has %d lines, more than %d: a file has one subject", s.path, n, mostLines)
		}
	}
}

// TestNoHiddenState checks that there are no init functions: they run before main and slow down every start.
func TestNoHiddenState(t *testing.T) {
	_, all := sources(t)
	for _, s := range all {
		for _, decl := range s.file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Name.Name == "init" && f.Recv == nil {
				t.Errorf("%s has an init function", s.path)
			}
		}
	}
}

// TestSkipsHaveReasons checks that each skip names what is missing.
func TestSkipsHaveReasons(t *testing.T) {
	set, all := sources(t)
	for _, s := range all {
		if !s.test {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if sel.Sel.Name == "SkipNow" || sel.Sel.Name == "Skip" && len(call.Args) == 0 {
				t.Errorf("%s: skips without a reason", set.Position(call.Pos()))
			}
			return true
		})
	}
}

// TestNoForbiddenNames keeps out of the tree what belongs to one workplace, and hosts that would be fetched from
// without a user's wish. The names are written here so that this file does not hold them.
func TestNoForbiddenNames(t *testing.T) {
	names := []string{
		"docker" + `\.io`, "ghcr" + `\.io`, "quay" + `\.io`, `\bgcr` + `\.io`, "registry" + `\.k8s`, "mcr" + `\.microsoft`,
		"proxy" + `\.golang`, "sum" + `\.golang`, "deb" + `\.debian\.org`, "pypi" + `\.org`, "npmjs" + `\.`,
		`(^|[^\w.])/work` + "/", "bash" + "_jobs", "process" + "_api",
	}
	forbidden := regexp.MustCompile(strings.Join(names, "|"))
	for _, name := range files(t) {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.IndexByte(text, 0) >= 0 {
			continue // not a text
		}
		for i, line := range bytes.Split(text, []byte("\n")) {
			if hit := forbidden.Find(line); hit != nil {
				t.Errorf("%s:%d names %q", name, i+1, hit)
			}
		}
	}
}
