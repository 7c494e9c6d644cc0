package lab_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth/test/built"
	"berth/test/lab"
	"berth/test/testkit"
)

// syncAsked is the rate of the limited node, in bytes a second.
const syncAsked = 4_000_000

// TestSync is VNode Sync on a file server with cgroup v2: sftp-server, a process a client. Package test/sync has the servers of v1.
func TestSync(t *testing.T) {
	m := twoReaders(t)
	m.Slow(t, 0, slowBytes, 4*slowIOPS)
	m.OK(t, fmt.Sprintf("berth set slow io.s.read.rate=%dMB/s io.s.write.rate=%[1]dMB/s; berth set fast io.s.weight=100", syncAsked/1_000_000))
	m.OK(t, fmt.Sprintf("while awaiting; do grep -q 'rbps=%d wbps=%d ' /sys/fs/cgroup/berth.sync/shared/slow/io.max && exit; done; berth sync ls; exit 1", syncAsked, syncAsked))
	var held []struct {
		Node    string
		Missing string `json:"not_enforced"`
	}
	testkit.Must(t, json.Unmarshal([]byte(m.OK(t, "berth sync ls --json")), &held))
	for _, h := range held {
		if h.Missing != "" {
			t.Errorf("of %s it says: not enforced: %s", h.Node, h.Missing)
		}
	}

	t.Run("rates", func(t *testing.T) { syncRates(t, m) })
}

// twoReaders starts a file server with two nodes, slow and fast, whose weights are 100 and 800.
func twoReaders(t *testing.T) *lab.VM {
	t.Helper()
	m := start(t, lab.Machine{Disks: []lab.Disk{{Size: 1 << 30}}})
	installSync(t, m)
	syncServer(t, m, "host: a\nlocal: true\n", "slow", "fast")
	t.Cleanup(func() { // after the nodes
		m.OK(t, `while awaiting; do ls -d /sys/fs/cgroup/berth.sync/shared/*/ >/dev/null 2>&1 || break; done; ! ls -d /sys/fs/cgroup/berth.sync/shared/*/
systemctl stop files agent; berthd --leave; ! ls -d /sys/fs/cgroup/berth.sync* /run/berth/sync/*`)
	})
	nodes(t, m, syncNode("slow", "2", ", weight: 100"), syncNode("fast", "3", ", weight: 800"))
	return m
}

// installSync puts the agent and the audit into machines that have berth.
func installSync(t *testing.T, all ...*lab.VM) {
	t.Helper()
	dir := t.TempDir()
	testkit.Must(t, built.Agent(t.Context(), dir))
	testkit.Must(t, built.Sync(t.Context(), dir))
	testkit.Must(t, built.Site(t.Context(), dir))
	for _, m := range all {
		for _, program := range []string{"berthd", "berth-sync", "berth-site"} {
			m.Copy(t, dir+"/"+program, "/usr/local/bin/"+program)
		}
	}
}

// syncServer makes a machine a file server: an agent with this file, and sftp-server for nodes at a bridge, on a disk with some files.
func syncServer(t *testing.T, m *lab.VM, conf string, names ...string) {
	t.Helper()
	m.OK(t, "mkdir -p /etc/berth /srv/shared; printf '"+strings.ReplaceAll(conf, "\n", "\\n")+`filesystems: [{name: shared, path: /srv/shared, server: sftp}]\n' >/etc/berth/berthd.yaml
cd /sys/block/vdb/queue; echo bfq >scheduler; echo 0 >iosched/low_latency; mkfs.ext4 -q -E lazy_itable_init=0 -O ^has_journal /dev/vdb; mount -o noatime /dev/vdb /srv/shared; cd /srv/shared
for f in `+strings.Join(names, " ")+`; do head -c 160000000 /dev/urandom >$f; chmod 644 $f; done; mkdir w; chmod 777 w; sync
ip link add sync0 type bridge; ip addr add 198.51.100.1/24 dev sync0; ip link set sync0 up
systemd-run -q --unit=agent berthd
while awaiting; do [ -e /run/berth/sync/shared/generation ] && break; done
systemd-run -q --unit=files berth gateway serve /srv/shared --user nobody --allow 198.51.100.0/24 --listen 198.51.100.1:7022 --sync shared
while awaiting; do ss -ltn | grep -q :7022 && exit; systemctl is-failed agent files && break; done; journalctl -u agent -u files; exit 1`)
}

