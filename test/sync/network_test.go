package sync

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/test/testkit"
)

// The programs that read and write in a node. Four threads read at a time, so that a request waits even on slow CPUs.
const (
	readsHot = `import os,sys,threading,time
f = os.open(sys.argv[2]+"/hot", os.O_RDONLY); n = [0]*4; z = time.time()
def run(i):
  at = i<<22
  while True: n[i] += len(os.pread(f, 1<<16, at)); at = (at+(1<<16)) % (32<<20)
for i in range(4): threading.Thread(target=run, args=[i], daemon=True).start()
time.sleep(1); t = time.time(); b = sum(n); time.sleep(int(sys.argv[1])); print((sum(n)-b)/(time.time()-t), sum(n)/(time.time()-z), flush=True); os._exit(0)`
	writesNew = `import os,sys,time
f = os.open(sys.argv[2]+"/w/new", os.O_WRONLY|os.O_CREAT|os.O_TRUNC); e = time.time()+int(sys.argv[1])+2
while time.time() < e: os.write(f, bytes(1<<16))`
)

// moves makes a node read a file from the server's page cache, or write one, for some seconds, and returns bytes of data a second: read,
// as the client sees it; written, as the server's file grows, because a client's buffers take some MB at once. Where the run measures, the
// first second is left out: what a class saved up while it was idle goes at once. Elsewhere it counts: what a busy machine left in a
// buffer before the window would come in addition.
func (s *site) moves(node, what, at string, seconds int) float64 {
	s.t.Helper()
	run := func(script string) string {
		return s.berth("exec", node, "--", "python3", "-c", script, strconv.Itoa(seconds), at)
	}
	if what == "reads" {
		var rate, whole float64
		if _, err := fmt.Sscan(run(readsHot), &rate, &whole); err != nil {
			s.t.Errorf("%s %s: %v", node, what, err)
		}
		if !testkit.Measures() && !emulated {
			return whole
		}
		return rate
	}
	file := filepath.Join(s.served, "w", "new")
	_ = os.Remove(file) // it may not be there yet
	done, start := make(chan struct{}), time.Now()
	go func() { defer close(done); run(writesNew) }()
	size := func() float64 {
		st, err := os.Stat(file)
		if err != nil {
			return 0
		}
		return float64(st.Size())
	}
	s.eventually("something is written", 5*time.Second, func() bool { return size() > 0 })
	time.Sleep(time.Second)
	first, began := size(), time.Now()
	time.Sleep(time.Duration(seconds) * time.Second)
	if !testkit.Measures() && !emulated {
		first, began = 0, start
	}
	rate := (size() - first) / time.Since(began).Seconds()
	<-done
	return rate
}

