package fault

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/image/imagetest"
	"berth/test/sample"
	"berth/test/testkit"
)

// node is a kind of node that the tests make.
type node struct {
	name string
	spec func(w *world) string // makes what the node needs, and returns its spec
}

// Together these nodes need every kind of step.
var (
	onHost = node{"host", func(w *world) string {
		return `
name: f1
image: host
command: [/bin/sleep, infinity]
cpu: {max: 1.5}
memory: {max: 64MiB}
pids: 50
network: [{mode: bridge, address: [10.9.8.1/24]}]
mounts: [{source: ` + w.dir + `/data, target: /data}]
`
	}}
	imported = node{"overlay", func(w *world) string {
		w.ok("image", "import", imagetest.Busybox(w.T), "bb")
		return `
name: f1
image: oci:bb
command: [/bin/sleep, infinity]
memory: {max: 64MiB}
network: [{mode: bridge}]
`
	}}
	folder = node{"dir", func(w *world) string {
		secrets := w.file("secrets", "TOKEN=x\n")
		testkit.Must(w, os.Chmod(secrets, 0o600))
		testkit.Must(w, os.WriteFile(w.l.UsersList(), []byte("allow: [{from: 1500, count: 1}]\n"), 0o644))
		return `
name: f1
image: dir:` + imagetest.BusyboxDir(w.T) + `
command: [/bin/sleep, infinity]
user: daemon
users: [{from: 1500, count: 1, as: same}, {from: 70000, count: 1, as: private}]
env: {A: "1"}
env_from: ` + secrets + `
workdir: /tmp
labels: {a: b}
stop: {signal: QUIT, grace: 1s}
tmpfs: [{target: /scratch, size: 1MiB}]
sysctls: {net.core.somaxconn: 77, kernel.shmmax: 1048576}
no_new_privileges: false
delta: {in: memory, size: 16MiB}
network: [{mode: none}]
`
	}}
	volumes = node{"scratch", func(w *world) string {
		testkit.Must(w, os.Mkdir(w.root+"/pool", 0o755))
		w.ok("pool", "add", "default", "--dir", w.root+"/pool")
		return `
name: f1
image: host
command: [/bin/sleep, infinity]
network: [{mode: none}]
scratch: [{target: /tmp, size: 16MiB}, {target: /x, size: 16MiB}]
`
	}}
	lent = node{"phys", func(w *world) string {
		w.adapter("lent0")
		return `
name: f1
image: host
command: [/bin/sleep, infinity]
network: [{name: data0, mode: phys, parent: lent0, mac: "02:00:5e:10:00:99", mtu: 1300, address: [192.0.2.77/24]}]
`
	}}
	shared = node{"macvlan", func(w *world) string {
		w.adapter("eth9")
		l, err := w.h.LinkByName("eth9")
		testkit.Must(w, err)
		queue := netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)}
		testkit.Must(w, w.h.QdiscReplace(&netlink.GenericQdisc{QdiscAttrs: queue, QdiscType: "pfifo_fast"}))
		return `
name: f1
image: host
class: batch
command: [/bin/sleep, infinity]
rlimits: {nofile: 2000}
network: [{mode: macvlan, parent: eth9, address: [192.0.2.78/24], priority: low}]
`
	}}
)

// adapter makes a link that stands for a real adapter, with settings that must survive being lent to a node.
func (w *world) adapter(name string) {
	w.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, 1400
	attrs.HardwareAddr = net.HardwareAddr{2, 0, 0x5e, 0x10, 0, 1}
	if err := w.h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "wire"}); err != nil {
		w.Skipf("no veth in this kernel: %v", err)
	}
	l, err := w.h.LinkByName(name)
	testkit.Must(w, err)
	testkit.Must(w, w.h.LinkAddAltName(l, "an-alternative-name"))
	for _, a := range []string{"192.0.2.5/24", "2001:db8::5/64"} {
		addr, err := netlink.ParseAddr(a)
		testkit.Must(w, err)
		if addr.IP.To4() == nil {
			addr.Flags = unix.IFA_F_NODAD
		}
		testkit.Must(w, w.h.AddrAdd(l, addr))
	}
	testkit.Must(w, w.h.LinkSetUp(l))
	wire, err := w.h.LinkByName("wire")
	testkit.Must(w, err)
	testkit.Must(w, w.h.LinkSetUp(wire))
}

// scene is a world with one node, and a snapshot of the host for each state of the node.
type scene struct {
	*world
	spec   string
	states map[string]snapshot
}

func newScene(t *testing.T, n node) *scene {
	t.Helper()
	return newWorld(t).scene(n)
}

// scene runs the node once and takes the snapshots.
func (w *world) scene(n node) *scene {
	w.Helper()
	s := &scene{world: w}
	text := n.spec(w)
	s.spec = w.file("f1.yaml", text)
	s.ok("apply", "-f", s.spec)
	testkit.Happens(func() bool { // between exec and its first instruction a process has no command line
		return !slices.ContainsFunc(w.processLines(), func(l string) bool { // and the keeper may have other files of a node than its log open for a moment
			return l == "process " || strings.HasPrefix(l, "keeper holds "+w.l.RunNodes()) && !strings.HasSuffix(l, "/log")
		})
	})
	up := w.snapshot()
	s.ok("stop", "--grace", "0s", "f1")
	down := w.snapshot()
	s.ok("rm", "f1")
	s.states = map[string]snapshot{"none": w.snapshot(), "up": up, "down": down}
	return s
}

