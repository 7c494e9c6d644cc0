package portblock

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// group makes a group of cgroup v2 for a test.
func group(t *testing.T) string {
	t.Helper()
	testkit.NeedsRoot(t)
	for _, top := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var s unix.Statfs_t
		if unix.Statfs(top, &s) != nil || s.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		dir := filepath.Join(top, fmt.Sprintf("berth-fence-%d", os.Getpid()))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			// The last process leaves its group a moment after it was waited for.
			if !testkit.Happens(func() bool { err := os.Remove(dir); return err == nil || errors.Is(err, os.ErrNotExist) }) {
				t.Errorf("%s is left", dir)
			}
		})
		return dir
	}
	t.Skip("this host has no cgroup v2")
	return ""
}

// ask is a program that tries to reach an address by a protocol, from a new network namespace with loopback; it prints what
// came of it.
const ask = `
import socket, sys
kind = socket.SOCK_STREAM if sys.argv[1] == "tcp" else socket.SOCK_DGRAM
family = socket.AF_INET6 if ":" in sys.argv[2] else socket.AF_INET
to = (sys.argv[2], int(sys.argv[3]))
listen = socket.socket(family, kind)
listen.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listen.bind(to)
if kind == socket.SOCK_STREAM: listen.listen()
s = socket.socket(family, kind)
if sys.argv[4] != "0": s.setsockopt(socket.SOL_SOCKET, 36, int(sys.argv[4]))
s.settimeout(1)
listen.settimeout(1)
try:
    s.connect(to)
    s.send(b"x")
    if kind == socket.SOCK_DGRAM: listen.recv(1)
    print("through")
except OSError:
    print("stopped")
`

func TestFence(t *testing.T) {
	dir := group(t)
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3")
	}
	p := &Ports{Group: dir, Rule: Rule{Ports: []uint16{2049, 20490}}}
	if err := p.Verify(t.Context()); err == nil {
		t.Error("a fence is found that was not put up")
	}
	for range 2 { // Do is repeated after a kill
		if err := errors.Join(p.Do(t.Context()), p.Verify(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	one := &Ports{Group: dir, Rule: Rule{Ports: []uint16{22}, Servers: []netip.Addr{netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("::1")}}}
	if err := errors.Join(one.Do(t.Context()), one.Verify(t.Context()), p.Verify(t.Context())); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	for _, c := range []struct {
		protocol, host string
		port, mark     int
		want           string
	}{
		{"tcp", "127.0.0.1", 2049, 0, "stopped"},
		{"udp", "127.0.0.1", 2049, 0, "stopped"},
		{"tcp", "::1", 2049, 0, "stopped"},
		{"udp", "::1", 20490, 0, "stopped"},
		{"tcp", "127.0.0.1", 2050, 0, "through"},
		{"udp", "::1", 2050, 0, "through"},
		{"tcp", "127.0.0.1", 2049, Mark, "through"},
		{"tcp", "127.0.0.2", 22, 0, "stopped"},
		{"tcp", "127.0.0.1", 22, 0, "through"},
		{"udp", "::1", 22, 0, "stopped"},
	} {
		t.Run(fmt.Sprintf("%s %s %d mark %d", c.protocol, c.host, c.port, c.mark), func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command("/bin/sh", "-ec", `ip link set lo up; exec "$@"`, "sh", python, "-c", ask, c.protocol, c.host, fmt.Sprint(c.port), fmt.Sprint(c.mark))
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, UseCgroupFD: true, CgroupFD: fd}
			out, err := cmd.CombinedOutput()
			if got := strings.TrimSpace(string(out)); err != nil || got != c.want {
				t.Errorf("%s, %v; want %s", got, err, c.want)
			}
		})
	}
}

// askBehind sends a datagram with a routing header (RFC 8754), which any program may set, and prints what send(2) said: EPERM is
// the fence's word.
const askBehind = `
import errno, os, socket
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RTHDR, bytes.fromhex("0002040000000000" + "00" * 15 + "01"))
try:
    s.sendto(b"x", ("::1", 2049))
    print("sent")
except OSError as e:
    print(errno.errorcode[e.errno])
`

// TestFenceBehindHeaders: a routing header in front does not hide the port.
func TestFenceBehindHeaders(t *testing.T) {
	dir := group(t)
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3")
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	said := func() string {
		cmd := exec.Command("/bin/sh", "-ec", `ip link set lo up; exec "$@"`, "sh", python, "-c", askBehind)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, UseCgroupFD: true, CgroupFD: fd}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	if got := said(); got != "sent" {
		t.Skipf("this kernel sends no routing header: %s", got)
	}
	p := &Ports{Group: dir, Rule: Rule{Ports: []uint16{2049}}}
	if err := p.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := said(); got != "EPERM" {
		t.Errorf("behind a routing header: %s", got)
	}
}

// A socket that was made outside of the group passes: the kernel's own clients, and what a helper is handed.
func TestFenceIsForTheGroup(t *testing.T) {
	dir := group(t)
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listen.Close()
	p := &Ports{Group: dir, Rule: Rule{Ports: []uint16{uint16(listen.Addr().(*net.TCPAddr).Port)}}}
	if err := p.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := net.DialTimeout("tcp", listen.Addr().String(), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

func TestCan(t *testing.T) {
	v1 := map[string]string{"memory": "/sys/fs/cgroup/memory"}
	for what, h := range map[string]host.Cgroups{
		"without cgroup v2":              {V1: v1},
		"cgroup v2 without a controller": {V1: v1, V2: "/sys/fs/cgroup/unified"},
	} {
		if err := Can(h); refuse.KindOf(err) != refuse.Cannot {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, h := range map[string]host.Cgroups{
		"cgroup v2": {V2: "/sys/fs/cgroup", V2Controllers: []string{"memory"}},
		"hybrid":    {V1: v1, V2: "/sys/fs/cgroup/unified", V2Controllers: []string{"hugetlb"}},
	} {
		if err := Can(h); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestLacking: a kernel that cannot hold the rule is refused with a remedy; any other error stays what it is.
func TestLacking(t *testing.T) {
	for err, kind := range map[error]refuse.Kind{unix.EINVAL: refuse.Cannot, unix.EPERM: refuse.Cannot, unix.ENOSYS: refuse.Cannot, unix.ENOMEM: refuse.Failed} {
		if got := lacking(fmt.Errorf("load it: %w", err)); refuse.KindOf(got) != kind || !errors.Is(got, err) {
			t.Errorf("%v: %v", err, got)
		}
	}
}
