package sync

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/site/intercept/preload"
	"berth/internal/site/iosync/place"
	"berth/internal/site/iosync/probe"
	"berth/test/built"
	"berth/test/testkit"
)

// fileServer is one with threads that serve many clients each, or with a process a client.
type fileServer struct {
	kind, user string
	port       int
	forks      bool // a process a client
	gate       bool // by way gate, which looks at servers in the host's own network
	instances  bool // by way instances
	network    bool // by way network, which looks at the interface between nodes and the host's own network: no disk, and no group
	alone      bool // its threads do not load the library
	programs   []string
	start      func(s *site) *exec.Cmd // without the library's variables
	// read is what a node runs to read a whole file cold, as words.
	read func(s *site, file string) []string
	// write is what it runs to write a file of its own into a folder.
	write   func(s *site, folder string) string
	commits bool // and has it made durable at the end, if the folder does not do so
}

// apart reports whether the server has a network namespace of its own.
func (p fileServer) apart() bool { return !p.gate && !p.network }

// preloads reports whether the server loads the library.
func (p fileServer) preloads() bool { return !p.forks && !p.alone }

var xrootd = fileServer{
	kind: "xrootd", user: "xrootd", port: 1094, programs: []string{"xrootd", "xrdcp"},
	// Few threads, which give a connection back after 1 s: they are handed from node to node.
	start: startXRootD("xrd.sched mint 2 maxt 3 avlt 1 idle 1\nxrd.timeout idle 5s read 1s\n"),
	read: func(s *site, file string) []string {
		return []string{"xrdcp", "--nopbar", "--force", "root://" + s.net + ".1:1094//" + file, "/dev/null"}
	},
	write: func(s *site, folder string) string {
		return "xrdcp --nopbar --force /tmp/own root://" + s.net + ".1:1094//" + folder + "/written"
	},
}

// startXRootD is XRootD with more lines of its file; without any it has as many threads as it has by itself.
func startXRootD(more string) func(s *site) *exec.Cmd {
	return func(s *site) *exec.Cmd {
		conf := s.write("xrootd.cf", fmt.Sprintf("all.export /\noss.localroot %s\nxrd.port 1094\nall.adminpath %[2]s/admin\nall.pidpath %[2]s/admin\n%[3]s", s.served, s.dir, more))
		own(s, "admin", "xrootd")
		// Not by its flag -R, which leaves it root's real uid: the kernel then lets only root move its threads.
		return exec.Command("setpriv", "--reuid", "xrootd", "--regid", "xrootd", "--init-groups", "xrootd", "-c", conf, "-n", "berth")
	}
}

var ganesha = fileServer{
	kind: "ganesha", user: "root", port: 2049, programs: []string{"ganesha.nfsd", "rpcbind", "nfs-cat", "nfs-cp"},
	start: func(s *site) *exec.Cmd {
		conf := s.write("ganesha.conf", fmt.Sprintf("NFS_CORE_PARAM { Protocols = 3, 4; NFS_Port = 2049; MNT_Port = 2050; Enable_UDP = false; Enable_NLM = false; Enable_RQUOTA = false; }\n"+
			"NFSv4 { RecoveryBackend = fs; RecoveryRoot = %s/admin; Graceless = true; Only_Numeric_Owners = true; }\n"+
			"NFS_KRB5 { Active_krb5 = false; }\n"+
			"EXPORT { Export_Id = 1; Path = %s; Pseudo = /data; Access_Type = RW; Squash = none; SecType = sys; Protocols = 3, 4; FSAL { Name = VFS; } }\n", s.dir, s.served))
		own(s, "admin", "root")
		// Version 3 takes an rpcbind, here one that has /run with the server for itself.
		pid := filepath.Join(s.dir, "admin", "rpcbind")
		s.t.Cleanup(func() {
			text, _ := os.ReadFile(pid)
			if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
				_ = syscall.Kill(n, syscall.SIGTERM)
			}
		})
		return exec.Command("unshare", "--mount", "sh", "-ec", `mount -t tmpfs none /run; LD_PRELOAD= rpcbind -f >/dev/null 2>&1 & echo $! > $0
until [ -S /run/rpcbind.sock ]; do sleep 0.02; done; exec "$@"`, pid, "ganesha.nfsd", "-F", "-f", conf, "-L", "/dev/stderr", "-p", s.dir+"/admin/pid", "-N", "WARN")
	},
	read: func(s *site, file string) []string {
		return []string{"sh", "-c", "nfs-cat 'nfs://" + s.net + ".1/data/" + file + "?version=4' > /dev/null"}
	},
	// By NFSv3: libnfs 4.0 cannot encode a write of NFSv4 that is larger than its buffer (4 KiB).
	write: func(s *site, folder string) string {
		return "nfs-cp /tmp/own 'nfs://" + s.net + ".1" + s.served + "/" + folder + "/written?version=3&nfsport=2049&mountport=2050'"
	},
	commits: true,
}

