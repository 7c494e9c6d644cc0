package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/test/testkit"
)

// TestRun: each function without a counter is listed by its reason, one that no line names is an error, and what needs no line any more is told.
func TestRun(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"internal/a/a.go": "package a\n\nfunc (x *X) Reached() { x() }\n\nfunc (x *X) Not(int) error {\n}\n\nfunc (Y) Not(int) {\n}\n\nfunc Empty(int) {}\n\nfunc Gone[T any]() T {\n}\n",
		"internal/b/b.go": "package b\n\nfunc F() {\n}\n",
		list: "# why\n\na/a.go:*X.Not a/a.go:*X.Reached — one; reached by: test/a.TestA, test/script a\n" +
			"a/a.go — two; reached by: test/a.TestB\n",
	} {
		testkit.Must(t, os.MkdirAll(filepath.Dir(name), 0o755))
		testkit.Must(t, os.WriteFile(name, []byte(text), 0o600))
	}
	const a = "berth/internal/a/a.go:1: "
	counted := a + "*X.Reached 0.0%\n" + a + "*X.Reached 50.0%\n" + a + "*X.Not 0.0%\n" + a + "Y.Not 0.0%\n" + a + "Empty 0.0%\n" + a + "Gone 0.0%\n" + a + "*Y.Not 0.0%\n" +
		"berth/internal/c/c.go:1: F 0.0%\ntotal (statements) 1.0%\n"
	const want = `3 of 4 functions of internal/ have no counter in make test.

one; reached by: test/a.TestA, test/script a
    a/a.go *X.Not

two; reached by: test/a.TestB
    a/a.go Gone
    a/a.go Y.Not

in test/unreached, and reached (take it out, unless chance had a part in it)
    a/a.go:*X.Reached
`
	var out strings.Builder
	if err := run(strings.NewReader(counted), &out); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
	err := run(strings.NewReader(counted+"berth/internal/b/b.go:3: F 0.0%\n"), &out)
	if err == nil || !strings.HasSuffix(out.String(), "no reason in test/unreached\n    b/b.go F\n") {
		t.Errorf("a function without a reason: %v\n%s", err, &out)
	}
	if err := run(strings.NewReader(""), &out); err == nil {
		t.Error("no counters are no error")
	}
}
