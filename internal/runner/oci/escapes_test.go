package oci

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/runner"
)

func TestFixedIn(t *testing.T) {
	lines := []string{"1.2.8", "1.3.3", "1.4.0-rc.3"}
	for version, want := range map[string]bool{
		"1.1.5+ds1": false, "1.2.7": false, "1.2.8": true, "1.2.9+ds1": true, "1.3.0": false, "1.3.2": false, "1.3.3": true,
		"1.4.0-rc.2": false, "1.4.0-rc.3": true, "1.4.0": true, "1.5.0": true, "2.0": true, "": false, "unknown": false,
	} {
		if got := fixedIn(version, lines); got != want {
			t.Errorf("%s fixed: %v, want %v", version, got, want)
		}
	}
	if fixedIn("1.0.0-rc6", []string{"1.0.0-rc7"}) || !fixedIn("1.0.0-rc10", []string{"1.0.0-rc7"}) {
		t.Error("candidates are not compared as numbers")
	}
}

func TestVersionIn(t *testing.T) {
	for out, want := range map[string]string{
		"runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1+deb12u1\nspec: 1.0.2-dev\n": "1.1.5+ds1",
		"crun version 1.8.1\ncommit: f8a0\n":                                     "1.8.1",
		"":                                                                       "",
	} {
		if got := versionIn(out); got != want {
			t.Errorf("%q: %q, want %q", out, got, want)
		}
	}
}

// TestEscapesHere checks that Debian 12's runc 1.1.5 has the fix of 2024, by its package, and lacks those of 2025.
func TestEscapesHere(t *testing.T) {
	for _, r := range paths() {
		if r.Name != "runc" {
			continue
		}
		r.Version = "1.1.5+ds1"
		text := debianChangelog(r)
		if !strings.Contains(string(text), "1.1.5+ds1-1+deb12u1") {
			t.Skip("not Debian 12's runc, or its change log was left out")
		}
		var ids []string
		for _, e := range escapes(r) {
			id, _, _ := strings.Cut(e, ":")
			ids = append(ids, id)
			t.Log(e)
		}
		want := []string{"CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881"}
		if strings.Contains(string(text), "CVE-2025-31133") {
			want = nil
		}
		if diff := cmp.Diff(want, ids); diff != "" {
			t.Error(diff)
		}
		return
	}
	t.Skip("runc is not installed")
}

// TestWords checks how messages are recognised that the runtimes really wrote.
func TestWords(t *testing.T) {
	for words, want := range map[string]int{
		`runc create failed: unable to start container process: exec: "nope": executable file not found in $PATH`:     runner.ExitNotFound,
		`runc create failed: unable to start container process: exec: "/nope": stat /nope: no such file or directory`: runner.ExitNotFound,
		`runc create failed: unable to start container process: exec: "/etc": permission denied`:                      runner.ExitCannotRun,
		"executable file `nope` not found in $PATH: No such file or directory":                                        runner.ExitNotFound,
		"open executable: Permission denied": runner.ExitCannotRun,
		`runc create failed: unable to start container process: error during container init: no such file or directory`: 0,
		"mount `x` to `y`: No such file or directory":                                                                   0,
		"": 0,
	} {
		code := 0
		if ce := commandFailure(words); ce != nil {
			code = ce.Code
		}
		if code != want {
			t.Errorf("%s: %d, want %d", words, code, want)
		}
		if ce := execFailure("nope", words); (ce != nil) != (want != 0) || ce != nil && (ce.Code != want || ce.Command != "nope") {
			t.Errorf("exec: %s: %+v, want %d", words, ce, want)
		}
	}
	for words, why := range map[string]string{ // crun, of a command that was found
		"exec: Exec format error":            "exec format error",
		"exec /srv/tool: Permission denied":  "permission denied",
		"chdir: No such file or directory":   "no such file or directory",
		"exec /srv/other: Permission denied": "",
	} {
		if ce := execFailure("/srv/tool", words); (ce == nil) != (why == "") || ce != nil && (ce.Why != why || ce.Code != runner.ExitCannotRun) {
			t.Errorf("exec: %s: %+v, want %q", words, ce, why)
		}
	}
}