var samba = fileServer{
	kind: "samba", port: 445, forks: true, programs: []string{"smbd", "smbclient"},
	start: func(s *site) *exec.Cmd {
		return smbd(s, fmt.Sprintf("root preexec = %s/berth --root %s sync enter shared %%I %%d\nroot preexec close = yes\n", s.dir, s.root))
	},
	read: func(s *site, file string) []string {
		return []string{"smbclient", "-N", "-s", "/dev/null", "-E", "//" + s.net + ".1/data", "-c", "get " + file + " /dev/null"}
	},
	write: func(s *site, folder string) string {
		return "smbclient -N -s /dev/null -E //" + s.net + ".1/data -c 'put /tmp/own " + folder + "/written'"
	},
	commits: true, // by sync always
}

// smbd is Samba at the server's address, with more lines for the share.
func smbd(s *site, more string) *exec.Cmd {
	own(s, "admin", "root")
	conf := s.write("smb.conf", fmt.Sprintf("[global]\nserver role = standalone server\ndisable netbios = yes\nsmb ports = 445\nmap to guest = Bad User\n"+
		"interfaces = %[3]s.1/24\nbind interfaces only = yes\nguest account = root\nlog level = 0\nload printers = no\nprinting = bsd\nprintcap name = /dev/null\n"+
		"private dir = %[1]s\nlock directory = %[1]s\nstate directory = %[1]s\ncache directory = %[1]s\npid directory = %[1]s\nncalrpc dir = %[1]s/rpc\n"+
		"[data]\npath = %[2]s\nguest ok = yes\nread only = no\nsync always = yes\n%[4]s", s.dir+"/admin", s.served, s.net, more))
	return exec.Command("smbd", "--foreground", "--no-process-group", "--debug-stdout", "--configfile="+conf)
}

// write writes a file beside the programs.
func (s *site) write(name, text string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// own makes a folder of a user.
func own(s *site, name, of string) {
	s.t.Helper()
	u, err := user.Lookup(of)
	if err != nil {
		s.t.Fatal(err)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	dir := filepath.Join(s.dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Chown(dir, uid, gid); err != nil {
		s.t.Fatal(err)
	}
}

// serving starts a server in its network namespace at the address .1, and waits until it accepts connections.
func (s *site) serving(p fileServer) *exec.Cmd {
	s.t.Helper()
	c := p.start(s)
	if p.apart() {
		c.Args = append([]string{"nsenter", "--net=/run/netns/" + s.link, "--"}, c.Args...)
		c.Path, _ = exec.LookPath("nsenter")
	}
	if p.preloads() {
		c.Env = append(os.Environ(), "LD_PRELOAD="+filepath.Join(s.dir, preload.Library), "BERTH_SYNC_DIR="+place.Dir(s.layout, "shared"))
	}
	c.Stdout, c.Stderr = &s.said, &s.said
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // smbd ends its group with itself
	if err := c.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if c.ProcessState == nil {
			s.end(c, syscall.SIGTERM)
		}
	})
	s.eventually(p.kind+" answers", 20*time.Second, func() bool {
		text, _ := os.ReadFile("/proc/" + strconv.Itoa(c.Process.Pid) + "/net/tcp")
		six, _ := os.ReadFile("/proc/" + strconv.Itoa(c.Process.Pid) + "/net/tcp6")
		return strings.Contains(string(text)+string(six), fmt.Sprintf(":%04X ", p.port))
	})
	return c
}

// apart makes a network namespace for the server, with its address on the bridge.
func (s *site) apart() {
	s.t.Helper()
	ns, cable := s.link, "c"+s.link
	s.namespace(ns)
	s.run("ip", "address", "del", s.net+".1/24", "dev", s.link)
	s.run("ip", "link", "add", cable, "master", s.link, "up", "type", "veth", "peer", "name", "eth0", "netns", ns)
	s.run("ip", "-n", ns, "address", "add", s.net+".1/24", "dev", "eth0")
	s.run("ip", "-n", ns, "link", "set", "eth0", "up")
	s.run("ip", "-n", ns, "link", "set", "lo", "up")
}

// namespace makes a network namespace. At the end of the test it goes, and with it what ip netns makes for the first one of a host: a mount at /run/netns.
func (s *site) namespace(name string) {
	s.t.Helper()
	const all = "/run/netns"
	_, err := os.Stat(all)
	first := errors.Is(err, fs.ErrNotExist)
	s.run("ip", "netns", "add", name)
	s.t.Cleanup(func() {
		s.run("ip", "netns", "del", name)
		if first {
			if err := errors.Join(unix.Unmount(all, 0), os.Remove(all)); err != nil {
				s.t.Errorf("take %s away: %v", all, err)
			}
		}
	})
}

// TestMeasured runs the tests that stay in each run where their figures count: make test-measured.
func TestMeasured(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"sftp": TestSFTP, "xrootd": TestXRootD, "ganesha": TestGanesha, "samba": TestSamba, "network": TestNetwork, "instances": TestInstances,
		"split": TestSplit, "classes": TestClasses,
	} {
		t.Run(name, test)
	}
}