// TestNetwork: the frames of a node are limited at the server's interface, those that the server has in memory too; a neighbour without a
// limit is not; it is changed live, outlives the agent, and nothing of it stays.
func TestNetwork(t *testing.T) {
	mostlyWaits(t)
	s := newSite(t, "198.51.107")
	s.configure(fmt.Sprintf("filesystems: [{name: shared, path: %s, server: other, interface: %s}]\n", s.served, s.link))
	s.start()
	s.file("hot", 32<<20)
	s.run("sh", "-c", "mkdir $0/w && chmod 777 $0/w", s.served)
	c := exec.Command(s.dir+"/berth", "--root", s.root, "gateway", "serve", s.served, "--user", "nobody", "--allow", s.net+".0/24", "--listen", s.net+".1:7022")
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.end(c, syscall.SIGTERM) })
	if _, err := out.Read(make([]byte, 200)); err != nil { // "serving …"
		t.Fatal(err)
	}
	// Two connections: over one, a request to read waits behind what was written before it.
	mounted := "mounts:\n"
	for _, target := range []string{"/mnt", "/media"} {
		mounted += "- {source: '" + s.net + ".1:/', target: " + target + ", gateway: sshfs-direct, options: {direct_io: true}}\n"
	}
	// In the lab CPUs are what nodes wait for at more than 5 MB/s.
	read, write, raised := 10, 5, 20
	if emulated {
		read, write, raised = 5, 3, 10
	}
	s.node("slow", 2, mounted+"io: [{name: s, filesystem: shared, read: {rate: "+mb(read)+"}, write: {rate: "+mb(write)+"}, weight: 50}]\n")
	s.node("fast", 3, mounted+"io: [{name: s, filesystem: shared}]\n")
	holds := func(key, asked string) func() bool {
		return func() bool {
			h, _ := s.held("slow")
			for _, l := range h.Limits {
				if l.Key == "io.shared."+key && l.Asked == asked {
					return l.Holds && l.ReadBack == asked && strings.Contains(l.By, "htb")
				}
			}
			return false
		}
	}
	s.eventually("the limits are in force", 2*time.Second, holds("read.rate", mb(read)))
	if h, _ := s.held("slow"); !strings.Contains(h.Missing, "weight, class and iops are not enforced") {
		t.Errorf("berth sync ls says of slow %+v", h)
	}
	seconds := 5
	if !testkit.Measures() && !emulated {
		seconds = 3
	}
	asked := func(mb int) float64 { return scaled(1e6 * float64(mb)) }
	check := func(what string, mb int) {
		t.Helper()
		within(t, what, s.moves("slow", what, "/mnt", seconds), asked(mb), 0.95)
	}
	check("reads", read)
	check("writes", write)
	if testkit.Measures() {
		both := make(chan float64)
		go func() { both <- s.moves("slow", "writes", "/media", seconds) }()
		reads, writes := s.moves("slow", "reads", "/mnt", seconds), <-both
		within(t, "at once reads", reads, asked(read), 0.9)
		within(t, "at once writes", writes, asked(write), 0.9)
	}
	// A rate that is raised is there at once, whatever the class did before.
	s.berth("set", "slow", "io.s.read.rate=2kB/s")
	s.eventually("the small rate is in force", time.Second, holds("read.rate", "2kB/s"))
	_ = exec.Command(s.dir+"/berth", "--root", s.root, "exec", "slow", "--", "timeout", "2", "head", "-c", "200000", "/mnt/hot").Run() // it does not end
	s.berth("set", "slow", "io.s.read.rate="+mb(read))
	s.eventually("the large rate is in force", time.Second, holds("read.rate", mb(read)))
	check("reads", read)
	// The qdiscs that hold the limits are removed; that is told, and repaired when the agent hears of a change.
	s.run("tc", "filter", "del", "dev", s.link, "ingress")
	if h, _ := s.held("slow"); !strings.Contains(h.Missing, "is gone") || len(h.Limits) == 0 || h.Limits[0].Holds {
		t.Errorf("without a filter, berth sync ls says %+v", h)
	}
	s.run("sh", "-c", "ip link set berth.$(cat /sys/class/net/$0/ifindex) down; ip link set $0 promisc on; ip link set $0 promisc off", s.link)
	s.eventually("the limits are whole again", 3*time.Second, holds("read.rate", mb(read)))
	if testkit.Measures() {
		check("writes", write)
	}
	if testkit.Measures() || emulated { // elsewhere that says nothing
		fast := s.moves("fast", "reads", "/mnt", 2)
		if t.Logf("fast reads %.0f MB/s", fast/1e6); fast < 50e6 && !emulated {
			t.Errorf("fast, without a limit, reads %.0f MB/s", fast/1e6)
		}
	}
	s.berth("set", "slow", "io.s.read.rate="+mb(raised))
	s.eventually("the new rate is in force", time.Second, holds("read.rate", mb(raised)))
	s.end(s.agent, syscall.SIGKILL)
	if testkit.Measures() {
		check("reads", raised)
	}
	s.start()
	check("reads", raised) // the new agent's programs find the classes of the old one
	// The interface is made anew. (Its nodes lose their cable; only the server's side is looked at.)
	s.run("sh", "-c", "ip link del $0; ip link add $0 type bridge; ip address add $1.1/24 dev $0; ip link set $0 up", s.link, s.net)
	s.eventually("the limits are on the new interface", 5*time.Second, holds("read.rate", mb(raised)))
	s.berth("rm", "--force", "slow")
	s.eventually("the classes are gone", 5*time.Second, func() bool {
		return !strings.Contains(s.run("sh", "-c", "tc class show dev $0; tc class show dev berth.$(cat /sys/class/net/$0/ifindex)", s.link), "htb be51:")
	})

	s.berth("rm", "--force", "fast")
	s.end(s.agent, syscall.SIGTERM)
	s.configure("")
	s.start()
	s.eventually("nothing is left on the interface", 5*time.Second, func() bool {
		left := s.run("tc", "qdisc", "show", "dev", s.link)
		return s.ifb() == "" && !strings.Contains(left, "htb") && !strings.Contains(left, "clsact")
	})

	// An interface that somebody else shapes is refused.
	s.run("tc", "qdisc", "add", "dev", s.link, "root", "handle", "7:", "pfifo")
	s.end(s.agent, syscall.SIGTERM)
	s.configure(fmt.Sprintf("filesystems: [{name: shared, path: %s, server: other, interface: %s}]\n", s.served, s.link))
	s.start()
	s.eventually("it is refused", 5*time.Second, func() bool { return strings.Contains(s.said.String(), "has a qdisc of somebody's at its root: pfifo") })
	if left := s.ifb(); left != "" {
		t.Errorf("%s is left", left)
	}
}

// ifb is the ifb of the server's interface; "" if there is none.
func (s *site) ifb() string {
	index, err := os.ReadFile("/sys/class/net/" + s.link + "/ifindex")
	testkit.Must(s.t, err)
	name := "/sys/class/net/berth." + strings.TrimSpace(string(index))
	if _, err := os.Stat(name); err != nil {
		return ""
	}
	return name
}
