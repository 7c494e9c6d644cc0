package sync

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/internal/site/store"
	"berth/internal/site/store/etcd"
	"berth/test/built"
	"berth/test/testkit"
)

// TestHostVanishes: a host of nodes loses its power: nobody says good-bye. Its nodes' limits and parts stay on the file servers, and other
// nodes' do; berth sync ls there says so as soon as the site does not hear of the host. The host is back: all is as before. It vanishes
// for good, and the site forgets it: nothing of its nodes is left.
func TestHostVanishes(t *testing.T) {
	mostlyWaits(t)
	a, b, c := newSite(t, "198.51.126"), newSite(t, "198.51.127"), newSite(t, "198.51.128")
	testkit.Must(t, built.Site(t.Context(), a.dir))
	together(t, a, b, c)
	c.configure("") // it serves nothing
	for _, s := range []*site{a, b, c} {
		s.start()
	}
	const lasts = "io: [{name: s, filesystem: shared, read: {rate: 20MB/s}}]\n"
	a.node("stays", 2, lasts)
	c.node("n", 2, lasts)
	halves := func(nodes ...string) func() bool {
		return func() bool {
			for _, n := range nodes {
				if a.limit(n) != asked || b.limit(n) != asked {
					return false
				}
			}
			return true
		}
	}
	a.eventually("both servers hold half of both nodes", 5*time.Second, halves("stays", "n"))
	says := func() string { return strings.Join(strings.Fields(a.berth("sync", "ls")), " ") }
	const told = "host c: not heard of: what is held for its nodes stays until it is back host c: if it is gone for good: berth host forget c"

	c.vanish()
	// While its session lives, nobody knows. Nothing changes on the file servers.
	if h, ok := a.held("n"); !ok || h.Away || h.Failed != "" || h.Host != "c" {
		t.Errorf("right after it vanished, berth sync ls says %+v", h)
	}
	c.sessionEnds()
	a.eventually("berth sync ls tells of it", 5*time.Second, func() bool { h, ok := a.held("n"); return ok && h.Away })
	if h, _ := a.held("stays"); h.Away || strings.Count(says(), told) != 1 {
		t.Errorf("berth sync ls says %s", says())
	}
	if hosts := a.berth("host", "ls"); !regexp.MustCompile(`(?m)^c +away `).MatchString(hosts) {
		t.Errorf("berth host ls says:\n%s", hosts)
	}
	a.berth("set", "stays", "io.s.read.rate=10MB/s") // the allocator tells both servers of another demand
	a.eventually("the other node's limit follows", 5*time.Second, func() bool { return a.limit("stays")+b.limit("stays") == asked })
	if !halves("n")() {
		t.Errorf("the servers hold %d and %d for the node of the host that vanished", a.limit("n"), b.limit("n"))
	}

	c.start()
	a.eventually("the host is back", 5*time.Second, func() bool { h, ok := a.held("n"); return ok && !h.Away })
	if !halves("n")() || strings.Contains(says(), told) {
		t.Errorf("the host is back, and the servers hold %d and %d: %s", a.limit("n"), b.limit("n"), says())
	}
	c.berth("start", "n")
	c.berth("set", "n", "io.s.read.rate=40MB/s")
	a.eventually("its node's limit follows again", 5*time.Second, func() bool { return a.limit("n") == 2*asked && b.limit("n") == 2*asked })

	c.vanish()
	c.sessionEnds()
	a.eventually("berth sync ls tells of it", 5*time.Second, func() bool { h, ok := a.held("n"); return ok && h.Away })
	a.berth("host", "forget", "c")
	for _, s := range []*site{a, b} {
		s.eventually("nothing is left of its node", 5*time.Second, func() bool {
			_, group := os.Stat(s.group("n"))
			_, held := s.held("n")
			return group != nil && !held
		})
		if _, ok := s.held("stays"); !ok || s.limit("stays") == 0 {
			t.Error("the other node is not held any more")
		}
	}
	if strings.Contains(says(), told) {
		t.Errorf("the site forgot the host, and berth sync ls says %s", says())
	}
	// It comes back all the same: it joins anew, and tells of its node.
	c.start()
	a.eventually("its node is held again", 5*time.Second, func() bool { h, ok := a.held("n"); return ok && !h.Away && a.limit("n") > 0 && b.limit("n") > 0 })
	c.berth("rm", "--force", "n")
	a.eventually("it is gone", 5*time.Second, func() bool { _, ok := a.held("n"); return !ok && b.limit("n") == 0 })
}

// vanish ends all that runs on a host, as when it loses its power: its keeper, its agent and its nodes.
func (s *site) vanish() {
	s.t.Helper()
	var all []struct {
		Name string `json:"name"`
		PID  int    `json:"pid"`
	}
	testkit.Must(s.t, json.Unmarshal([]byte(s.berth("ls", "--json")), &all))
	for pid := range testkit.Processes("\x00--root\x00" + s.root + "\x00keeper\x00") {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	}
	s.end(s.agent, syscall.SIGKILL)
	for _, n := range all {
		if n.PID == 0 {
			s.t.Errorf("node %s does not run", n.Name)
			continue
		}
		_ = syscall.Kill(n.PID, syscall.SIGKILL)
	}
}

// sessionEnds has the site not hear of a host any more, as when the session of its agent ends after 30 s.
func (s *site) sessionEnds() {
	s.t.Helper()
	endpoint := regexp.MustCompile(`endpoints: \["(.*)"\]`).FindStringSubmatch(s.conf)
	state, err := etcd.Open(etcd.Config{Endpoints: endpoint[1:]})
	testkit.Must(s.t, err)
	defer state.Close()
	_, err = state.Commit(s.t.Context(), nil, []store.Op{{Key: store.Key(store.Hosts, s.name), Delete: true}})
	testkit.Must(s.t, err)
}
