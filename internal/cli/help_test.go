package cli_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"berth/internal/cli"
)

// run runs one command line that needs no host, and returns what it wrote.
func run(t *testing.T, args ...string) (code int, out, err string) {
	t.Helper()
	return cli.MainOf(t, args...)
}

// eachCommand visits every command that help lists.
func eachCommand(c *cobra.Command, visit func(*cobra.Command)) {
	if c.Hidden {
		return
	}
	visit(c)
	for _, sub := range c.Commands() {
		eachCommand(sub, visit)
	}
}

// TestHelpFitsATerminal checks that each command's help fits 80 columns and has a usage, an example and its flags.
func TestHelpFitsATerminal(t *testing.T) {
	eachCommand(cli.NewRoot(), func(c *cobra.Command) {
		args := append(strings.Fields(c.CommandPath())[1:], "--help")
		code, out, stderr := run(t, args...)
		if code != 0 || stderr != "" {
			t.Errorf("berth %s: exit %d, %q", strings.Join(args, " "), code, stderr)
		}
		for _, want := range []string{"Usage:\n  berth", "\nExamples:\n  ", "--root DIR"} {
			if !strings.Contains(out, want) {
				t.Errorf("%s --help lacks %q", c.CommandPath(), want)
			}
		}
		for line := range strings.Lines(out) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("%s --help: a line is %d wide: %s", c.CommandPath(), n, line)
			}
		}
	})
}

// TestWrongUsage checks that wrong usage gives exit code 2 (125 for run and exec), one sentence, and where to read more.
func TestWrongUsage(t *testing.T) {
	for _, tt := range []struct {
		args string
		code int
		want string
	}{
		{"frob", 2, "berth: there is no command berth frob; see berth --help\n"},
		{"exce", 2, "berth: there is no command berth exce; did you mean exec?\n"},
		{"help frob", 2, "berth: there is no command berth frob; see berth --help\n"},
		{"image frob", 2, "berth: there is no command berth image frob; see berth image --help\n"},
		{"bench frob", 2, "berth: there is no command berth bench frob; see berth bench --help\n"},
		{"--frob", 2, "berth: berth has no flag --frob; see berth --help\n"},
		{"ls --frob", 2, "berth: berth ls has no flag --frob; see berth ls --help\n"},
		{"ls more", 2, "berth: \"more\" is one word too many; usage: berth ls [flags]; see berth ls --help\n"},
		{"show", 2, "berth: NAME is missing; usage: berth show NAME [flags]; see berth show --help\n"},
		{"show a b", 2, "berth: \"b\" is one word too many; usage: berth show NAME [flags]; see berth show --help\n"},
		{"start", 2, "berth: NAME is missing; usage: berth start NAME… [flags]; see berth start --help\n"},
		{"set a", 2, "berth: KEY=VALUE is missing; usage: berth set NAME KEY=VALUE… [flags]; see berth set --help\n"},
		{"set a b", 2, "berth: \"b\": want KEY=VALUE, for example cpu.max=1.5\n"},
		{"set a b=", 2, "berth: \"b=\": want KEY=VALUE, for example cpu.max=1.5\n"},
		{"stop --grace", 2, "berth: --grace needs a value: TIME; see berth stop --help\n"},
		{"ls --jsno", 2, "berth: berth ls has no flag --jsno; did you mean --json?\n"},
		{"ls -x", 2, "berth: berth ls has no flag -x; see berth ls --help\n"},
		{"ls --json=perhaps", 2, "berth: --json: \"perhaps\" is not allowed: true or false; see berth ls --help\n"},
		{"run --pids many -- true", 125, "berth: --pids: \"many\" is not allowed: a whole number; see berth run --help\n"},
		{"apply node.yaml", 2, "berth: \"node.yaml\" is one word too many; did you mean -f node.yaml? usage: berth apply -f FILE [flags]; see berth apply --help\n"},
		{"run --pids 0 --image host -- true", 125, "berth: --pids: 0 is not allowed: 1 or more\n"},
		{"run --image host", 125, "berth: no command given: image host has none of its own; berth run --image host -- CMD\n"},
		{"run --image host --network brige -- true", 125, "berth: --network: \"brige\" is not allowed: sriov, macvlan, bridge, nat, phys or none\n"},
		{"run --image host --mount data:/mnt -- true", 125, "berth: --mount data:/mnt: data is no folder of the host: give its absolute path; there are no volumes with names\n"},
		{"image import", 2, "berth: ARCHIVE is missing; usage: berth image import ARCHIVE [NAME] [flags]; see berth image import --help\n"},
		{"protect", 2, "berth: UNIT|PID|CGROUP is missing; usage: berth protect UNIT|PID|CGROUP [flags]; see berth protect --help\n"},
		{"completion tcsh", 2, "berth: usage: berth completion bash|zsh|fish; see berth completion --help\n"},
		{"stop --grace soon a", 2, "berth: --grace: \"soon\" is not allowed: a time, for example 10s or 2m; see berth stop --help\n"},
		{"apply", 2, "berth: no spec given: -f FILE, or -f - for standard input\n"},
		{"plan -f /nowhere.yaml", 2, "berth: read spec: open /nowhere.yaml: no such file or directory\n"},
		{"bench disk --size huge", 2, "berth: --size: \"huge\" is not a size: its unit must be one of TiB, GiB, MiB, KiB, TB, GB, MB, kB, B, for example 4GiB, 512MB or 1048576\n"},
		{"run -- true", 125, "berth: no image given: --image host, oci:NAME, docker://REF, tar:FILE, oci-layout:DIR, dir:PATH or file:PATH\n"},
		{"run --frob", 125, "berth: berth run has no flag --frob; see berth run --help\n"},
		{"run --image host --mount a -- true", 125, "berth: --mount a: want SOURCE:TARGET or SOURCE:TARGET:ro\n"},
		{"exec", 125, "berth: NAME is missing; usage: berth exec [-it] NAME -- CMD ARG…; see berth exec --help\n"},
		{"exec a --", 125, "berth: CMD is missing; usage: berth exec [-it] NAME -- CMD ARG…; see berth exec --help\n"},
	} {
		code, out, stderr := run(t, strings.Fields(tt.args)...)
		if code != tt.code || out != "" || stderr != tt.want {
			t.Errorf("berth %s: exit %d, %q, stdout %q\nwant exit %d, %q", tt.args, code, stderr, out, tt.code, tt.want)
		}
	}
}

func TestHelpNamesEveryExitCode(t *testing.T) {
	_, out, _ := run(t, "help")
	for _, code := range []string{"0 done", "1 failed", "2 wrong", "3 this host", "4 no such", "5 it exists", "6 plan", "125 (", "126 (", "127 ("} {
		if !strings.Contains(out, code) {
			t.Errorf("berth help does not name exit code %q", code)
		}
	}
}