// syncNode is a node that mounts what its machine serves.
func syncNode(name, address, limit string) string {
	return "name: " + name + "\nimage: host\ncommand: [sleep, infinity]\nnetwork: [{mode: bridge, parent: sync0, address: [198.51.100." + address + "/24]}]\n" +
		"mounts: [{source: '198.51.100.1:/', target: /mnt, gateway: sshfs-direct}]\nio: [{name: s, filesystem: shared" + limit + "}]\n"
}

// syncCount runs a command in each node, several at a time, and returns what the disk did for it a second, by the kernel's counter of its
// group, in each of n windows that follow one another.
func syncCount(t *testing.T, m *lab.VM, counter string, n, seconds int, run map[string]string) []map[string]float64 {
	t.Helper()
	script := "echo 3 >/proc/sys/vm/drop_caches\n"
	look := ""
	for node, command := range run {
		script += fmt.Sprintf("berth exec %s -- sh -c 'for i in 0 1 2 3; do timeout %d %s & done; wait' >/dev/null 2>&1 &\n", node, n*seconds+8, command)
		look += "echo " + node + ` $(sed -n 's/.* ` + counter + `=\([0-9]*\).*/\1/p' /sys/fs/cgroup/berth.sync/shared/` + node + "/io.stat | grep . || echo 0) $(date +%s%N); "
	}
	r := m.RunFor(t, time.Duration(n*seconds)*time.Second+time.Minute, "bash", "-ec", fmt.Sprintf("%ssleep 4; %sfor n in $(seq %d); do sleep %d; %sdone; wait", script, look, n, seconds, look))
	if r.Code != 0 {
		t.Fatalf("exit code %d: %s%s", r.Code, r.Out, r.Err)
	}
	type counted struct{ bytes, at float64 }
	before := map[string]counted{}
	var rates []map[string]float64
	for line := range strings.Lines(r.Out) {
		f := strings.Fields(line)
		if len(f) != 3 {
			t.Fatalf("counters: %q", r.Out)
		}
		bytes, _ := strconv.ParseFloat(f[1], 64)
		at, _ := strconv.ParseFloat(f[2], 64)
		is := counted{bytes, at / 1e9}
		if was, ok := before[f[0]]; ok {
			if len(rates) == 0 || len(rates[len(rates)-1]) == len(run) {
				rates = append(rates, map[string]float64{})
			}
			rates[len(rates)-1][f[0]] = (is.bytes - was.bytes) / (is.at - was.at)
		}
		before[f[0]] = is
	}
	return rates
}

// readOf is one of four readers of a node's file: each reads another part.
func readOf(name string) string {
	return "dd if=/mnt/" + name + " of=/dev/null bs=256k skip=$((i*150))"
}

// syncRates compares what the disk did for the limited node with what was asked for: reads, and writes through the page cache.
func syncRates(t *testing.T, m *lab.VM) {
	for _, c := range []struct {
		name, counter, command string
		seconds                int
		within                 float64 // the part of what it may; the kernel writes back in bursts of some MB
	}{
		{"reads", "rbytes", readOf("slow"), 12, 0.05},
		{"buffered writes", "wbytes", "dd if=/dev/zero of=/mnt/w/$i bs=256k count=400", 24, 0.2},
	} {
		t.Run(c.name, func(t *testing.T) {
			seconds := c.seconds
			m.OK(t, fmt.Sprintf("systemd-run -q --unit=audit-%s -p StandardOutput=file:/root/audit berth sync audit shared --for %ds", c.counter, seconds+8))
			others := lab.Others()
			got := syncCount(t, m, c.counter, 1, seconds, map[string]string{"slow": c.command, "fast": readOf("fast")})[0]
			crowd, err := others()
			testkit.Must(t, err)
			audit := m.OK(t, "while systemctl is-active -q audit-"+c.counter+"; do sleep 0.2; done; cat /root/audit; systemctl is-failed -q audit-"+c.counter+" && journalctl -u audit-"+c.counter+" || true")
			t.Logf("%s: slow %.2f MB/s of %.0f, fast %.1f; others took %.0f %% of the host\n%s", c.name, got["slow"]/1e6, syncAsked/1e6, got["fast"]/1e6, crowd, audit)
			testkit.Rate(t, c.name+" of the limited node, MB/s", got["slow"]/1e6, syncAsked/1e6, c.within)
			if !strings.Contains(audit, ": 0 B leaked") {
				t.Error("the audit found a leak")
			}
		})
	}
}
