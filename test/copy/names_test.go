package copy

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// oddNames returns names that hold all bytes but the zero byte and the slash, and one that is not UTF-8 beside the one that JSON
// would make of it.
func oddNames() (all []string) {
	var chars []byte
	for c := 1; c < 256; c++ {
		if c != '/' {
			chars = append(chars, byte(c))
		}
	}
	for part := range slices.Chunk(chars, 126) {
		all = append(all, "w"+string(part))
	}
	return append(all, "w\xe9", "w\ufffd")
}

// TestNamesAreBytes: a command and a copy reach the file whose name was said, byte for byte, or nothing at all.
func TestNamesAreBytes(t *testing.T) {
	nodes(t)
	out, _ := must(t, "show", "--json", "one")
	pid := regexp.MustCompile(`"pid": (\d+)`).FindStringSubmatch(out)[1]
	dir := filepath.Join("/proc", pid, "root/tmp/bytes")
	must(t, "exec", "one", "--", "mkdir", "/tmp/bytes")
	t.Cleanup(func() { must(t, "exec", "one", "--", "rm", "-rf", "/tmp/bytes") })
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// All files hold their own names.
	check := func(what, dir string, but string) {
		t.Helper()
		for _, name := range oddNames() {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if name == but {
				if !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s: %q is there", what, name)
				}
			} else if string(text) != name {
				t.Errorf("%s: %q holds %q, %v", what, name, text, err)
			}
		}
		entries, err := os.ReadDir(dir)
		want := len(oddNames())
		if but != "" {
			want--
		}
		if err != nil || len(entries) != want {
			t.Errorf("%s: %d files, want %d: %v", what, len(entries), want, err)
		}
	}
	from, to := t.TempDir(), t.TempDir()
	for _, name := range oddNames() {
		write(filepath.Join(from, name), name)
	}
	for _, name := range oddNames() {
		must(t, "cp", filepath.Join(from, name), "one:/tmp/bytes/"+name)
	}
	check("into the node", dir, "")
	for _, name := range oddNames() {
		must(t, "cp", "one:/tmp/bytes/"+name, filepath.Join(to, name))
	}
	check("out of the node", to, "")
	for _, name := range oddNames() { // DST is not there: it gets a new name
		must(t, "cp", filepath.Join(from, name), "two:/tmp/new"+name)
		must(t, "cp", "two:/tmp/new"+name, filepath.Join(to, "again"))
		if text, err := os.ReadFile(filepath.Join(to, "again")); string(text) != name {
			t.Errorf("by a stopped node: %q holds %q, %v", name, text, err)
		}
	}
	refused := func(what string, err error, stderr []byte, name string) {
		t.Helper()
		ended, ok := errors.AsType[*exec.ExitError](err)
		if !ok || ended.ExitCode() != 125 || !strings.Contains(string(stderr), "UTF-8") {
			t.Errorf("%s %q: %v, %s", what, name, err, stderr)
		}
	}
	run := func(cmd *exec.Cmd) ([]byte, []byte, error) {
		out, err := cmd.Output()
		if ended, ok := errors.AsType[*exec.ExitError](err); ok {
			return out, ended.Stderr, err
		}
		return out, nil, err
	}
	for _, name := range oddNames() {
		_, stderr, err := run(bench.Command("exec", "one", "--", "rm", "/tmp/bytes/"+name))
		if utf8.ValidString(name) {
			if err != nil {
				t.Errorf("exec rm %q: %v, %s", name, err, stderr)
			}
			check("after exec rm", dir, name)
			write(filepath.Join(dir, name), name)
		} else {
			refused("exec rm", err, stderr, name)
			check("after a refused exec rm", dir, "")
		}
		// Variables: given, the caller's, of a file; a folder to begin in.
		file := filepath.Join(to, "env")
		write(file, "ODD="+name+"\n")
		inherits := bench.Command("exec", "-e", "ODD", "one", "--", "sh", "-c", `printf %s "$ODD"`)
		inherits.Env = append(os.Environ(), "ODD="+name)
		for what, cmd := range map[string]*exec.Cmd{
			"-e":         bench.Command("exec", "-e", "ODD="+name, "one", "--", "sh", "-c", `printf %s "$ODD"`),
			"-e, own":    inherits,
			"--env-file": bench.Command("exec", "--env-file", file, "one", "--", "sh", "-c", `printf %s "$ODD"`),
			"-w":         bench.Command("exec", "-w", "/tmp/bytes/"+name, "one", "--", "true"),
		} {
			if what == "--env-file" && strings.ContainsAny(name, "\n\r") {
				continue // the end of a line
			}
			out, stderr, err := run(cmd)
			switch {
			case !utf8.ValidString(name):
				refused(what, err, stderr, name)
				if strings.HasPrefix(what, "-e") && strings.Contains(string(stderr), name) {
					t.Errorf("%s repeats the value, which may be a secret: %s", what, stderr)
				}
			case what != "-w" && (err != nil || string(out) != name):
				t.Errorf("%s %q: %q, %v, %s", what, name, out, err, stderr)
			}
		}
	}
	check("at the end", dir, "")
	// A pool and a spec cannot have such a path either.
	odd := filepath.Join(to, "d\xe9")
	for _, dir := range []string{odd, filepath.Join(to, "d\ufffd")} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{
		{"--root", odd, "ls"},
		{"pool", "add", "odd", "--dir", odd},
		{"run", "--image", "host", "--mount", odd + ":/mnt", "--", "true"},
		{"run", "--image", "host", "--", "rm", odd},
		{"image", "pack", "busybox", "-o", odd + "/x.squashfs"},
	} {
		_, stderr, err := run(bench.Command(args...))
		if err == nil || !strings.Contains(string(stderr), "UTF-8") {
			t.Errorf("%q: %v, %s", args, err, stderr)
		}
	}
}
