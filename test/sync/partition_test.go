package sync

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"berth/test/built"
	"berth/test/sample"
	"berth/test/testkit"
)

// aside puts the agent of a host into a network namespace of its own, one cable away from the other host's and from the cluster state. It
// returns what takes the cable away without a word, and what takes the agent's interface down, each with what undoes it.
func aside(a, b *site, net string) (cut, down [2]func()) {
	bridge, cable := "m"+a.link, "v"+a.link
	a.at, b.at, b.netns = net+".1", net+".2", "n"+b.link
	a.run("ip", "link", "add", bridge, "type", "bridge")
	a.t.Cleanup(func() { a.run("ip", "link", "del", bridge) })
	a.run("ip", "address", "add", a.at+"/24", "dev", bridge)
	a.run("ip", "link", "set", bridge, "up")
	a.namespace(b.netns)
	a.run("ip", "link", "add", cable, "master", bridge, "up", "type", "veth", "peer", "name", "eth0", "netns", b.netns)
	a.run("ip", "-n", b.netns, "address", "add", b.at+"/24", "dev", "eth0")
	a.run("ip", "-n", b.netns, "link", "set", "eth0", "up")
	a.run("ip", "-n", b.netns, "link", "set", "lo", "up")
	return [2]func(){func() { a.run("ip", "link", "set", cable, "nomaster") }, func() { a.run("ip", "link", "set", cable, "master", bridge) }},
		[2]func(){func() { a.run("ip", "-n", b.netns, "link", "set", "eth0", "down") }, func() { a.run("ip", "-n", b.netns, "link", "set", "eth0", "up") }}
}

// TestPartition: the agent of a file server is cut off from the cluster state and from the host that splits allowances, under load. What is
// enforced stays, and is never above what is allowed; berth sync ls tells of it soon; soon after it hears of them again, all is as the
// site wants it now.
func TestPartition(t *testing.T) {
	a, b := newSite(t, "198.51.116"), newSite(t, "198.51.117")
	testkit.Must(t, built.Agent(t.Context(), a.dir))
	cut, down := aside(a, b, "198.51.118")
	certify(t, a, b)
	a.conf += fmt.Sprintf("store: {embedded: {listen: \"%s:7612\"}}\n", a.at)
	b.conf += fmt.Sprintf("store: {endpoints: [\"https://%s:7612\"]}\n", a.at)
	for _, s := range []*site{a, b} {
		s.configure(strings.Replace(shared, "%s", s.served, 1))
	}
	t.Cleanup(a.leave) // while its address is there
	a.start()
	t.Cleanup(b.leave) // while host a keeps the cluster state
	a.eventually("host a takes the office", 10*time.Second, func() bool { return strings.Contains(a.said.String(), "this host splits the allowances") })
	b.start()
	for _, s := range []*site{a, b} {
		s.file("data", 900<<20) // more than is read of it
	}
	a.serveAt(a.net, "7022")
	b.serveAt(a.net, "7023") // the way of the data is whole
	mount := func(target, port string) string {
		return fmt.Sprintf("{source: '%s.1:/', target: %s, gateway: sshfs-direct, options: {port: %q}}", a.net, target, port)
	}
	const all, less = 2 * asked, 12_000_000
	a.node("n", 2, "mounts: ["+mount("/mnt/a", "7022")+", "+mount("/mnt/b", "7023")+"]\nio: [{name: s, filesystem: shared, read: {rate: 20MB/s}}]\n")
	a.eventually("both servers hold half", 5*time.Second, func() bool { return a.limit("n") == asked && b.limit("n") == asked })
	onA, onB := a.reader("n", "/mnt/a", a, "data"), a.reader("n", "/mnt/b", b, "data")
	over, whole := watch(a, b, "n"), since(a, b)
	stale := func() string { h, _ := b.held("n"); return h.Stale }
	type partition struct {
		name string
		how  [2]func()
		d    time.Duration
	}
	for _, p := range sample.Some(sample.Of(t), 1,
		partition{"its frames are lost for 3 s", cut, 3 * time.Second}, partition{"its frames are lost for 12 s", cut, 12 * time.Second},
		partition{"its interface is down for 12 s", down, 12 * time.Second}, partition{"its session ends", cut, 40 * time.Second}) {
		if said := stale(); said != "" {
			t.Errorf("%s: before, berth sync ls says: %s", p.name, said)
		}
		a.node("goes", 3, "io: [{name: s, filesystem: shared, read: {rate: 5MB/s}}]\n")
		a.eventually("the other node is there", 3*time.Second, func() bool { return b.limit("goes") > 0 })
		p.how[0]()
		began := time.Now()
		told := a.eventually("it is told", 5*time.Second, func() bool { return stale() != "" })
		a.berth("rm", "--force", "goes")
		a.berth("set", "n", "io.s.read.rate=12MB/s")
		a.node("comes", 4, "io: [{name: s, filesystem: shared, read: {rate: 5MB/s}}]\n")
		if p.d > 8*time.Second {
			a.eventually("it has no more than an equal part", 8*time.Second, func() bool { return b.limit("n") <= asked })
		}
		each, sum := rates(max(time.Second, p.d-time.Since(began)), a, b)
		if testkit.Measures() && sum > 1.05*20 || whole() > 1.05*20 || b.limit("n") == 0 || b.limit("goes") == 0 {
			t.Errorf("%s: the disks read %.1f MB/s, of at most 20; the limits are %d and %d", p.name, sum, b.limit("n"), b.limit("goes"))
		}
		p.how[1]()
		healed := a.eventually("it does what the site wants", 3*time.Second, func() bool {
			sum := a.limit("n") + b.limit("n")
			return b.limit("goes") == 0 && b.limit("comes") > 0 && sum <= less && sum > less*95/100
		})
		a.eventually("nothing is told any more", 2*time.Second, func() bool { return stale() == "" })
		t.Logf("%s: told after %v; meanwhile %.1f and %.1f MB/s from the disks; as the site wants it %v after it was healed", p.name, told.Round(time.Millisecond),
			each[0], each[1], healed.Round(time.Millisecond))
		a.berth("rm", "--force", "comes")
		a.berth("set", "n", "io.s.read.rate=20MB/s")
		a.eventually("the new rate is in force", time.Second, func() bool { return a.limit("n")+b.limit("n") > all*95/100 })
		a.eventually("the group is gone", 3*time.Second, func() bool { return b.limit("comes") == 0 })
	}
	if most := over(); most > all+2 {
		t.Errorf("at some moment both servers allowed %d bytes a second together", most)
	}
	onA()
	onB()
	a.berth("rm", "--force", "n")
	a.eventually("the groups are gone", 5*time.Second, func() bool {
		_, first := os.Stat(a.group("n"))
		_, second := os.Stat(b.group("n"))
		return first != nil && second != nil
	})
}
