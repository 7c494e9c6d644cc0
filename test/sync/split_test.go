package sync

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/internal/site/certs"
	"berth/internal/site/store/storetest"
	"berth/test/built"
	"berth/test/testkit"
)

// together makes hosts one site: an etcd, certificates, and agents that reach each other over TLS.
func together(t *testing.T, hosts ...*site) *storetest.Process {
	t.Helper()
	program := filepath.Join(hosts[0].dir, "etcd")
	testkit.Must(t, built.Etcd(t.Context(), filepath.Dir(program)))
	etcd, endpoint := storetest.Etcd(t, program)
	t.Cleanup(func() { // while etcd is there
		for _, s := range hosts {
			s.leave()
		}
	})
	certify(t, hosts...)
	for _, s := range hosts {
		s.conf += fmt.Sprintf("store: {endpoints: [%q]}\n", endpoint)
		s.configure(strings.Replace(shared, "%s", s.served, 1))
	}
	return etcd
}

// certify gives hosts names, addresses and certificates.
func certify(t *testing.T, hosts ...*site) {
	t.Helper()
	signer, err := certs.Init(filepath.Join(hosts[0].dir, "ca"))
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range hosts {
		if s.name = string(rune('a' + i)); i > 25 {
			s.name = fmt.Sprint("h", i)
		}
		// On an address that others use, a port that is free now may not be so in a moment.
		own := cmp.Or(s.at, fmt.Sprintf("127.7.%d.%d", i/250, 1+i%250))
		b, err := signer.IssueHost(t.Context(), s.name, []string{own})
		if err == nil {
			err = certs.Install(s.layout.Etc("certs"), b)
		}
		if err != nil {
			t.Fatal(err)
		}
		at := own + ":7611"
		if s.at == "" {
			free, err := net.Listen("tcp", own+":0")
			testkit.Must(t, err)
			at = free.Addr().String()
			free.Close()
		}
		s.conf = fmt.Sprintf("site: t\naddress: %q\nlisten: [%q]\n", at, at)
	}
}

// reader reads a file in a node again and again, past the page cache of the server, until the test ends it.
func (s *site) reader(node, folder string, on *site, file string) (end func()) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			on.cold(file)
			c := exec.CommandContext(ctx, s.dir+"/berth", "--root", s.root, "exec", node, "--", "dd", "if="+folder+"/"+file, "of=/dev/null", "bs=256k")
			c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
			_ = c.Run() // it is ended
		}
	}()
	return func() { stop(); <-done }
}

// rates measures for some seconds what is read from the disks of hosts, in MB/s.
func rates(d time.Duration, hosts ...*site) (each []float64, sum float64) {
	before := make([]uint64, len(hosts))
	for i, s := range hosts {
		before[i] = s.diskReads()
	}
	began := time.Now()
	time.Sleep(d)
	for i, s := range hosts {
		each = append(each, float64(s.diskReads()-before[i])/time.Since(began).Seconds()/1e6)
		sum += each[i]
	}
	return each, sum
}

// since begins to measure what is read from the disks of hosts. The function that it returns says how much that was a second until now, in
// MB/s: what a busy machine misses is caught up later, so it is never above a limit, though it may be so in a window.
func since(hosts ...*site) (rate func() float64) {
	all := func() (sum uint64) {
		for _, s := range hosts {
			sum += s.diskReads()
		}
		return sum
	}
	began, before := time.Now(), all()
	return func() float64 { return float64(all()-before) / time.Since(began).Seconds() / 1e6 }
}

// watch looks at what two servers enforce for a node until the function that it returns is called, which says the most of both together.
func watch(a, b *site, node string) (most func() uint64) {
	stop, done := make(chan struct{}), make(chan uint64)
	go func() {
		largest := uint64(0)
		for {
			a1, b1 := a.limit(node), b.limit(node)
			a2, b2 := a.limit(node), b.limit(node) // one may be lowered and the other raised between two looks
			largest = max(largest, min(a1, a2)+min(b1, b2))
			select {
			case <-stop:
				done <- largest
				return
			case <-time.After(3 * time.Millisecond):
			}
		}
	}()
	return func() uint64 { close(stop); return <-done }
}

