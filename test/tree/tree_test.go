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

// layers lists the packages below internal/, from the top. A package may import only packages of lower layers.
var layers = [][]string{
	{"cli", "agent", "sitecli", "synccli"}, // what the programs berth, berthd, berth-site and berth-sync are
	{"cli/instance", "cli/pools", "cli/sync"},
	{"cli/act", "cli/bench", "cli/images", "cli/share", "cli/site"},
	{"cli/help", "show", "screen", "report", "slurm/power", "slurm/reconcile"},
	{"plot"},
	{"api/server", "api/client", "hostapi"},
	{"api", "iosync", "slurm/instance", "slurm/slurmconf", "slurm/wish", "bench", "bench/suspects", "autostart", "metrics", "model"},
	{"bench/syncbed"},
	{"bench/bed", "bench/nodes"},
	{"bench/wire"},
	{"bench/side"},
	{"bench/result", "fio"},
	{"bench/stat", "top"},
	{"node", "protect", "hostnet", "serve", "claims"},
	{"rescue"},
	{"roster"},
	{"keeper", "watch", "detail", "health", "siteusers", "template", "certs", "audit", "agentconf", "slurm/settings", "slurm/control", "store/embedded"},
	{"plan", "spec", "trial", "foreground", "store/etcd", "store/storetest", "gateway/gatewaytest", "runner/runnertest"},
	{"parts"}, // names the mechanisms
	{
		"cgroup", "standing", "devgroup", "rlimit", "sysctl", "link", "image", "image/imagetest", "oci", "gateway", "store", "ids", "device", "systemd", "names", "netserve",
		"registry", "sftpserve",
		"copier", "debian",
		"scratch",
		"iosync/place", "iosync/probe", "iosync/simulate", "iosync/allot", "intercept/preload", "intercept/network", "intercept/gate", "intercept/instances",
	}, // mechanisms: independent
	{"runner", "nat"},              // what runs a node's first process, as mechanisms see it; what link composes
	{"pull"},                       // what berth-pull and berth say to each other
	{"mounts", "address", "relay"}, // used by them
	{"sriov", "shape", "antispoof", "fence", "site"},
	{"counters"},
	{"group", "group/grouptest"},
	{"netif", "dhcp"},
	{"block", "packed"},
	{"host"},
	{"fate"},
	{"step"},
	{"envfile", "iosync/want"},
	{"vnode", "may", "layout", "jsonfile", "space", "file", "users", "events", "sibling", "treetar", "treetar/treetest", "slurm/hostlist", "bpf/compiled"},
	{"refuse", "bpf", "thread", "quota", "purge", "iosync/share", "nearest", "nodelog", "proc", "lock", "fault", "fork", "limit", "mac", "sent", "text", "version"},
}

// beside lists the allowed imports within a layer.
var beside = map[string][]string{
	"image": {"image/imagetest"},
	"oci":   {"image/imagetest", "runner/runnertest"},

	"gateway": {"gateway/gatewaytest", "sftpserve"},
	"treetar": {"treetar/treetest"},
	"group":   {"group/grouptest"},

	"store":      {"store/storetest"},
	"store/etcd": {"store/storetest"},

	"registry": {"image/imagetest"},
}

// leaves know nothing of Berth: every package above them may import them, also one that only names few.
var leaves = []string{"fault", "file", "limit", "lock", "mac", "proc"}

