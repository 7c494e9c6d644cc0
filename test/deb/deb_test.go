package deb

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestPackages makes the packages twice, in surroundings that differ, and compares them; lintian finds nothing in them.
func TestPackages(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a longer run: it builds all programs")
	}
	for _, needed := range []string{"make", "dpkg-deb"} {
		if _, err := exec.LookPath(needed); err != nil {
			t.Skip("needs " + needed)
		}
	}
	files := t.TempDir()
	if err := Files(t.Context(), files); err != nil {
		t.Fatal(err)
	}
	first, second := t.TempDir(), t.TempDir()
	packages, err := Make(t.Context(), files, first, "v1.2.3-4-gabcdef", "TZ=Asia/Tokyo", "LC_ALL=C")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Make(t.Context(), files, second, "v1.2.3-4-gabcdef", "TZ=UTC", "LC_ALL=C.UTF-8", "TMPDIR="+t.TempDir()); err != nil {
		t.Fatal(err)
	}
	for _, p := range packages {
		a, errA := os.ReadFile(p)
		b, errB := os.ReadFile(filepath.Join(second, filepath.Base(p)))
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			t.Errorf("%s differs when it is made again (%v, %v)", filepath.Base(p), errA, errB)
		}
	}

	t.Run("contents", func(t *testing.T) {
		for name, want := range map[string]string{
			"berth": `^/usr/bin/(berth|berth-guest|berth-pull|berth-registry|berth-site|berth-sync)$
^/usr/lib/berth/berth-sync\.so$
^/usr/share/man/man1/berth[a-z-]*\.1\.gz$
^/usr/share/doc/berth/
^/usr/share/(bash-completion/completions/berth|zsh/vendor-completions/_berth|fish/vendor_completions\.d/berth\.fish|lintian/overrides/berth)$`,
			"berthd": `^/usr/bin/berthd$
^/lib/systemd/system/berthd\.service$
^/usr/share/man/man1/berthd\.1\.gz$
^/usr/share/doc/berthd/
^/usr/share/berthd/(alerts\.yaml|dashboard\.json)$
^/usr/share/lintian/overrides/berthd$`,
		} {
			matched := map[string]bool{}
			patterns := strings.Split(want, "\n")
			for _, file := range contents(t, filepath.Join(first, name+"_1.2.3+4.gabcdef_"+arch(t)+".deb")) {
				known := false
				for _, p := range patterns {
					if regexp.MustCompile(p).MatchString(file) {
						known, matched[p] = true, true
					}
				}
				if !known {
					t.Errorf("package %s has %s", name, file)
				}
			}
			for _, p := range patterns {
				if !matched[p] {
					t.Errorf("package %s has nothing like %s", name, p)
				}
			}
		}
	})

	t.Run("links", func(t *testing.T) {
		at := t.TempDir()
		for _, p := range packages {
			if out, err := exec.CommandContext(t.Context(), "dpkg-deb", "--extract", p, at).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", p, err, out)
			}
		}
		if n := leads(t, filepath.Join(at, "usr/share/doc")); n < 300 {
			t.Errorf("%d links were followed: is the pattern right?", n)
		}
	})

	t.Run("lintian", func(t *testing.T) {
		if _, err := exec.LookPath("lintian"); err != nil {
			t.Skip("needs lintian")
		}
		out, err := exec.CommandContext(t.Context(), "lintian", append([]string{"--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0"}, packages...)...).CombinedOutput()
		if err != nil || regexp.MustCompile(`(?m)^[EW]: `).Match(out) {
			t.Errorf("lintian: %v\n%s", err, out)
		}
	})
}

func arch(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "dpkg", "--print-architecture").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// contents lists the files of a package.
func contents(t *testing.T, name string) (all []string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "dpkg-deb", "--contents", name).Output()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if strings.HasPrefix(f[0], "-") {
			if f[1] != "root/root" {
				t.Errorf("the owner of %s is %s", f[5], f[1])
			}
			all = append(all, strings.TrimPrefix(f[5], "."))
		}
	}
	return all
}

var (
	code = regexp.MustCompile("(?ms)^```.*?^```|`[^`\n]*`")
	link = regexp.MustCompile(`\]\(([^()#\s]+)[^()\s]*\)|(?:src|srcset|href)="([^"#]+)`)
)

// leads checks that each relative link of the installed documents leads to a file, and returns how many there are.
func leads(t *testing.T, docs string) (n int) {
	t.Helper()
	if err := filepath.WalkDir(docs, func(page string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(page) != ".md" {
			return err
		}
		text, err := os.ReadFile(page)
		if err != nil {
			return err
		}
		for _, m := range link.FindAllSubmatch(code.ReplaceAll(text, nil), -1) {
			to := string(m[1]) + string(m[2])
			if strings.Contains(to, ":") {
				continue // on the web
			}
			n++
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), to)); err != nil {
				t.Errorf("%s links to %s, which is not installed", page, to)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return n
}
