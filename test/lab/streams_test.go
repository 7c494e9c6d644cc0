package lab_test

import (
	"strings"
	"testing"

	"berth/test/lab"
)

// streams checks the standard streams of run and exec, and the end of their commands, on cgroup v2 with both runtimes.
func streams(t *testing.T, m *lab.VM) {
	t.Run("crun", func(t *testing.T) { streamsBy(t, m, "crun") })
	t.Run("runc", func(t *testing.T) {
		m.OK(t, "mv $(command -v crun) /root/crun.off")
		defer m.OK(t, "mv /root/crun.off /usr/bin/crun")
		streamsBy(t, m, "runc")
	})
}

func streamsBy(t *testing.T, m *lab.VM, runtime string) {
	node(t, m, "name: s1\nimage: host\ncommand: [sleep, infinity]\npids: 64\n")
	m.OK(t, "berth show s1 | grep '^runtime  *"+runtime+"'")
	// The file stays as the caller made it, what is appended to stays, and a list is the loop's.
	m.OK(t, `set -ex; cd /root; umask 022; rm -f out
berth exec s1 -- sh -c 'cat /bin/true; chmod 4755 /proc/self/fd/1' >out; cmp out /bin/true; test "$(stat -c %a out)" = 644
echo kept >log; berth exec s1 -- sh -c 'echo new; echo again >/proc/self/fd/1; : >/proc/self/fd/1' >>log; test "$(echo $(cat log))" = "kept new again"
test "$(printf 'a\nb\n' | while read -r l; do berth exec s1 -- echo $l; done)" = "$(printf 'a\nb')"
test "$(printf 'a\nb\n' >list; while read -r l; do berth run --image host -- echo $l; done <list)" = "$(printf 'a\nb')"
script -qefc 'stty rows 34 cols 98; berth exec -t s1 -- stty size' /dev/null </dev/null | grep '34 98'`)
	for command, want := range map[string]int{
		"berth exec s1 -- sh -c 'exit 7'": 7, "berth exec s1 -- sh -c 'kill -9 $$'": 137, "berth exec s1 -- ls </": 125,
		"berth exec s1 -- echo lost >/dev/full": 125, "berth exec s1 -- nothing": 127, "berth run --image host -- sh -c 'exit 7'": 7,
	} {
		if r := m.Run(t, "sh", "-c", command); r.Code != want {
			t.Errorf("%s: exit code %d, not %d: %s", command, r.Code, want, r.Err)
		}
	}
	m.OK(t, "! berth exec s1 -- sh -c 'while :; do sleep 300 & done'")
	r := m.Run(t, "berth", "exec", "s1", "--", "true")
	if r.Code != 125 || !strings.Contains(r.Err, "of 64 processes and threads (pids): no room for one more command") {
		t.Errorf("a full node: exit code %d: %s", r.Code, r.Err)
	}
	m.OK(t, "berth set s1 pids=200; berth exec s1 -- true")
}