// TestSplit: a node's rate on all file servers together is where its load goes, and never above; also after it moved, and after the
// host that splits it was killed.
func TestSplit(t *testing.T) {
	a, b := newSite(t, "198.51.105"), newSite(t, "198.51.106")
	if err := built.Agent(t.Context(), a.dir); err != nil {
		t.Fatal(err)
	}
	etcd := together(t, a, b)
	a.start()
	a.eventually("host a takes the office", 10*time.Second, func() bool { return strings.Contains(a.said.String(), "this host splits the allowances") })
	b.start()
	for _, s := range []*site{a, b} {
		s.file("data", 900<<20) // more than is read of it
	}
	a.serveAt(a.net, "7022")
	b.serveAt(a.net, "7023")
	mount := func(target, port string) string {
		return fmt.Sprintf("{source: '%s.1:/', target: %s, gateway: sshfs-direct, options: {port: %q}}", a.net, target, port)
	}
	a.node("n", 2, "mounts: ["+mount("/mnt/a", "7022")+", "+mount("/mnt/b", "7023")+"]\nio: [{name: s, filesystem: shared, read: {rate: 20MB/s}}]\n")
	a.eventually("both servers hold half", 5*time.Second, func() bool { return a.limit("n") == asked && b.limit("n") == asked })

	over, whole := watch(a, b, "n"), since(a, b)
	holds := func(what string, want ...float64) {
		t.Helper()
		if !testkit.Measures() { // where the load is, there the allowance is
			for i, w := range want {
				s := []*site{a, b}[i]
				s.eventually(what+": the parts", 0, func() bool { n := float64(s.limit("n")) / 1e6; return n >= 0.85*w && (w == 0 || n <= 1.15*w) })
			}
		}
		each, sum := rates(5*time.Second, a, b)
		t.Logf("%s: %.1f and %.1f MB/s from the disks, %.1f since the begin", what, each[0], each[1], whole())
		if all := whole(); all > 1.05*20 {
			t.Errorf("%s: %.1f MB/s in all since the begin, asked for 20", what, all)
		}
		if !testkit.Measures() {
			if sum < 20/2 {
				t.Errorf("%s: %.1f MB/s in all, asked for 20", what, sum)
			}
			return
		}
		if sum < 0.95*20 || sum > 1.05*20 {
			t.Errorf("%s: %.1f MB/s in all, asked for 20", what, sum)
		}
		for i, w := range want {
			if each[i] < w-2 || each[i] > w+2 {
				t.Errorf("%s: %.1f MB/s from server %d, want %.1f", what, each[i], i, w)
			}
		}
	}
	onA := a.reader("n", "/mnt/a", a, "data")
	time.Sleep(3 * time.Second)
	holds("all from a", 19.6, 0)
	onB := a.reader("n", "/mnt/b", b, "data")
	time.Sleep(3 * time.Second)
	holds("from both", 10, 10)
	onA()
	time.Sleep(3 * time.Second)
	holds("all from b", 0, 19.6)

	// The host with the office dies without a word: nothing is above what is allowed; it is back, and splits again.
	a.end(a.agent, syscall.SIGKILL)
	each, sum := rates(3*time.Second, a, b)
	t.Logf("without the allocator: %.1f and %.1f MB/s", each[0], each[1])
	if testkit.Measures() && sum > 1.05*20 || whole() > 1.05*20 {
		t.Errorf("without the allocator %.1f MB/s in all, asked for 20", sum)
	}
	a.start()
	time.Sleep(5 * time.Second)
	holds("with the allocator again", 0, 19.6)
	// Without the cluster state the office goes on.
	back := etcd.Away(t)
	time.Sleep(time.Second)
	holds("without the cluster state", 0, 19.6)
	back()
	// The host with the office hears nobody and answers nobody: after 5 s no server has more than its part, and says so.
	testkit.Must(t, a.agent.Process.Signal(syscall.SIGSTOP))
	a.eventually("the other server lowers what it gives", 8*time.Second, func() bool { return b.limit("n") <= asked })
	a.eventually("the other server says that the allocator is not heard of", time.Second, func() bool { return strings.Contains(b.said.String(), "the allocator is not heard of") })
	testkit.Must(t, a.agent.Process.Signal(syscall.SIGCONT))
	time.Sleep(3 * time.Second)
	holds("when it is back", 0, 19.6)
	if most := over(); most > 2*asked+2 {
		t.Errorf("at some moment both servers allowed %d bytes a second together", most)
	}
	a.berth("set", "n", "io.s.read.rate=10MB/s")
	a.eventually("the new rate is in force on both", time.Second, func() bool { return a.limit("n")+b.limit("n") <= asked })
	onB()
	a.berth("rm", "--force", "n")
	a.eventually("the groups are gone", 5*time.Second, func() bool {
		_, first := os.Stat(a.group("n"))
		_, second := os.Stat(b.group("n"))
		return first != nil && second != nil
	})
}
