package lab_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"berth/test/lab"
	"berth/test/sample"
	"berth/test/testkit"
)

// awayAsked is the node's allowance, in bytes a second: two emulated machines have the CPUs for it.
const awayAsked = 2_000_000

// TestSyncAway has two file servers, of which one splits the allowance of a node that reads from the other. Their clocks are set back, and
// the way between them is cut: what is enforced together is never above the allowance; that parts do not follow the load any more is said;
// they do again after the way is back. Where a run measures, it is said within 5 s, and the rest is as soon as promised.
func TestSyncAway(t *testing.T) {
	small := lab.Machine{NICs: []lab.NIC{{Segment: "site"}}, Disks: []lab.Disk{{Size: 512 << 20}}}
	l := lab.Start(t, lab.Options{Machines: []lab.Machine{small, small}})
	a, b := l.VM(0), l.VM(1)
	before := map[*lab.VM]string{}
	for i, m := range []*lab.VM{a, b} {
		install(t, m)
		m.OK(t, fmt.Sprintf(`hostname %c; printf '127.0.0.1 localhost\n192.0.2.1 a\n192.0.2.2 b\n' >/etc/hosts
			n=$(basename $(ls -d /sys/class/net/e*)); ip link set $n name site0; ip link set site0 up; ip addr add 192.0.2.%d/24 dev site0`, 'a'+i, 1+i))
		before[m] = m.OK(t, leftOfSync)
	}
	installSync(t, a, b)
	a.OK(t, "berth certs init 192.0.2.1 >&2")
	syncServer(t, a, `store: {embedded: {listen: "192.0.2.1:7612"}}`+"\n")
	a.OK(t, "while awaiting; do journalctl -u agent | grep -q 'this host splits' && exit; done; journalctl -u agent; exit 1")
	b.OK(t, "echo "+a.OK(t, "berth certs issue -o - b 192.0.2.2 | base64 -w0")+" | base64 -d | berth certs install - >&2")
	syncServer(t, b, `store: {endpoints: ["https://192.0.2.1:7612"]}`+"\n", "slow")
	t.Run("node", func(t *testing.T) { (&awaySite{t: t, a: a, b: b}).play() })
	for _, m := range []*lab.VM{b, a} {
		m.OK(t, "while awaiting; do ls -d /sys/fs/cgroup/berth.sync/shared/*/ >/dev/null 2>&1 || break; done; ! ls -d /sys/fs/cgroup/berth.sync/shared/*/\nsystemctl stop files agent")
	}
	// The host that keeps the cluster state leaves last.
	a.OK(t, "systemctl reset-failed agent 2>/dev/null || true; systemd-run -q --unit=agent berthd; while awaiting; do berth host ls >/dev/null 2>&1 && exit; done; exit 1")
	b.OK(t, "berthd --leave")
	a.OK(t, "systemctl stop agent; berthd --leave")
	for _, m := range []*lab.VM{a, b} {
		m.OK(t, "ip link del sync0; umount /srv/shared")
		if after := m.OK(t, leftOfSync); after != before[m] {
			t.Errorf("%s had before:\n%s\nand has now:\n%s", m.Name, before[m], after)
		}
	}
}

// awaySite is two file servers; the node and its load are on b.
type awaySite struct {
	t      *testing.T
	a, b   *lab.VM
	slow   []string // what was slower than it should be
	others float64  // the most that other programs took of this host while something was measured
}

// play has a node read while clocks and the way change.
func (s *awaySite) play() {
	t, a, b := s.t, s.a, s.b
	nodes(t, b, syncNode("slow", "2", fmt.Sprintf(", read: {rate: %dMB/s}", awayAsked/1_000_000)))
	t.Cleanup(func() { b.OK(t, "systemctl stop reads forgets") })
	b.OK(t, `systemd-run -q --unit=forgets sh -c 'while sleep 2; do echo 3 >/proc/sys/vm/drop_caches; done'
systemd-run -q --unit=reads berth exec slow -- sh -c 'for i in 0 1 2 3; do while :; do `+readOf("slow")+`; done & done; wait'`)
	s.whole("the load began", 10)
	s.reads("both answer", awayAsked)

	type clock struct {
		m        *lab.VM
		name, by string
	}
	for _, c := range sample.Some(sample.Of(t), 2, clock{b, "file server", "10 seconds"}, clock{a, "allocator's host", "1 hour"},
		clock{a, "allocator's host", "10 seconds"}, clock{b, "file server", "1 hour"}) {
		c.m.OK(t, "date -s '-"+c.by+"' >&2")
		s.reads("clock of the "+c.name+" set back "+c.by, awayAsked)
		c.m.OK(t, "date -s '+"+c.by+"' >&2")
	}

	// Neither the cluster state nor the allocator is reached any more.
	b.OK(t, "tc qdisc add dev site0 clsact; for d in ingress egress; do tc filter add dev site0 $d matchall action drop; done")
	began := s.uptime()
	lowered := s.until("no more than an equal part", 8, s.limit("<=", awayAsked/2)) - began
	said, err := strconv.ParseFloat(b.OK(t, "journalctl -u agent -o short-monotonic | sed -n 's/^\\[ *\\([0-9.]*\\)].*allowances do not follow the load now.*/\\1/p' | tail -n 1"), 64)
	if said -= began; err != nil || said < 0 || testkit.Measures() && said > 5 {
		t.Errorf("cut off: that parts do not follow the load was said after %.1f s, %v", said, err)
	}
	t.Logf("cut off: said after %.1f s, an equal part after %.1f s", said, lowered)
	s.reads("cut off", awayAsked/2)
	b.OK(t, "tc qdisc del dev site0 clsact")
	t.Logf("the way is back: the whole again after %.1f s", s.whole("the way is back", 3))
	s.reads("the way is back", awayAsked)
	judged(t, spare{others: s.others}, s.slow)
}

