package lab_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/test/deb"
	"berth/test/lab"
	"berth/test/testkit"
)

// packages makes Berth's Debian packages, an older version and this one, and copies them into machines as /root/old-*.deb and
// /root/new-*.deb.
func packages(t *testing.T, machines ...*lab.VM) {
	t.Helper()
	files := t.TempDir()
	testkit.Must(t, deb.Files(t.Context(), files))
	for _, v := range []struct{ name, version string }{{"old", "v1.0.0"}, {"new", "v2.0.0"}} {
		// The keeper becomes a newer program only.
		build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w -X berth/internal/sys/version.Berth="+v.version, "-o", filepath.Join(files, "berth"), "berth/cmd/berth")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		made, err := deb.Make(t.Context(), files, t.TempDir(), v.version)
		testkit.Must(t, err)
		for _, p := range made {
			name, _, _ := strings.Cut(filepath.Base(p), "_")
			for _, m := range machines {
				m.Copy(t, p, "/root/"+v.name+"-"+name+".deb")
			}
		}
	}
}

// TestDeb installs the packages in a machine, upgrades them while a node runs, and purges them: not with nodes there, and nothing is
// left then.
func TestDeb(t *testing.T) {
	t.Parallel()
	m := lab.Start(t, lab.Options{Machines: []lab.Machine{{Memory: 768}}}).VM(0)
	packages(t, m)
	// All that is on the host, but for dpkg's own records and what the machine's own programs write.
	const all = `find / -xdev \( -path /proc -o -path /sys -o -path /tmp -o -path /var/lib/dpkg -o -path /var/log -o -path /var/lib/systemd -o -path /root \) -prune -o -print | sort
		getent group | cut -d: -f1; ls -d /run/berth* /sys/fs/cgroup/berth* /etc/systemd/system/berth* 2>/dev/null || true`
	before := m.OK(t, "cp /etc/group /etc/group-; cp /etc/gshadow /etc/gshadow- 2>/dev/null || true; "+all)

	m.OK(t, "dpkg -i /root/old-*.deb && berth --version | grep -w v1.0.0")
	choose(t, m, "/var/lib/berth")
	m.Write(t, "/root/node.yaml", "name: n1\nimage: host\ncommand: [sh, -c, 'sleep 1000; exit 7']\nautostart: true\n")
	m.OK(t, "berth apply -f /root/node.yaml")
	const state = `echo node $(cat /run/berth/nodes/n1/pid); echo keeper $(pgrep -x berth-keeper)`
	was := m.OK(t, state)
	m.OK(t, "dpkg -i /root/new-*.deb && berth --version | grep -w v2.0.0")
	if is := m.OK(t, state); is != was {
		t.Errorf("before the upgrade: %s, after: %s", was, is)
	}
	m.OK(t, "cmp /proc/$(pgrep -x berth-keeper)/exe /usr/bin/berth")
	// The keeper is still the parent, so it learns how the node ends.
	m.OK(t, "pkill -x sleep; while awaiting; do berth ls | grep -q '^n1 *exited 7' && exit; done; berth ls; exit 1")
	m.OK(t, "berth start n1")

	r := m.Run(t, "dpkg", "--purge", "berthd", "berth")
	if r.Code == 0 || !strings.Contains(r.Err, "nodes are there, and what they wrote would be lost: n1") || !strings.Contains(r.Err, "berth rm --force n1") {
		t.Errorf("purge with a node: exit code %d, %s%s", r.Code, r.Out, r.Err)
	}
	m.OK(t, "berth ls | grep '^n1 *running' && berth rm --force n1 && dpkg --purge berth")
	if d := cmp.Diff(strings.Split(before, "\n"), strings.Split(m.OK(t, all), "\n")); d != "" {
		t.Errorf("after the purge (-before +after):\n%s", d)
	}
}
