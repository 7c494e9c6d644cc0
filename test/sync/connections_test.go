package sync

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/bench/stat"
	"berth/internal/site/intercept/preload"
	"berth/internal/site/iosync/place"
	"berth/test/built"
	"berth/test/testkit"
)

var (
	connectionPairs  = flag.Int("connection-pairs", 6, "TestConnections: rounds with and without the library")
	connectionWindow = flag.Duration("connection-window", 3*time.Second, "how long the server is looked at in each")
	connectionJSON   = flag.String("connection-json", "", "file for the result")
)

// cpu is the CPU time that a process has used.
func (s *site) cpu(pid int) time.Duration {
	s.t.Helper()
	const scheduled = 2 // include/linux/posix-timers_types.h: CPUCLOCK_SCHED, of all threads, also those that have ended
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &used); err != nil {
		s.t.Fatalf("read the CPU time of process %d: %v", pid, err)
	}
	return time.Duration(used.Nano())
}

// reads is a program that has connections to servers of XRootD, a file open over each, and reads from them in turn, so often a second
// as its input says: PORT SECONDS TIMES.
const reads = `
import random, socket, struct, sys, time
address, ports, most, size = sys.argv[1], [int(p) for p in sys.argv[2].split(",")], int(sys.argv[3]), int(sys.argv[4])
def take(c, n):
    b = b""
    while len(b) < n:
        more = c.recv(n - len(b))
        assert more, "the server closed a connection"
        b += more
    return b
def answer(c):
    _, status, n = struct.unpack(">HHi", take(c, 8))
    b = take(c, n)
    assert status in (0, 4000), (status, b)
    return b if status == 0 else b + answer(c)
def connect(port):
    c = socket.create_connection((address, port))
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    c.sendall(struct.pack(">iiiii", 0, 0, 0, 4, 2012))
    take(c, 16)
    c.sendall(struct.pack(">HHi8sBBBBi", 1, 3007, 1, b"reader", 0, 0, 3, 0, 0))
    answer(c)
    c.sendall(struct.pack(">HHHH12si", 1, 3010, 0, 16, b"", 6) + b"/short")
    return c, answer(c)[:4]
all = {p: [connect(p) for _ in range(most)] for p in ports}
print("open", flush=True)
for line in sys.stdin:
    port, seconds, times = line.split()
    began, done = time.monotonic(), 0
    while (now := time.monotonic()) - began < float(seconds):
        due = began + done / float(times)
        if due > now:
            time.sleep(min(due - now, 0.1))
            continue
        c, handle = all[int(port)][done % most]
        c.sendall(struct.pack(">HH4sqii", 1, 3013, handle, random.randrange(size // 4096) * 4096, 4096, 0))
        assert len(answer(c)) == 4096
        done += 1
    print(done, flush=True)
`

// load is such a program in a node.
type load struct {
	ask io.WriteCloser
	say *bufio.Scanner
}

func (s *site) load(node string, ports string, connections, size int) *load {
	s.t.Helper()
	c := exec.Command(s.dir+"/berth", "--root", s.root, "exec", node, "--", "python3", "-c", reads, s.net+".1", ports, fmt.Sprint(connections), fmt.Sprint(size))
	in, err := c.StdinPipe()
	testkit.Must(s.t, err)
	out, err := c.StdoutPipe()
	testkit.Must(s.t, err)
	c.Stderr = &s.said
	testkit.Must(s.t, c.Start())
	s.t.Cleanup(func() { _ = in.Close(); _ = c.Wait() })
	return &load{in, bufio.NewScanner(out)}
}

// line is the next line that a client says.
func (c *load) line(t *testing.T) string {
	t.Helper()
	if !c.say.Scan() {
		t.Fatal("a client ended")
	}
	return c.say.Text()
}

// connectionsResult is what TestConnections measured. CPU is in percent of one CPU.
type connectionsResult struct {
	Nodes       int                `json:"nodes"`
	Connections int                `json:"connections"`
	Requests    int                `json:"requests_a_second"`
	Window      float64            `json:"window"`
	Rounds      []connectionsRound `json:"rounds"`
	Cost        [3]float64         `json:"cost"` // estimate, and its 95 % interval
	Null        [3]float64         `json:"without_again"`
	OfServer    [3]float64         `json:"cost_of_server"` // in percent of what the server uses without the library
	Agent       float64            `json:"agent"`
	Moved       float64            `json:"threads_moved_a_request"`
}

