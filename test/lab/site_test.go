package lab_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"berth/test/lab"
	"berth/test/testkit"
)

// TestSite types the ten commands of docs/agent.md on the first of two bare hosts, and uses the site that they make: nodes of the other
// host, a minute without the cluster state, an upgrade of the agent's package.
func TestSite(t *testing.T) {
	t.Parallel()
	small := lab.Machine{Memory: 1024, NICs: []lab.NIC{{Segment: "site"}}}
	l := lab.Start(t, lab.Options{Machines: []lab.Machine{small, small}})
	a, b := l.VM(0), l.VM(1)
	packages(t, a, b)
	for i, m := range []*lab.VM{a, b} {
		m.OK(t, `hostname `+string("ab"[i])+`; printf '127.0.0.1 localhost\n192.0.2.1 a\n192.0.2.2 b\n' >/etc/hosts
			n=$(basename $(ls -d /sys/class/net/e*)); ip link set $n up; ip addr add 192.0.2.`+string("12"[i])+`/24 dev $n`)
	}
	// The page assumes the packages, and that root of a reaches root of b by ssh.
	key := a.OK(t, "install -d -m 700 /root/.ssh && ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id_ed25519 && cat /root/.ssh/id_ed25519.pub")
	b.OK(t, "install -d -m 700 /root/.ssh && echo '"+strings.TrimSpace(key)+"' >/root/.ssh/authorized_keys && ssh-keygen -A >/dev/null && systemctl start ssh")
	a.OK(t, "ssh -o StrictHostKeyChecking=accept-new b true")
	for _, m := range []*lab.VM{a, b} {
		m.OK(t, "dpkg -i /root/old-*.deb")
		choose(t, m, "/var/lib/berth")
	}
	a.Write(t, "/root/worker.yaml", "name: worker\nimage: host\ncommand: [sh, -c, 'while sleep 0.2; do echo tick; done']\n")

	typed := typeTen(t, a)
	if !strings.Contains(typed["berth host ls"], "\na ") {
		t.Errorf("berth host ls prints\n%s", typed["berth host ls"])
	}
	// The agent of b has just started: it tells the site of itself when the cluster state answers it.
	a.OK(t, "while awaiting; do berth host ls | grep -q '^b *up' && exit; done; berth host ls; exit 1")
	if out := b.OK(t, "berth ls"); !strings.Contains(out, "worker") {
		t.Errorf("berth ls on b, after a node was applied from a:\n%s", out)
	}
	if out := a.OK(t, "export HOME=/root; berth --host b events --stream=false"); !strings.Contains(out, "worker") || !strings.Contains(out, "started") {
		t.Errorf("events of b, asked on a:\n%s", out)
	}
	testAway(t, a, b)

	pid := b.OK(t, "echo $(cat /run/berth/nodes/worker/pid) $(systemctl show -P MainPID berthd)")
	b.OK(t, "dpkg -i /root/new-*.deb && berthd --version | grep -w v2.0.0 || berth --version | grep -w v2.0.0; systemctl is-active berthd")
	now := b.OK(t, "echo $(cat /run/berth/nodes/worker/pid) $(systemctl show -P MainPID berthd)")
	if was, is := strings.Fields(pid), strings.Fields(now); was[0] != is[0] || was[1] == is[1] {
		t.Errorf("node and agent before the upgrade: %v, after: %v", was, is)
	}
	a.OK(t, "export HOME=/root; berth --host b rm --force worker; berth --host b ls; test ! -e /run/berth/nodes/worker")
}

// typeTen types the block of ten commands of docs/agent.md, and returns what each printed.
func typeTen(t *testing.T, a *lab.VM) map[string]string {
	page, err := os.ReadFile("../../docs/agent.md")
	testkit.Must(t, err)
	block := regexp.MustCompile("(?s)Ten commands.*?\n```\n(.*?)```").FindSubmatch(page)
	if block == nil {
		t.Fatal("docs/agent.md has no ten commands")
	}
	lines := strings.Split(strings.TrimSpace(string(block[1])), "\n")
	if len(lines) != 10 {
		t.Errorf("docs/agent.md has %d commands, and says ten", len(lines))
	}
	printed := map[string]string{}
	for _, line := range lines {
		if strings.Contains(line, "exec -it") { // somebody sits at a terminal
			// They type when they see a prompt, and stay until the shell has ended.
			out := a.OK(t, `cd /root; export HOME=/root; mkfifo keys; : >screen
				script -qec '`+line+`' /dev/null <keys >screen 2>&1 & shell=$!
				exec 9>keys; while awaiting; do grep -q '[#$] ' screen && break; done; echo 'tty; hostname; exit 5' >&9
				wait $shell || echo code $?; cat screen; rm keys screen`)
			if !strings.Contains(out, "/dev/") || !strings.Contains(out, "worker") || !strings.Contains(out, "code 5") {
				t.Errorf("%s: prints %q", line, out)
			}
			continue
		}
		printed[line] = "\n" + a.OK(t, "set -o pipefail; cd /root; export HOME=/root; "+line)
	}
	return printed
}

// testAway takes the cluster state, which host a keeps, away from b for a minute: what runs goes on, nothing is claimed, and all is
// caught up afterwards.
func testAway(t *testing.T, a, b *lab.VM) {
	b.Write(t, "/root/gone.yaml", "name: gone\nimage: host\ncommand: [sleep, infinity]\n")
	b.Write(t, "/root/more.yaml", "name: more\nimage: host\ncommand: [sleep, infinity]\n")
	b.OK(t, "berth apply -f /root/gone.yaml")
	a.OK(t, "systemctl stop berthd")
	end := time.Now().Add(time.Minute)
	ticks := b.OK(t, "berth logs worker | wc -l; cat /run/berth/nodes/worker/pid")
	b.OK(t, "berth rm --force gone")
	for n := 0; time.Now().Before(end); n++ {
		time.Sleep(time.Second) // the tests beside this one need the CPUs
		r := b.Run(t, "berth", "apply", "-f", "/root/more.yaml")
		if r.Code != 3 || !strings.Contains(r.Err, "cluster state") && !strings.Contains(r.Err, "site") {
			t.Fatalf("a node that nobody could claim, try %d: exit code %d, %s", n, r.Code, r.Err)
		}
	}
	if out := b.OK(t, "berth host ls 2>&1"); !strings.Contains(out, "stale") && !strings.Contains(out, "last known") && !strings.Contains(out, "since") {
		t.Errorf("berth host ls, without the cluster state:\n%s", out)
	}
	if now := b.OK(t, "berth logs worker | wc -l; cat /run/berth/nodes/worker/pid"); strings.Fields(now)[1] != strings.Fields(ticks)[1] || now == ticks {
		t.Errorf("the node of b before: %s, after: %s", ticks, now)
	}
	a.OK(t, "systemctl start berthd")
	// Sites are asked where the state was away: b tells that a node is gone, and makes the other.
	b.OK(t, `while awaiting; do berth apply -f /root/more.yaml 2>/dev/null && exit; done; berth apply -f /root/more.yaml`)
	b.OK(t, "berth rm --force more")
}
