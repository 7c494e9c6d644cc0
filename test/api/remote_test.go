package api

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// changing is what differs between two equal command lines: times, process ids, usage.
var changing = regexp.MustCompile(`run-\d+|\d\d:\d\d:\d\d[.\d]*|\d+ (B|s|ms|KiB|MiB)\b|[\d.]+(KiB|MiB|%)|"(pid|pid_start|usage_usec|user_usec|system_usec|current|peak|throttled_usec)": \d+|\d+(\.\d+)?(ms|s) ago|\b\d+[smhd] +`)

// TestRemoteIsLocal runs command lines here and by the agent, and compares output, errors and exit codes.
func TestRemoteIsLocal(t *testing.T) {
	s := serve(t)
	dir := s.Dir()
	for name, text := range map[string]string{
		"node.yaml":  "name: NAME\nimage: host\ncommand: [sleep, \"1000\"]\nmemory: {max: 64MiB}\n",
		"bad.yaml":   "name: bad\nimage: host\nmemroy: {max: 64MiB}\ncommand: [x]\n",
		"where.yaml": "name: where\nimage: dir:nowhere\ncommand: [x]\n",
		"run.yaml":   "name: runs\nimage: host\ncommand: [sh, -c, \"cat; echo bye >&2; exit 3\"]\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	local := func(in string, args ...string) (string, string, int) { return s.berth(in, args...) }
	remote := func(in string, args ...string) (string, string, int) { return s.remote(in, args...) }
	for _, tc := range []struct {
		in, line string
		code     int
		own      bool // by each of the two with a node of its own, which NAME stands for
	}{
		{line: "--version"},
		{line: "help run"},
		{line: "nonsense", code: 2},
		{line: "ls --nonsense", code: 2},
		{line: "plan -f bad.yaml", code: 2},
		{line: "apply -f bad.yaml", code: 2},
		{line: "apply -f missing.yaml", code: 2},
		{line: "apply", code: 2},
		{line: "plan -f where.yaml", code: 4},
		{line: "plan -f where.yaml -f bad.yaml", code: 2},
		{line: "run -f where.yaml -f where.yaml", code: 125},
		{line: "net export -f node.yaml -f where.yaml", code: 2}, // NAME is no name
		{in: "name: NAME\nimage: host\ncommand: [sleep, \"1000\"]\nmemory: {max: 64MiB}\n", line: "apply -f -", own: true},
		{line: "apply -f NAME.yaml", own: true},
		{line: "ls"},
		{line: "show NAME", own: true},
		{line: "show nobody", code: 4},
		{line: "set NAME memory.max=32MiB pids=50", own: true},
		{line: "set NAME memory.max=x", own: true, code: 2},
		{line: "plan NAME pids=60 --detailed-exitcode", own: true, code: 6},
		{in: "in\x00put\n", line: "exec NAME -- cat", own: true},
		{line: "exec NAME -- sh -c echo~out;echo~err>&2;exit~7", own: true, code: 7},
		{line: "exec NAME -- nothing-there", own: true, code: 127},
		{line: "exec -t NAME -- true", own: true, code: 125},
		{line: "exec nobody -- true", code: 125},
		{in: "to the node", line: "run -f run.yaml", code: 3},
		{line: "run --image host -- sh -c exit~9", code: 9},
		{line: "logs NAME", own: true},
		{line: "pause NAME", own: true},
		{line: "exec NAME -- true", own: true, code: 125},
		{line: "unpause NAME", own: true},
		{line: "kill -s nonsense NAME", own: true, code: 2},
		{line: "stop NAME --grace 1s", own: true},
		{line: "start NAME nobody", own: true, code: 4},
		{line: "rm NAME", own: true, code: 5},
		{line: "rm -f NAME", own: true},
		{line: "image ls"},
		{line: "pool ls --json"},
		{line: "events --stream=false nobody"},
		{line: "repair"},
	} {
		type result struct {
			out, text string
			code      int
		}
		var got [2]result
		for i, run := range []func(string, ...string) (string, string, int){local, remote} {
			name := []string{"aaaa", "bbbb"}[i]
			in, line := tc.in, tc.line
			if tc.own {
				in, line = strings.ReplaceAll(in, "NAME", name), strings.ReplaceAll(line, "NAME", name)
				text, err := os.ReadFile(filepath.Join(dir, "node.yaml"))
				if err == nil {
					err = os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(strings.ReplaceAll(string(text), "NAME", name)), 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			args := strings.Fields(line)
			for j := range args {
				args[j] = strings.ReplaceAll(args[j], "~", " ")
			}
			r := &got[i]
			began := time.Now()
			r.out, r.text, r.code = run(in, args...)
			t.Log(i, time.Since(began), line)
			same := func(text string) string {
				if tc.own {
					text = strings.ReplaceAll(text, name, "NAME")
				}
				return changing.ReplaceAllString(text, "#")
			}
			r.out, r.text = same(r.out), same(r.text)
		}
		if got[0].code != tc.code {
			t.Errorf("berth %s: exit %d, want %d: %s", tc.line, got[0].code, tc.code, got[0].text)
		}
		if got[0] != got[1] && !strings.HasPrefix(tc.line, "show NAME") || got[0].code != got[1].code {
			t.Errorf("berth %s: here %+v, by the agent %+v", tc.line, got[0], got[1])
		}
	}
}
