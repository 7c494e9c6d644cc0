package lab_test

import (
	"strings"
	"testing"

	"berth/test/lab"
)

// testPause pauses nodes by the freezer of cgroup v2: what runs is held where it is, goes on where it was, and can be stopped and
// killed meanwhile.
func testPause(t *testing.T, m *lab.VM) {
	node(t, m, `name: counts
image: host
command: [bash, -c, 'trap "echo bye; exit 9" TERM; i=0; while :; do echo $((i++)); sleep 0.02; done']
`)
	node(t, m, "name: plain\nimage: host\ncommand: [sleep, infinity]\n")
	m.OK(t, "while awaiting; do berth logs counts | grep -qx 5 && exit; done; exit 1")
	m.OK(t, "berth pause counts plain; berth ls | grep '^counts  *paused '; grep -x 'frozen 1' /sys/fs/cgroup/berth/counts/cgroup.events")
	before := m.OK(t, "berth logs -n 1 counts; sleep 1")
	if now := m.OK(t, "berth logs -n 1 counts"); now != before {
		t.Errorf("paused at %s, it wrote %s", before, now)
	}
	if r := m.Run(t, "berth", "exec", "counts", "--", "true"); r.Code != 125 || !strings.Contains(r.Err, "is paused") {
		t.Errorf("a command in a paused node: %+v", r)
	}
	m.OK(t, "berth set counts pids=40; berth unpause counts; grep -x 'frozen 0' /sys/fs/cgroup/berth/counts/cgroup.events; berth exec counts -- true")
	m.OK(t, "while awaiting; do [ $(berth logs -n 1 counts) != "+before+" ] && exit; done; exit 1")
	if lines := m.OK(t, "berth logs counts | awk '$1 != n++ {print NR; exit}'"); lines != "" {
		t.Errorf("a number is missing or doubled in line %s", lines)
	}
	m.OK(t, "berth pause counts; berth stop counts; berth ls | grep '^counts  *stopped 9 '; berth logs -n 1 counts | grep -x bye")
	m.OK(t, "berth kill plain; berth ls | grep '^plain  *exited 137 '; ! test -e /sys/fs/cgroup/berth/plain")
}
