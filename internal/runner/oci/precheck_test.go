package oci

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"berth/internal/runner"
)

// TestPrecheckView looks commands up in a root with folders and files bound over it, through links of all kinds.
func TestPrecheckView(t *testing.T) {
	root, bound := t.TempDir(), t.TempDir()
	write := func(dir, name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	link := func(dir, name, to string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755), os.Symlink(to, filepath.Join(dir, name))); err != nil {
			t.Fatal(err)
		}
	}
	write(root, "real/sh", "#!/real/interp")
	write(bound, "bin/tool", "#!/usr/bin/interp")
	write(bound, "bin/interp", "#!/real/interp")
	write(root, "real/interp", "\x7fELF but no more")
	link(root, "bin", "usr/bin")                // from the root into the bound folder
	link(bound, "bin/awk", "/alternatives/awk") // from the bound folder into the root
	link(root, "alternatives/awk", "../real/sh")
	link(root, "up", "../../../../real/sh") // never out of the root
	link(root, "loop", "/loop")
	link(root, "host", "/etc/passwd") // the node's /etc/passwd, which does not exist
	if err := os.MkdirAll(filepath.Join(root, "usr"), 0o755); err != nil {
		t.Fatal(err)
	}
	v := view{root: root, mounts: map[string]string{"/usr": bound, "/run": "", "/file": filepath.Join(bound, "bin/tool"), "/made/x": bound}}
	for _, tt := range []struct {
		name string
		code int    // 0: no CommandError
		want string // part of the error
	}{
		// Every script ends at a damaged interpreter: the error shows that it was found.
		{"sh", runner.ExitNotFound, "not found in PATH=/bin:/real2"},
		{"tool", runner.ExitCannotRun, "exec format error: damaged program: it is cut off"},
		{"awk", runner.ExitCannotRun, "exec format error: damaged program: it is cut off"},
		{"/up", runner.ExitCannotRun, "exec format error: damaged program: it is cut off"},
		{"/file", runner.ExitCannotRun, "exec format error: damaged program: it is cut off"},
		{"/made/x/bin/tool", runner.ExitCannotRun, "exec format error: damaged program: it is cut off"},
		{"/usr/../bin/tool", runner.ExitCannotRun, "exec format error: damaged program: it is cut off"},
		{"/bin/nothing", runner.ExitNotFound, "no such file in the node"},
		{"/host", runner.ExitNotFound, "no such file in the node"},
		{"/loop", runner.ExitNotFound, "no such file in the node"},
		{"/usr", runner.ExitCannotRun, "/usr is not a file"},
		{"/run/made-later", 0, ""},
	} {
		err := lookUp(v.open, nil, tt.name, []string{"PATH=/bin:/real2"}, "/")
		var ce *runner.CommandError
		if !errors.As(err, &ce) {
			ce = &runner.CommandError{}
			if !errors.Is(err, errUnseen) {
				t.Errorf("%s: %v", tt.name, err)
			}
		}
		if ce.Code != tt.code || ce.Why != tt.want {
			t.Errorf("%s: %d %q, want %d %q", tt.name, ce.Code, ce.Why, tt.code, tt.want)
		}
	}
}
