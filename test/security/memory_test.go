package security

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth/internal/image/imagetest"
)

// hoarded is the probe's answer to an attempt to hold kernel memory.
type hoarded struct {
	Held    int64  `json:"held"`
	Made    int    `json:"made"`
	Charged int64  `json:"charged"`
	Stopped string `json:"stopped"`
}

// hoard lets the probe hold objects in a running node until it has the given bytes or number of objects.
func (w *world) hoard(t *testing.T, node, kind string, bytes int64, most int) (h hoarded, killed bool) {
	t.Helper()
	stdout, stderr, code := w.Try("exec", node, "--", "/probe/probe", "hoard", kind, fmt.Sprint(bytes), fmt.Sprint(most))
	if code == 137 {
		return h, true
	}
	if code != 0 {
		t.Fatalf("hoard %s: exit code %d: %s%s", kind, code, stdout, stderr)
	}
	decode(t, stdout, &h)
	return h, false
}

const mib = 1 << 20

// TestHeldMemoryCounts checks that kernel memory that a node holds by pipes, sockets, messages, segments and files in memory counts
// as the node's memory and is limited with it.
func TestHeldMemoryCounts(t *testing.T) {
	w := anyRuntime(t)
	name := w.up(t, "memory: {max: 128MiB, swap: 0}")
	for _, kind := range []string{"unix", "pipe", "memfd", "shm", "inodes", "sysvmsg", "sysvshm", "sysvsem"} {
		t.Run(kind, func(t *testing.T) {
			h, killed := w.hoard(t, name, kind, 8*mib, 100_000)
			if killed || h.Held < 8*mib || h.Charged < h.Held*7/10 {
				t.Errorf("killed %v, %+v: not counted as the node's memory", killed, h)
			}
		})
	}
}

// TestUncountedMemory checks that kernel memory that does not count as the node's is unreachable or has its own limit.
func TestUncountedMemory(t *testing.T) {
	w := anyRuntime(t)
	name := w.up(t, "memory: {max: 64MiB, swap: 0}")
	if h, _ := w.hoard(t, name, "usersock", 512*mib, 3000); h.Made != 0 || h.Stopped != "EPERM" {
		t.Errorf("NETLINK_USERSOCK: %+v", h)
	}
	// v1: a quarter of memory.max for all sockets, and a buffer for each beyond it, which the kernel always gives. v2 counts them as memory.
	for kind, most := range map[string]int{"tcp": 60, "udp": 60} {
		h, killed := w.hoard(t, name, kind, 512*mib, most)
		t.Logf("%s: killed %v, %+v", kind, killed, h)
		if h.Held > 64*mib {
			t.Errorf("%s: %d MiB are held in a node of 64 MiB", kind, h.Held/mib)
		}
	}
	if show := w.OK(t, "show", name); !strings.Contains(show, "memory.limit_in_bytes") || !strings.Contains(show, "TCP and UDP buffers") {
		if _, err := os.Stat("/sys/fs/cgroup/memory/memory.kmem.tcp.limit_in_bytes"); err == nil {
			t.Errorf("show does not tell the limit of sockets: %s", show)
		}
	}
}

// TestTables checks that one node gets only a part of the kernel's shared tables.
func TestTables(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		name := w.up(t, "memory: {max: 256MiB}")
		for _, c := range []struct {
			kind string
			most int // largest number that the node may get; it requests one more
		}{
			{"ptys", 256},
			{"inotify", number(t, "/proc/sys/fs/inotify/max_user_instances")}, // a user id's, of the node's own
			{"mqueue", 256}, // fs.mqueue.queues_max, of the node's own
		} {
			if h, killed := w.hoard(t, name, c.kind, 512*mib, c.most+1); killed || h.Made > c.most || h.Made == 0 {
				t.Errorf("%s: killed %v, %+v, may have %d", c.kind, killed, h, c.most)
			}
		}
	})
}

// TestHostKeepsHalf checks that the host's root still gets timers and message queues when a node has taken all it can.
func TestHostKeepsHalf(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		name := w.up(t, "memory: {max: 256MiB}")
		for _, kind := range []string{"timers", "mqueue"} {
			cmd := w.Command("exec", name, "--", "/probe/probe", "hoard", kind, fmt.Sprint(512*mib), "1000000", "stay")
			out, err := cmd.StdoutPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			var h hoarded
			err = json.NewDecoder(out).Decode(&h)
			if err != nil || h.Made == 0 || h.Stopped == "ok" {
				t.Errorf("%s: %+v, %v", kind, h, err)
			}
			if kind == "timers" {
				err = timers(1000)
			} else {
				err = messageQueue("/" + name)
			}
			if err != nil {
				t.Errorf("the node has %d %s, and the host's root gets no more: %v", h.Made, kind, err)
			}
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			w.OK(t, "stop", "--grace", "0s", name)
			w.OK(t, "start", name)
		}
	})
}