// TestXRootD and TestGanesha: threads of a pool serve a limited and a free node in turn; each byte is charged to the node that asked.
func TestXRootD(t *testing.T) { mostlyWaits(t); serves(t, xrootd, "198.51.102") }

// TestGanesha is the same with NFS-Ganesha.
func TestGanesha(t *testing.T) { serves(t, ganesha, "198.51.103") }

// TestSamba: a process a client, which berth sync enter moves before it serves.
func TestSamba(t *testing.T) { serves(t, samba, "198.51.104") }

// TestNetworkServes: what a server of another kind promises by way network is held by frames.
func TestNetworkServes(t *testing.T) {
	mostlyWaits(t)
	p := xrootd
	p.alone, p.network = true, true
	serves(t, p, "198.51.130")
}

// serves is what each way promises of a server, whichever kind it is: a node reads and writes at its rate, a node without a limit beside it
// does not feel that, connections of both may follow one another, all is charged to the node that asked (but for way network), and a node
// may go. It returns the site, in which the node fast is left.
func serves(t *testing.T, p fileServer, net string) (s *site, server *exec.Cmd) {
	t.Helper()
	needs(t, p.programs...)
	s = newSite(t, net)
	more := ""
	switch {
	case p.gate:
		more = fmt.Sprintf(", way: gate, port: %d", p.port)
	case p.instances:
		more = fmt.Sprintf(", way: instances, port: %d, user: %s%s", p.port, p.user, s.instancesIn("/run/netns/"+s.link))
	case p.network:
		more = ", way: network, interface: " + s.link
	case p.preloads():
		more = ", user: " + p.user
		testkit.Must(t, built.Preload(t.Context(), s.dir))
	}
	if p.apart() {
		s.apart()
	}
	s.configure(fmt.Sprintf("filesystems: [{name: shared, path: %s, server: %s%s}]\n", s.served, p.kind, more))
	s.start()
	sizes := map[string]int64{"slow": sized(80 << 20), "fast": large(), "short": 1 << 20}
	for name, size := range sizes {
		s.file(name, size)
	}
	if p.instances { // a node without an instance is refused; the site's server is there for others
		server = s.serving(p)
	}
	s.node("slow", 2, "io: [{name: s, filesystem: shared, read: {rate: "+mb(10)+"}}]\n")
	s.node("fast", 3, "io: [{name: s, filesystem: shared}]\n")
	s.eventually("the limit of slow is in force", time.Second, s.holding("slow", "read", mb(10)))
	if h, ok := s.held("slow"); !ok || strings.Contains(h.Missing, "no server has berth-sync.so loaded") != p.preloads() {
		t.Errorf("without a server, berth sync ls says %+v", h)
	}
	if p.instances {
		s.eventually("the instances of both listen", 10*time.Second, func() bool { return s.inForce("slow")() && s.inForce("fast")() })
	} else {
		server = s.serving(p)
	}
	read := func(node, file string) float64 { // bytes a second
		s.cold(file)
		return s.paced(node, "read", sizes[file], func() { s.berth(append([]string{"exec", node, "--"}, p.read(s, file)...)...) })
	}
	found := func() probe.Result { return probe.Result{} }
	if !p.network {
		found = s.audit("shared")
	}
	alone := 0.0
	if testkit.Measures() {
		alone = read("fast", "fast")
	}
	done := make(chan float64, 1)
	go func() { done <- read("slow", "slow") }()
	time.Sleep(time.Second) // slow is at its rate
	beside := read("fast", "fast")
	rate := <-done
	for range shorts { // short connections, of both in turn
		read("slow", "short")
		read("fast", "short")
	}
	holds(t, rate, "")
	neighbour(t, alone, beside)
	if own := clean(t, found(), "slow"); !p.network && own < sizes["slow"]+shorts*sizes["short"] { // more is read ahead
		t.Errorf("slow read %d bytes, the audit saw %d", sizes["slow"]+shorts*sizes["short"], own)
	}
	if h, ok := s.held("slow"); !ok || strings.Contains(h.Missing, "berth-sync.so") || strings.Contains(h.Missing, "threads") {
		t.Errorf("with a server, berth sync ls says %+v", h)
	}

	if p.write != nil {
		s.writes(p, found)
	}

	// Nodes go; the server and its threads go on.
	s.berth("rm", "--force", "slow")
	s.eventually("it is not held any more", 8*time.Second, func() bool {
		_, group := os.Stat(s.group("slow"))
		_, held := s.held("slow")
		return group != nil && !held
	})
	read("fast", "fast")
	if err := server.Process.Signal(syscall.Signal(0)); err != nil {
		t.Error(err)
	}
	clean(t, found(), "fast")
	return s, server
}

