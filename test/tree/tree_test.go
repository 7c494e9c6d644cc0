// Package tree tests the source tree itself: imports between packages, package comments, file sizes and forbidden names.
package tree

import (
	"bytes"
	"errors"
	"fmt"
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
	"sync"
	"testing"
)

const (
	root   = "../.."
	module = "berth"
)

// beside lists what tests may import of packages that do not stand below theirs.
var beside = map[string][]string{
	"image":      {"image/imagetest"},
	"runner/oci": {"image/imagetest", "runner/runnertest"},

	"storage/gateway": {"storage/gateway/gatewaytest", "storage/sftpserve"},
	"sys/treetar":     {"sys/treetar/treetest"},
	"host/group":      {"host/group/grouptest"},

	"site/store":      {"site/store/storetest"},
	"site/store/etcd": {"site/store/storetest"},

	"image/registry": {"image/imagetest"},
}

// leaves know nothing of Berth: every package above them may import them, also one that only names few.
var leaves = []string{"sys/fault", "sys/file", "sys/proof", "sys/lock", "sys/mac", "sys/proc", "sys/inroot"}

// only lists all allowed imports of a package, where they are fewer than its place allows.
var only = map[string][]string{
	"spec/vnode":   {"sys/suggest"},
	"spec/roles":   {"sys/refuse"},
	"sys/refuse":   {},
	"sys/layout":   {"sys/refuse"},
	"sys/step":     {"spec/vnode", "sys/refuse", "sys/jsonfile"},
	"spec":         {"spec/vnode", "sys/refuse", "sys/suggest"},
	"limit/cgroup": {"host/group", "host/block", "host", "sys/step", "sys/refuse", "spec/vnode"},
	"image/users":  {"sys/refuse"},
	"spec/envfile": {"spec/vnode", "sys/refuse"},

	"site/slurm/slurmconf": {"site/slurm/settings", "spec/vnode", "sys/refuse"},
	"site/slurm/hostlist":  {"sys/refuse"},
	"site/slurm/control":   {"site/slurm/hostlist", "sys/fork", "sys/refuse"},
	"site/slurm/reconcile": {"site/slurm/control", "site/slurm/settings", "spec/roles", "spec/vnode", "sys/layout", "sys/refuse"},
	"site/slurm/wish":      {"spec/template", "sys/suggest", "sys/refuse"},
	"site/slurm/settings":  {"spec", "spec/roles", "spec/vnode", "sys/refuse", "sys/layout", "site/slurm/hostlist"},

	"site/iosync/want":  {"spec/vnode", "sys/refuse"},
	"site/iosync/place": {"host/group", "sys/fork", "host/block", "host", "sys/refuse", "sys/layout"},
	"site/iosync/probe": {"sys/bpf/compiled", "sys/refuse", "sys/text"},
	"site/iosync/share": {}, "site/iosync/simulate": {"site/iosync/share", "site/iosync/allot"}, "site/iosync/allot": {"site/iosync/share"},

	"site/intercept/preload": {"sys/fork"},
	"site/intercept/network": {"host/netif", "sys/bpf", "sys/refuse"},
	"site/intercept/gate":    {"sys/bpf/compiled", "sys/fork", "sys/refuse"},

	"site/intercept/instances": {"sys/bpf", "sys/fork", "sys/refuse", "sys/thread"},

	"sys/bpf/compiled": {"sys/refuse"},
	"sys/inherit":      {"sys/refuse"},

	"sys/fork":        {},
	"sys/version":     {},
	"network/link":    {"host/membership", "network/nat", "network/address", "network/sriov", "network/shape", "network/antispoof", "host/netif", "network/dhcp", "sys/step", "sys/refuse", "spec/vnode"},
	"network/nat":     {"network/address", "sys/fork", "host/netif", "sys/step", "sys/refuse", "sys/jsonfile", "spec/vnode"},
	"host/membership": {"sys/step", "sys/refuse", "sys/layout", "sys/jsonfile", "spec/vnode"},
	"network/address": {"host/membership", "network/sriov", "network/antispoof", "host/netif", "network/dhcp", "sys/step", "sys/refuse", "sys/layout", "spec/vnode"},
	"network/sriov":   {"sys/fork", "host/netif", "host/systemd", "sys/step", "sys/refuse", "sys/layout", "sys/jsonfile"},
	"network/shape":   {"host/netif", "sys/bpf", "sys/thread", "sys/step", "spec/vnode"},
	"host/netif":      {"sys/thread", "sys/step", "sys/refuse"},
	"network/dhcp":    {},
	"host/group":      {"sys/fork", "sys/thread", "host", "sys/step", "sys/refuse"},
	"sys/fault":       {},
	"sys/proof":       {},
	"sys/lock":        {},
	"sys/inroot":      {},
	"image/media":     {},
	"sys/mac":         {},
	"sys/proc":        {},
	"sys/file":        {"sys/fault", "sys/refuse"},
	"runner/streams":  {"sys/refuse"},
	"node/nodelog":    {},
	"image":           {"storage/packed", "host/block", "host", "sys/step", "sys/refuse", "sys/layout", "spec/vnode", "sys/jsonfile", "sys/suggest", "sys/space", "image/users", "image/inflate", "image/media", "sys/quota", "sys/purge", "sys/treetar"},
	"limit/device":    {"storage/mounts", "host/block", "host", "sys/step", "sys/refuse", "sys/layout", "spec/vnode", "sys/jsonfile"},
	"host/systemd":    {"sys/fork", "sys/step", "sys/refuse"},
	"node/names":      {"spec/vnode"},
	"image/pull":      {"sys/fork", "sys/refuse", "sys/sibling"},
	"sys/sibling":     {"sys/refuse"},
	"image/debian":    {"sys/fork", "sys/purge", "sys/refuse", "sys/space", "sys/thread"},
	"storage/ids":     {"host/block", "host", "sys/step", "sys/refuse", "sys/layout", "spec/vnode"},
	"runner":          {"runner/streams", "host/group", "storage/mounts", "sys/fork", "host", "sys/step", "sys/refuse", "spec/vnode"},
	"runner/oci":      {"spec/envfile", "runner", "runner/first", "host/group", "storage/mounts", "sys/thread", "sys/fork", "sys/inherit", "host/block", "host", "sys/step", "sys/refuse", "sys/layout", "spec/vnode", "sys/jsonfile"},
	"storage/gateway": {"host/group", "sys/fork", "sys/inherit", "storage/mounts", "storage/portblock", "host/netif", "sys/thread", "host/block", "host", "sys/step", "sys/refuse", "sys/layout", "spec/vnode", "sys/jsonfile"},

	"node/rescue":     {"node/records", "storage/scratch", "network/nat", "network/address", "sys/step"},
	"storage/scratch": {"storage/mounts", "sys/fork", "host/block", "sys/step", "sys/refuse", "sys/layout", "spec/vnode", "sys/jsonfile", "sys/quota", "sys/purge"},
	"storage/copier":  {"host/group", "storage/mounts", "sys/fork", "sys/thread", "host", "sys/refuse", "sys/treetar"},
	"sys/treetar":     {"sys/refuse"},

	"image/registry":    {"image/pull", "image/media", "sys/space", "sys/jsonfile", "sys/refuse"},
	"storage/sftpserve": {"sys/fork", "sys/thread", "sys/refuse"},
	"limit/weight":      {"host/group", "host", "sys/step", "sys/refuse", "spec/vnode"},
	"limit/devgroup":    {"host/group", "sys/bpf", "host", "sys/step", "spec/vnode"},
	"limit/rlimit":      {"host/group", "host", "sys/step", "sys/refuse", "spec/vnode"},
	"host/counters":     {"host/group", "host"},
	"limit/sysctl":      {"sys/thread", "sys/step", "sys/refuse", "spec/vnode"},

	"storage/portblock": {"sys/bpf", "host", "sys/step", "sys/refuse"},
	"network/antispoof": {"host/netif", "network/dhcp", "sys/bpf", "sys/step", "sys/refuse"},

	"network/netserve": {"host/group", "host/netif", "sys/fork", "sys/inherit", "sys/thread", "host", "sys/step", "sys/refuse", "sys/seccomp"},
}