type connectionsRound struct {
	With    float64 `json:"with"`
	Without float64 `json:"without"`
	Again   float64 `json:"again"`
	Served  [3]int  `json:"served"`
}

// TestConnections: a thousand connections from many nodes, which read a thousand times a second all together, cost the server
// less than a hundredth of a CPU more than without the library; the agent uses less than that; at rest neither does. They do not keep a
// limit from being changed at once, again and again.
func TestConnections(t *testing.T) {
	needs(t, append(xrootd.programs, "python3")...)
	s := newSite(t, "198.51.113")
	testkit.Must(t, built.Preload(t.Context(), s.dir))
	s.configure(fmt.Sprintf("filesystems: [{name: shared, path: %s, server: xrootd, user: xrootd}]\n", s.served))
	s.start()
	const size, nodes, most, second = 16 << 20, 10, 1000, 1000
	path := s.file("short", size)
	s.apart()
	ports, servers := map[bool]int{true: 1094, false: 1095}, map[bool]int{}
	for with, port := range ports {
		p := xrootd
		p.port, p.alone = port, !with
		p.start = func(s *site) *exec.Cmd { // with as many threads as it has by itself
			admin := fmt.Sprint("admin", port)
			own(s, admin, "xrootd")
			conf := s.write(admin+".cf", fmt.Sprintf("all.export /\noss.localroot %s\nxrd.port %d\nall.adminpath %[3]s\nall.pidpath %[3]s\n", s.served, port, filepath.Join(s.dir, admin)))
			return exec.Command("setpriv", "--reuid", "xrootd", "--regid", "xrootd", "--init-groups", "xrootd", "-c", conf, "-n", admin)
		}
		servers[with] = s.serving(p).Process.Pid
	}
	var clients []*load
	for i := range nodes {
		name := fmt.Sprint("n", i)
		s.node(name, 2+i, "io: [{name: s, filesystem: shared, read: {rate: 10MB/s}}]\n")
		clients = append(clients, s.load(name, "1094,1095", most/nodes, size))
	}
	for i, c := range clients {
		if said := c.line(t); said != "open" {
			t.Fatalf("client %d: %s", i, said)
		}
	}
	if _, err := os.ReadFile(path); err != nil { // from here on it is in memory
		t.Fatal(err)
	}
	const rest = 5 * time.Second
	before := []time.Duration{s.cpu(servers[true]), s.cpu(s.agent.Process.Pid)}
	time.Sleep(rest)
	for i, what := range []string{"the server", "the agent"} {
		used := s.cpu([]int{servers[true], s.agent.Process.Pid}[i]) - before[i]
		t.Logf("%s used %v of CPU in %v, with %d connections at rest", what, used, rest, most)
		if testkit.Measures() && used > rest/100 {
			t.Errorf("%s used %v of CPU in %v", what, used, rest)
		}
	}
	r := connectionsResult{Nodes: nodes, Connections: most, Requests: second, Window: connectionWindow.Seconds()}
	// works has all clients read for a while, and returns what the server used of a CPU, in percent.
	works := func(with bool, d time.Duration) (percent float64, served int) {
		begun, used := time.Now(), s.cpu(servers[with])
		for _, c := range clients {
			_, err := fmt.Fprintln(c.ask, ports[with], d.Seconds(), second/nodes)
			testkit.Must(t, err)
		}
		for _, c := range clients {
			n, err := strconv.Atoi(c.line(t))
			testkit.Must(t, err)
			served += n
		}
		return 100 * (s.cpu(servers[with]) - used).Seconds() / time.Since(begun).Seconds(), served
	}
	dice := rand.New(rand.NewPCG(20261126, 2))
	moved, sum := s.moved(servers[true]), 0
	agent, began := s.cpu(s.agent.Process.Pid), time.Now()
	var cost, null, ratio []float64
	for i := range *connectionPairs + 1 {
		var one connectionsRound
		arms := []func(){
			func() { one.With, one.Served[0] = works(true, *connectionWindow) },
			func() { one.Without, one.Served[1] = works(false, *connectionWindow) },
			func() { one.Again, one.Served[2] = works(false, *connectionWindow) },
		}
		dice.Shuffle(len(arms), func(i, j int) { arms[i], arms[j] = arms[j], arms[i] })
		for _, arm := range arms {
			arm()
		}
		for _, n := range one.Served {
			if want := connectionWindow.Seconds() * second; float64(n) < 0.8*want {
				t.Logf("the clients read %d times in a window, want %.0f", n, want)
			}
		}
		sum += one.Served[0]
		if i > 0 { // the first one warms up
			r.Rounds = append(r.Rounds, one)
			cost, null = append(cost, one.With-one.Without), append(null, one.Again-one.Without)
			ratio = append(ratio, 100*(one.With/one.Without-1))
		}
	}
	r.Agent = 100 * (s.cpu(s.agent.Process.Pid) - agent).Seconds() / time.Since(began).Seconds()
	times := s.moved(servers[true]) - moved
	r.Moved = float64(times) / float64(sum)
	r.Cost, r.Null, r.OfServer = interval(cost), interval(null), interval(ratio)
	text, err := json.MarshalIndent(r, "", "  ")
	testkit.Must(t, err)
	if *connectionJSON != "" {
		testkit.Must(t, os.WriteFile(*connectionJSON, append(text, '\n'), 0o644))
	}
	t.Logf("the library costs %.2f %% of a CPU (95 %%: %.2f to %.2f), %.1f %% of what the server uses (%.1f to %.1f); without it, again: %+.2f (%.2f to %.2f); %.2f moves a request",
		r.Cost[0], r.Cost[1], r.Cost[2], r.OfServer[0], r.OfServer[1], r.OfServer[2], r.Null[0], r.Null[1], r.Null[2], r.Moved)
	t.Logf("the agent used %.2f %% of a CPU", r.Agent)
	if testkit.Measures() && r.Cost[1] > 1 {
		t.Errorf("the library costs %.2f to %.2f %% of a CPU", r.Cost[1], r.Cost[2])
	}
	if testkit.Measures() && r.Agent > 1 {
		t.Errorf("the agent used %.2f %% of a CPU", r.Agent)
	}
	if times < uint64(100*(*connectionPairs+1)) {
		t.Errorf("threads of the server went into other groups %d times: what is measured is not there", times)
	}
	s.setsBeside(clients, ports[true], second/nodes)
}