// holding says that berth sync ls shows a node's rate of reads or writes, read back from the kernel.
func (s *site) holding(node, does, rate string) func() bool {
	return func() bool {
		h, _ := s.held(node)
		for _, l := range h.Limits {
			if l.Key == "io.shared."+does+".rate" {
				return l.Holds && l.Asked == rate && l.ReadBack == rate
			}
		}
		return false
	}
}

// writes has the limited node write, into a folder in which each write waits for the disk, whichever client asks, and into one where that
// is left to client and server: durable writes keep the rate, and are charged to the node; writes that stay in the page cache are reported
// as held by nobody.
func (s *site) writes(p fileServer, found func() probe.Result) {
	s.t.Helper()
	size, most := int64(32<<20), scaled(8e6)
	if emulated || p.network {
		size = sized(size)
	}
	for _, folder := range []string{"durable", "plain"} {
		s.run("install", "-d", "-o", cmp.Or(p.user, "root"), filepath.Join(s.served, folder))
	}
	s.run("chattr", "+S", s.served+"/durable")
	s.berth("set", "slow", "io.s.write.rate="+mb(8))
	s.eventually("the limit of writes is in force", time.Second, s.holding("slow", "write", mb(8)))
	if h, ok := s.held("slow"); !ok || !emulated && !p.network && !strings.Contains(h.Missing, "cgroup v1 does not limit writes through the page cache") {
		s.t.Errorf("of buffered writes berth sync ls says %+v", h)
	}
	s.berth("exec", "slow", "--", "sh", "-c", fmt.Sprintf("head -c %d /dev/zero > /tmp/own", size))
	own := func() (bytes int64) {
		r := found()
		clean(s.t, r, "slow")
		for _, n := range r.Nodes {
			if n.Name == "slow" {
				bytes = n.Write.Own
			}
		}
		return bytes
	}
	for _, folder := range []string{"durable", "plain"} {
		s.run("sync", "-f", s.served) // what others wrote, as the kernel's lists of blocks
		write := func() { s.berth("exec", "slow", "--", "sh", "-ec", p.write(s, folder)) }
		if p.network { // as frames, whether they wait for the disk or not
			within(s.t, "writes "+folder, s.paced("slow", "write", size, write), most, 0.9)
			continue
		}
		before, rate := own(), s.writeRate()
		write()
		whole, got := rate()
		bytes := own() - before
		s.t.Logf("%s: slow wrote %d bytes in its group; the disk wrote %.2f MB/s", folder, bytes, got/1e6)
		switch {
		case folder == "plain" && !p.commits:
			if bytes > size/2 && !emulated { // on cgroup v2 the kernel charges what it writes back
				s.t.Errorf("slow wrote %d bytes in its group, which stay in the page cache", bytes)
			}
		case bytes < size || whole > 1.05*most:
			s.t.Errorf("%s: slow wrote %d of %d bytes in its group, at %.2f MB/s with the client's start; asked for %.1f", folder, bytes, size, whole/1e6, most/1e6)
		case emulated: // its disk is slow: metadata is written and waited for, too
			within(s.t, "writes", got, most, 0.8)
		case !testkit.Measures(): // between its writes it may be above the rate for a while
			if got < most/2 {
				s.t.Errorf("%s: slow wrote %.2f MB/s, asked for %.1f", folder, got/1e6, most/1e6)
			}
		case got < 0.95*most:
			s.t.Errorf("%s: slow wrote %.2f MB/s, asked for %.1f", folder, got/1e6, most/1e6)
		}
	}
}

// writeRate begins to look at the disk. The function that it returns says how many bytes a second it wrote until its last write, since now, and since its
// first write. Where a busy machine comes late, the latter may be above the rate for a while, because what was missed is caught up; the former never.
func (s *site) writeRate() (rate func() (whole, between float64)) {
	stop, ended := make(chan struct{}), make(chan struct{})
	began, before := time.Now(), s.diskDid(6)
	first, last := began, began
	atFirst, atLast := before, before
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
			now := s.diskDid(6)
			if now == atLast {
				continue
			}
			last = time.Now()
			if atLast == before {
				first, atFirst = last, now
			}
			atLast = now
		}
	}()
	return func() (whole, between float64) {
		close(stop)
		<-ended
		return float64(atLast-before) / max(last.Sub(began).Seconds(), 1e-3), float64(atLast-atFirst) / max(last.Sub(first).Seconds(), 1e-3)
	}
}