// standardOnly lists the packages that use only the standard library and Berth's own packages.
var standardOnly = []string{"spec/vnode", "spec/roles", "sys/refuse", "sys/layout", "sys/step", "sys/suggest", "sys/jsonfile"}

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
	names := files(t)
	parsed.Do(func() { parsed.err = parse(names) })
	if parsed.err != nil {
		t.Fatal(parsed.err)
	}
	return parsed.set, parsed.all
}

// parsed holds the sources, which are parsed once for all tests.
var parsed struct {
	sync.Once
	set *token.FileSet
	all []source
	err error
}

func parse(names []string) error {
	parsed.set = token.NewFileSet()
	for _, name := range names {
		if !strings.HasSuffix(name, ".go") || strings.Contains(name, "/testdata/") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(parsed.set, name, text, parser.ParseComments)
		if err != nil {
			return fmt.Errorf("parse: %w", err)
		}
		parsed.all = append(parsed.all, source{path: name, pkg: path.Dir(name), test: strings.HasSuffix(name, "_test.go"), text: text, file: file})
	}
	if len(parsed.all) == 0 {
		return errors.New("no Go files found: is the test in its place?")
	}
	return nil
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

// TestImportsPointDown enforces the import direction of docs/ARCHITECTURE.md.
func TestImportsPointDown(t *testing.T) {
	_, all := sources(t)
	for _, s := range all {
		pkg, internal := strings.CutPrefix(s.pkg, "internal/")
		if !internal {
			continue // cmd, tools and test may import what they like
		}
		if !placed(pkg) {
			t.Errorf("%s: package %s has no place: give it one in test/tree/rooms_test.go", s.path, pkg)
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
	case !mayUse(pkg, target):
		t.Errorf("%s imports %s: imports point down, along the rooms' uses, and mechanisms do not import each other (rooms_test.go)", s.path, name)
	case only[pkg] != nil && !s.test && !slices.Contains(only[pkg], target) && !slices.Contains(leaves, target):
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

// TestSkipsHaveReasons checks that each skip names what is missing, and that root rights have one reason.
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
			if text, ok := first(call.Args); ok && strings.HasPrefix(sel.Sel.Name, "Skip") && strings.HasPrefix(text, "needs root") {
				t.Errorf("%s: skips by itself for want of root: testkit.NeedsRoot does", set.Position(call.Pos()))
			}
			return true
		})
	}
}

// first returns the first argument of a call, if it is a text.
func first(args []ast.Expr) (text string, is bool) {
	if len(args) == 0 {
		return "", false
	}
	lit, is := args[0].(*ast.BasicLit)
	if !is {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}

// TestNoForbiddenNames keeps out of the tree what belongs to one workplace, and hosts that would be fetched from
// without a user's wish. The names are written here so that this file does not hold them. Docker Hub's name may be said:
// a short name, which berth image pull refuses, is answered with the long one.
func TestNoForbiddenNames(t *testing.T) {
	names := []string{
		"ghcr" + `\.io`, "quay" + `\.io`, `\bgcr` + `\.io`, "registry" + `\.k8s`, "mcr" + `\.microsoft`,
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