// uptime is b's clock that nobody sets, in seconds.
func (s *awaySite) uptime() float64 {
	s.t.Helper()
	up, err := strconv.ParseFloat(strings.Fields(s.b.OK(s.t, "cat /proc/uptime"))[0], 64)
	testkit.Must(s.t, err)
	return up
}

// until waits until a condition holds on b, and returns when it did: where a run measures, it must within some seconds.
func (s *awaySite) until(what string, most float64, condition string) float64 {
	s.t.Helper()
	if !testkit.Measures() {
		most = testkit.Bound().Seconds()
	}
	out := s.b.OK(s.t, fmt.Sprintf(`read begin rest </proc/uptime; while :; do if %s; then now=0; read now rest </proc/uptime; echo "$now"; exit; fi; read now rest </proc/uptime
if awk "BEGIN { exit !($now-$begin > %g) }"; then echo late; exit; fi; sleep 0.05; done`, condition, most))
	at, err := strconv.ParseFloat(out, 64)
	if err != nil {
		s.t.Fatalf("%s: not within %g s; b says\n%s", what, most, s.b.OK(s.t, "cat /sys/fs/cgroup/berth.sync/shared/slow/io.max; journalctl -n 20 -u agent"))
	}
	return at
}

// limit is a condition: what b enforces for the node, compared with bytes a second.
func (s *awaySite) limit(how string, than int) string {
	return fmt.Sprintf(`awk '{ sub("rbps=", "", $2); exit !($2 %s %d) }' /sys/fs/cgroup/berth.sync/shared/slow/io.max`, how, than)
}

// whole waits until b, from which alone the node reads, has nearly the whole allowance.
func (s *awaySite) whole(since string, most float64) (seconds float64) {
	s.t.Helper()
	began := s.uptime()
	return s.until("the whole again since "+since, most, s.limit(">=", awayAsked*95/100)) - began
}

// reads measures 4 s, in which what both enforce is looked at, too.
func (s *awaySite) reads(when string, most float64) {
	s.t.Helper()
	const group = "/sys/fs/cgroup/berth.sync/shared/slow/"
	look := func(m *lab.VM) (limit, bytes, up float64) {
		f := strings.Fields(m.OK(s.t, `sed -n 's/.*rbps=\([0-9]*\).*/\1/p' `+group+`io.max; sed -n 's/.* rbytes=\([0-9]*\).*/\1/p' `+group+`io.stat; cat /proc/uptime`))
		for i, to := range []*float64{&limit, &bytes, &up} {
			if len(f) == 3 { // nothing was read yet
				f = []string{f[0], "0", f[1]}
			}
			*to, _ = strconv.ParseFloat(f[i], 64)
		}
		return limit, bytes, up
	}
	others := lab.Others()
	_, first, began := look(s.b)
	bytes, up, least, together := first, began, float64(awayAsked), 0.0
	for up < began+4 {
		a1, _, _ := look(s.a)
		b1, _, _ := look(s.b)
		a2, _, _ := look(s.a) // one may be lowered and the other raised between two looks
		var b2 float64
		b2, bytes, up = look(s.b)
		least, together = min(least, b1, b2), max(together, min(a1, a2)+min(b1, b2))
	}
	crowd, err := others()
	testkit.Must(s.t, err)
	s.others = max(s.others, crowd)
	rate := (bytes - first) / (up - began)
	s.t.Logf("%s: %.2f MB/s of %.2f; the file server enforced %.2f or more, both together at most %.2f; others took %.0f %% of the host",
		when, rate/1e6, most/1e6, least/1e6, together/1e6, crowd)
	if rate > 1.05*most || together > 1.001*awayAsked {
		s.t.Errorf("%s: the node read %.2f MB/s, and may %.2f; both enforced up to %.2f", when, rate/1e6, most/1e6, together/1e6)
	}
	if rate < 0.5*most || testkit.Measures() && rate < 0.95*most {
		s.slow = append(s.slow, fmt.Sprintf("%s: the node read %.2f MB/s, and may %.2f", when, rate/1e6, most/1e6))
	}
}