// steps calls f with the fault points of a command, those of 1, 2, 3 … that this run takes, until f reports that the command
// was not killed at that point.
func (s *scene) steps(f func(n int) (killed bool)) {
	s.Helper()
	s.walk(sample.Of(s), f)
}

// walk is steps with the points of a walk.
func (s *scene) walk(w sample.Walk, f func(n int) (killed bool)) {
	s.Helper()
	n, stride := w.Points(1)
	began, points := time.Now(), 0
	for ; f(n); n += stride {
		points++
		if n > 1000 {
			s.Fatal("1000 fault points and no end")
		}
	}
	s.Logf("%d of about %d points in %v", points, n-1, time.Since(began).Round(time.Second))
}

// point runs berth and kills it at a fault point, by number or name. killed is false if berth ended by itself; its exit code must be 0 then.
func (s *scene) point(at any, args ...string) (what string, killed bool) {
	s.Helper()
	_ = os.Remove(s.faults())
	r := s.begin([]string{fmt.Sprint("BERTH_FAULT=", at), "BERTH_FAULT_LOG=" + s.faults()}, args...).wait()
	passed := s.points()
	what = fmt.Sprintf("berth %s killed at %s", strings.Join(args, " "), passed[len(passed)-1])
	if !r.killed && r.code != 0 {
		s.Fatalf("%s: exit %d: %s", what, r.code, r)
	}
	return what, r.killed
}

func (s *scene) faults() string { return s.dir + "/faults" }

// points returns the fault points that the last command passed: number and name.
func (s *scene) points() []string {
	text, _ := os.ReadFile(s.faults())
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// repaired runs berth repair and checks that the host is in one of the allowed states.
func (s *scene) repaired(what string, allowed ...string) (state, said string) {
	s.Helper()
	r := s.berth("repair")
	if r.code != 0 {
		s.Fatalf("%s: repair: exit %d: %s", what, r.code, r)
	}
	state = s.settled(what+"\nrepair: "+r.String(), s.states, allowed...)
	if state == "up" {
		s.watched(what)
	}
	return state, r.out
}

// watched checks that a keeper watches the node: it kills the node's init, and with no command the exit status is recorded
// and everything lent is back on the host.
func (s *scene) watched(what string) {
	s.Helper()
	st := s.status("f1")
	if st.State != "running" {
		s.Fatalf("%s: the node is %+v", what, st)
	}
	testkit.Must(s, unix.Kill(st.PID, unix.SIGKILL))
	s.settled(what+"\nthe init of the node that stayed was killed", s.states, "down")
	if st = s.status("f1"); st.State != "exited" || st.Exit == nil || st.Exit.Unknown && s.tells() || !st.Exit.Unknown && st.Exit.Signal != "SIGKILL" {
		s.Errorf("%s: after its init was killed the node is %+v, exit %+v", what, st, st.Exit)
	}
}

// works checks that apply and rm work, and leaves no node.
func (s *scene) works(what string) {
	s.Helper()
	for _, args := range [][]string{{"apply", "-f", s.spec}, {"rm", "--force", "f1"}} {
		if r := s.berth(args...); r.code != 0 {
			s.Fatalf("%s: then %v: exit %d: %s", what, args, r.code, r)
		}
		if args[0] == "apply" {
			s.settled(what+"\nthen apply", s.states, "up")
		}
	}
	s.settled(what+"\nthen apply and rm", s.states, "none")
}

// tells reports whether the kernel gives the exit status of a process that is not the keeper's child (since Linux 6.15).
func (w *world) tells() bool {
	var u unix.Utsname
	testkit.Must(w, unix.Uname(&u))
	var major, minor int
	_, _ = fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	return major > 6 || major == 6 && minor >= 15
}

// each calls f for each node in its own world; with -short only for the first node.
func each(t *testing.T, nodes []node, f func(s *scene)) {
	t.Parallel()
	if testing.Short() {
		nodes = nodes[:1]
	}
	for _, n := range nodes {
		t.Run(n.name, func(t *testing.T) { f(newScene(t, n)) })
	}
}

func TestApplyKilledAtEachStep(t *testing.T) {
	each(t, []node{onHost, imported, folder, volumes, lent, shared}, func(s *scene) {
		s.steps(func(n int) bool {
			what, killed := s.point(n, "apply", "-f", s.spec)
			if killed {
				s.repaired(what, "none", "up")
			}
			s.works(what)
			return killed
		})
	})
}

func TestRmKilledAtEachStep(t *testing.T) {
	each(t, []node{onHost, imported, volumes, lent, shared}, func(s *scene) {
		s.steps(func(n int) bool {
			s.ok("apply", "-f", s.spec)
			what, killed := s.point(n, "rm", "--force", "f1")
			if killed {
				s.repaired(what, "none", "up")
			}
			s.works(what)
			return killed
		})
	})
}
