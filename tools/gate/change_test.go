package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTestsOf: the tests of a diff are those that are new and those that a hunk lies in.
func TestTestsOf(t *testing.T) {
	const diff = `diff --git a/internal/network/link/a_test.go b/internal/network/link/a_test.go
--- a/internal/network/link/a_test.go
+++ b/internal/network/link/a_test.go
@@ -10,0 +11 @@ func TestOld(t *testing.T) {
+	x()
@@ -20,0 +22,3 @@ func helper(t *testing.T) {
+}
+func TestNew(t *testing.T) {
+}
@@ -30 +34 @@ func TestOld(t *testing.T) {
-	y()
+	z()
--- /dev/null
+++ b/test/script/b_test.go
@@ -0,0 +1,2 @@
+func TestMain(m *testing.M) {
+func TestScripts(t *testing.T) {
`
	want := map[string][]string{"berth/internal/network/link": {"TestOld", "TestNew"}, "berth/test/script": {"TestScripts"}}
	if d := cmp.Diff(want, testsOf(diff)); d != "" {
		t.Error(d)
	}
}

// TestFind: what differs, what uses it, and whether a program links it.
func TestFind(t *testing.T) {
	all := []listed{
		{path: "berth/cmd/berthd", imports: []string{"berth/internal/cli"}, deps: []string{"berth/internal/cli", "berth/internal/network/link"}},
		{path: "berth/internal/cli", imports: []string{"berth/internal/network/link"}},
		{path: "berth/internal/network/link"},
		{path: "berth/test/lab", imports: []string{"berth/internal/network/link"}},
		{path: "berth/tools/gate", imports: []string{"berth/tools/many"}},
		{path: "berth/tools/many"},
	}
	for _, tt := range []struct {
		files   []string
		want    []string
		program bool
	}{
		{[]string{"internal/network/link/link.go", "README.md"}, []string{"berth/internal/cli", "berth/internal/network/link"}, true},
		{[]string{"internal/network/link/testdata/x/y.txt"}, []string{"berth/internal/cli", "berth/internal/network/link"}, true},
		{[]string{"tools/many/many.go"}, []string{"berth/tools/gate", "berth/tools/many"}, false},
		{[]string{"docs/x.md", "test/script"}, nil, false},
	} {
		c := &change{files: tt.files}
		c.find(all)
		if d := cmp.Diff(tt.want, c.toTest()); d != "" || c.program != tt.program {
			t.Errorf("%v: %s, program %v", tt.files, d, c.program)
		}
	}
}