// setsBeside changes a node's rate again and again while connections work.
func (s *site) setsBeside(clients []*load, port, times int) {
	s.t.Helper()
	const seconds, sets = 8, 100
	for _, c := range clients {
		_, err := fmt.Fprintln(c.ask, port, seconds, times)
		testkit.Must(s.t, err)
	}
	var slowest time.Duration
	for i := range sets {
		rate := uint64(11_000+i) * 1000
		s.berth("set", "n0", fmt.Sprintf("io.s.read.rate=%dkB/s", rate/1000))
		slowest = max(slowest, s.eventually("the new rate is in force", time.Second, func() bool { return s.limit("n0") == rate }))
	}
	s.t.Logf("%d changes were in force at most %v after berth set had ended, beside that load", sets, slowest)
	for _, c := range clients {
		c.line(s.t)
	}
}

// moved is how often threads of a server that has the library went into groups.
func (s *site) moved(pid int) uint64 {
	s.t.Helper()
	all, err := preload.Servers(place.Dir(s.layout, "shared"))
	testkit.Must(s.t, err)
	for _, one := range all {
		if one.PID == pid {
			return one.Moved
		}
	}
	s.t.Fatalf("process %d does not have the library", pid)
	return 0
}

// interval is an estimate and its interval of 95 %.
func interval(d []float64) [3]float64 {
	e := stat.NewEstimate(d)
	if e.I95 == nil {
		return [3]float64{e.Center, math.Inf(-1), math.Inf(1)}
	}
	return [3]float64{e.Center, e.I95.Lo, e.I95.Hi}
}
