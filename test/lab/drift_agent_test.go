package lab_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/test/lab"
	"berth/test/testkit"
)

// agentAtItsLimit runs the agent by its own unit, and has the kernel end it for lack of memory while it makes a node and runs a command
// for a client: neither is lost, nor is another node or the keeper, and systemd starts the agent again, however often it ended.
func agentAtItsLimit(t *testing.T, m *lab.VM) {
	installSync(t, m)
	unit, err := os.ReadFile("../../packaging/berthd.service")
	testkit.Must(t, err)
	m.Write(t, "/etc/systemd/system/berthd.service", strings.ReplaceAll(string(unit), "@PREFIX@", "/usr/local"))
	m.OK(t, "mkdir -p /etc/berth; printf 'host: a\\nlocal: true\\n' >/etc/berth/berthd.yaml; systemctl daemon-reload; systemctl start berthd")
	const say = "berth --host unix:/run/berth/berthd.sock "
	t.Cleanup(func() {
		m.OK(t, "systemctl stop berthd; for n in steady n1; do berth rm --force $n || test $? = 4; done; berthd --leave; rm /etc/systemd/system/berthd.service; systemctl daemon-reload")
	})

	const has = `cd /sys/fs/cgroup/system.slice/berthd.service; pid=$(systemctl show -P MainPID berthd)
systemctl show -p OOMPolicy -p MemoryMax -p OOMScoreAdjust -p StartLimitIntervalUSec -p KillMode berthd; grep -H '' memory.max memory.oom.group; cat /proc/$pid/oom_score_adj; echo $(cat cgroup.procs | wc -l)`
	want := "StartLimitIntervalUSec=0\nMemoryMax=1073741824\nOOMScoreAdjust=-500\nOOMPolicy=continue\nKillMode=process\nmemory.max:1073741824\nmemory.oom.group:0\n-500\n1"
	if d := cmp.Diff(sorted(map[string]string{"": want}), sorted(map[string]string{"": m.OK(t, has)})); d != "" {
		t.Errorf("the unit (-want +got):\n%s", d)
	}

	m.Write(t, "/root/steady.yaml", "name: steady\nimage: host\ncommand: [sleep, infinity]\n")
	m.Write(t, "/root/n1.yaml", "name: n1\nimage: host\ncommand: [sleep, infinity]\nmemory: {max: 64MiB}\n")
	m.OK(t, say+"apply -f /root/steady.yaml")
	const stays = `echo $(cat /run/berth/nodes/steady/pid) $(pgrep -x berth-keeper)`
	before := m.OK(t, stays)

	const begin = `U=/sys/fs/cgroup/system.slice/berthd.service
killed() { dmesg | grep 'Memory cgroup out of memory: Killed process' | grep -c "($1)"; }
hog() { sh -c "echo $1 >/proc/self/oom_score_adj; echo 0 >$U/cgroup.procs; exec tail /dev/zero" & hog=$!; }
asks() { ` + say + `"$@"; }
`
	// First the kernel ends another process of the group: the node is made, and the command for a client goes on.
	r := m.Try(t, begin+`mkdir -p /run/systemd/system/berthd.service.d; printf '[Service]\nMemoryMax=160M\n' >/run/systemd/system/berthd.service.d/less.conf; systemctl daemon-reload; cat $U/memory.max
asks exec steady -- sh -c 'echo ready >/tmp/ready; while ! test -e /tmp/go; do sleep 0.1; done; exit 7' & e=$!
while awaiting; do berth exec steady -- test -e /tmp/ready && break; done
hog 1000; asks apply -f /root/n1.yaml; wait $hog && exit 1; test $(killed tail) = 1; test $(killed berthd) = 0
berth exec steady -- touch /tmp/go; wait $e && code=0 || code=$?; echo "exec: $code"; asks rm --force n1`)
	if r.Code != 0 || !strings.HasPrefix(r.Out, "167772160\n") || !strings.Contains(r.Out, "exec: 7\n") {
		t.Errorf("the kernel ends another process of the agent's group: exit code %d: %s%s", r.Code, r.Out, r.Err)
	}
	// Then tail cannot be killed for lack of memory, so the kernel ends the agent, and again, until tail goes.
	r = m.Try(t, begin+`n=$(systemctl show -P NRestarts berthd); asks apply -f /root/n1.yaml >/root/apply.out 2>&1 & a=$!
hog -1000; while awaiting; do test $(systemctl show -P NRestarts berthd) -ge $((n+1)) && break; done
kill -9 $hog; wait $hog || true; wait $a && code=0 || code=$?; echo "apply: $code $(cat /root/apply.out)"; test $(killed berthd) -ge 1
while awaiting; do asks ls >/dev/null 2>&1 && break; done
asks apply -f /root/n1.yaml; berth ls | grep '^n1 *running'; berth ls | grep '^steady *running'; berth repair
rm -r /run/systemd/system/berthd.service.d; systemctl daemon-reload; cat $U/memory.max`)
	t.Logf("%s", r.Out)
	if r.Code != 0 || !strings.Contains(r.Out, "nothing to repair\n1073741824\n") {
		t.Errorf("the kernel ends the agent: exit code %d: %s%s", r.Code, r.Out, r.Err)
	}
	if after := m.OK(t, stays); after != before {
		t.Errorf("a node and the keeper were %s, and are %s", before, after)
	}

	// However often it ends at once, it is started again.
	r = m.Try(t, `for i in 1 2 3 4 5 6 7; do
while awaiting; do p=$(systemctl show -P MainPID berthd); test $p != 0 -a "$p" != "$was" && break; systemctl is-failed -q berthd && break 2; done; was=$p; kill -9 $p; done
while awaiting; do systemctl is-failed -q berthd && break; `+say+`ls && exit; done; systemctl status --no-pager berthd; exit 1`)
	if r.Code != 0 {
		t.Errorf("an agent that was killed seven times: %s%s", r.Out, r.Err)
	}
}