// timers makes some timers, as root of the host, and deletes them.
func timers(number int) error {
	for range number {
		var id int32
		if _, _, errno := unix.Syscall(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, 0, uintptr(unsafe.Pointer(&id))); errno != 0 {
			return errno
		}
		defer unix.Syscall(unix.SYS_TIMER_DELETE, uintptr(id), 0, 0)
	}
	return nil
}

// messageQueue makes a message queue of default size on the host and removes it.
func messageQueue(name string) error {
	path, err := unix.BytePtrFromString(name[1:])
	if err != nil {
		return err
	}
	fd, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(path)), unix.O_CREAT|unix.O_RDWR, 0o600, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	_, _, _ = unix.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(path)), 0, 0)
	return unix.Close(int(fd))
}

func number(t *testing.T, file string) int {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if _, err := fmt.Sscan(string(text), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestSocketFamilies checks that nodes can open the documented socket families and netlink protocols, and no others.
func TestSocketFamilies(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		got := map[string]string{}
		w.probe(t, &got, "sockets")
		open := map[string]bool{"unix": true, "inet": true, "inet6": true}
		for _, protocol := range []int{unix.NETLINK_ROUTE, unix.NETLINK_SOCK_DIAG, unix.NETLINK_AUDIT, unix.NETLINK_KOBJECT_UEVENT, unix.NETLINK_GENERIC} {
			open[fmt.Sprint("netlink ", protocol)] = true
		}
		for what, became := range got {
			switch {
			case open[what] && became != "ok" && became != "EPROTONOSUPPORT" && became != "EAFNOSUPPORT": // a kernel may lack it
				t.Errorf("%s: %s, needed", what, became)
			case !open[what] && became != "EPERM":
				t.Errorf("%s: %s", what, became)
			}
		}
	})
}

// TestReadOnlyPlaces checks, also without a user namespace, that a node cannot write to /sys/fs/cgroup and /proc/pressure.
func TestReadOnlyPlaces(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		dir := imagetest.BusyboxDir(t)
		for _, spec := range []string{"", "user_namespace: false\nimage: dir:" + dir} {
			name := w.up(t, spec)
			script := `touch /sys/fs/cgroup/x /sys/fs/cgroup/memory/x 2>/dev/null; mkdir /sys/fs/cgroup/y 2>/dev/null; ls -d /sys/fs/cgroup/x /sys/fs/cgroup/y /sys/fs/cgroup/memory/x 2>/dev/null
for f in cpu io memory; do (echo "some 150000 2000000" >/proc/pressure/$f) 2>/dev/null && echo wrote $f; done; head -c1 /proc/1/comm >/dev/null && echo looked`
			if got := w.OK(t, "exec", name, "--", "/bin/sh", "-c", script); got != "looked\n" {
				t.Errorf("%q: %s", spec, got)
			}
		}
	})
}

// TestFileCapability checks that a program with a file capability that nodes lack, such as Debian's ping, runs without it. In a node
// with an init system the kernel refuses to run it.
func TestFileCapability(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		dir := imagetest.BusyboxDir(t)
		program, err := os.ReadFile(build.probe)
		asks := filepath.Join(dir, "bin/asks")
		netRaw := []byte{1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} // cap_net_raw=ep (struct vfs_cap_data)
		err = errors.Join(err, os.WriteFile(asks, program, 0o755), os.Chmod(asks, 0o755), unix.Setxattr(asks, "security.capability", netRaw, 0))
		if err != nil {
			t.Fatal(err)
		}
		for _, userNS := range []string{"true", "false"} {
			name := w.up(t, "image: dir:"+dir+"\nuser_namespace: "+userNS+"\ncommand: [/bin/sleep, infinity]")
			got := map[string]string{}
			decode(t, w.OK(t, "exec", name, "--", "/bin/asks", "status", "self"), &got)
			if got["CapEff"] == "" || got["CapEff"] != got["CapBnd"] {
				t.Errorf("it has the capabilities %s of %s", got["CapEff"], got["CapBnd"])
			}
		}
		init := w.up(t, "image: dir:"+dir+"\ncommand: [/bin/busybox, init]")
		if _, _, code := w.Try("exec", init, "--", "/bin/asks", "status", "self"); code == 0 {
			t.Error("it runs beside an init: let the documentation say so")
		}
	})
}