// only lists all allowed imports of a package, where they are fewer than its layer allows.
var only = map[string][]string{
	"vnode":   {"nearest"},
	"may":     {"refuse"},
	"refuse":  {},
	"layout":  {"refuse"},
	"step":    {"vnode", "refuse", "jsonfile"},
	"spec":    {"vnode", "refuse", "nearest"},
	"cgroup":  {"group", "block", "host", "step", "refuse", "vnode"},
	"users":   {"refuse"},
	"envfile": {"vnode", "refuse"},

	"slurm/slurmconf": {"slurm/settings", "vnode", "refuse"},
	"slurm/hostlist":  {"refuse"},
	"slurm/control":   {"slurm/hostlist", "fork", "refuse"},
	"slurm/reconcile": {"slurm/control", "slurm/settings", "may", "vnode", "layout", "refuse"},
	"slurm/wish":      {"template", "nearest", "refuse"},
	"slurm/settings":  {"spec", "may", "vnode", "refuse", "layout", "slurm/hostlist"},

	"iosync/want":  {"vnode", "refuse"},
	"iosync/place": {"group", "fork", "block", "host", "refuse", "layout"},
	"iosync/probe": {"bpf/compiled", "refuse", "text"},
	"iosync/share": {}, "iosync/simulate": {"iosync/share"}, "iosync/allot": {"iosync/share"},

	"intercept/preload": {"fork"},
	"intercept/network": {"netif", "bpf", "refuse"},
	"intercept/gate":    {"bpf/compiled", "fork", "refuse"},

	"intercept/instances": {"bpf", "fork", "refuse", "thread"},

	"bpf/compiled": {"refuse"},

	"fork":    {},
	"version": {},
	"link":    {"site", "nat", "address", "sriov", "shape", "antispoof", "netif", "dhcp", "step", "refuse", "vnode"},
	"nat":     {"address", "fork", "netif", "step", "refuse", "jsonfile", "vnode"},
	"site":    {"step", "refuse", "layout", "jsonfile", "vnode"},
	"address": {"site", "sriov", "antispoof", "netif", "dhcp", "step", "refuse", "layout", "vnode"},
	"sriov":   {"fork", "netif", "step", "refuse", "jsonfile"},
	"shape":   {"netif", "bpf", "thread", "step", "vnode"},
	"netif":   {"thread", "step", "refuse"},
	"dhcp":    {},
	"group":   {"fork", "thread", "host", "step", "refuse"},
	"fault":   {},
	"limit":   {},
	"lock":    {},
	"mac":     {},
	"proc":    {},
	"file":    {"fault", "refuse"},
	"relay":   {"refuse"},
	"nodelog": {},
	"image":   {"packed", "block", "host", "step", "refuse", "layout", "vnode", "jsonfile", "nearest", "space", "users", "quota", "purge", "treetar"},
	"device":  {"mounts", "block", "host", "step", "refuse", "layout", "vnode", "jsonfile"},
	"systemd": {"fork", "step", "refuse"},
	"names":   {"vnode"},
	"pull":    {"fork", "refuse", "sibling"},
	"sibling": {"refuse"},
	"debian":  {"fork", "purge", "refuse", "space", "thread"},
	"ids":     {"block", "host", "step", "refuse", "layout", "vnode"},
	"runner":  {"group", "mounts", "fork", "host", "step", "refuse", "vnode"},
	"oci":     {"envfile", "runner", "group", "mounts", "thread", "fork", "block", "host", "step", "refuse", "layout", "vnode", "jsonfile"},
	"gateway": {"group", "fork", "mounts", "fence", "netif", "thread", "block", "host", "step", "refuse", "layout", "vnode", "jsonfile"},

	"rescue":  {"roster", "scratch", "nat", "address", "step"},
	"scratch": {"mounts", "fork", "block", "step", "refuse", "layout", "vnode", "jsonfile", "quota", "purge"},
	"copier":  {"group", "mounts", "fork", "thread", "host", "refuse", "treetar"},
	"treetar": {"refuse"},

	"registry":  {"pull", "space", "jsonfile", "refuse"},
	"sftpserve": {"fork", "thread", "refuse"},
	"standing":  {"group", "host", "step", "refuse", "vnode"},
	"devgroup":  {"group", "bpf", "host", "step", "vnode"},
	"rlimit":    {"group", "host", "step", "refuse", "vnode"},
	"counters":  {"group", "host"},
	"sysctl":    {"thread", "step", "refuse", "vnode"},

	"fence":     {"bpf", "host", "step", "refuse"},
	"antispoof": {"netif", "dhcp", "bpf", "step", "refuse"},

	"netserve": {"group", "netif", "fork", "thread", "host", "step", "refuse"},
}

// standardOnly lists the packages that use only the standard library and Berth's own packages.
var standardOnly = []string{"vnode", "may", "refuse", "layout", "step", "nearest", "jsonfile"}

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
