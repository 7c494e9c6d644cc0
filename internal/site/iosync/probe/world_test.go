package probe

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth/internal/sys/fork"
	"berth/internal/sys/thread"
	"berth/test/testkit"
)

const (
	block = 64 << 10
	size  = 32 << 20 // of the file
)

// world is a file system on a loop device, with groups for its nodes and the folder that berthd would publish.
type world struct {
	t            *testing.T
	major, minor uint32
	file         string // its data, which is not in memory
	mount        string
	parent       string // folder of the groups
	folder       Folder
	listener     net.Listener
	counts       Counts // of the last audit
}

// nodes are the addresses of the world's nodes.
var nodes = map[string]string{"127.0.0.2": "n1", "127.0.0.3": "n2", "::1": "n6"}

func newWorld(t *testing.T) *world {
	t.Helper()
	testkit.NeedsRoot(t)
	const blkio = "/sys/fs/cgroup/blkio"
	if _, err := os.Stat(filepath.Join(blkio, "tasks")); err != nil {
		t.Skipf("needs cgroup v1 with blkio at %s: single threads are moved", blkio)
	}
	for _, p := range []string{"losetup", "mkfs.ext4", "mount"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("needs the program %s", p)
		}
	}
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil {
		t.Skip("needs a kernel with BTF: there is no /sys/kernel/btf/vmlinux")
	}
	w := &world{t: t}
	w.makeDisk()
	w.makeGroups(blkio)
	var err error
	w.listener, err = net.Listen("tcp", ":0") // IPv6: the peers of IPv4 are mapped
	testkit.Must(w.t, err)
	t.Cleanup(func() { w.listener.Close() })
	return w
}

func (w *world) makeDisk() {
	dir := w.t.TempDir()
	image := filepath.Join(dir, "image")
	testkit.Must(w.t, os.WriteFile(image, nil, 0o600))
	testkit.Must(w.t, os.Truncate(image, 3*size))
	loop := strings.TrimSpace(w.run("losetup", "--find", "--show", "--direct-io=on", image))
	w.t.Cleanup(func() { w.run("losetup", "--detach", loop) })
	w.run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", loop)
	w.mount = filepath.Join(dir, "mnt")
	testkit.Must(w.t, os.Mkdir(w.mount, 0o755))
	w.run("mount", loop, w.mount)
	w.t.Cleanup(func() { w.run("umount", w.mount) })
	var st unix.Stat_t
	testkit.Must(w.t, unix.Stat(w.mount, &st))
	w.major, w.minor = unix.Major(st.Dev), unix.Minor(st.Dev)
	w.file = filepath.Join(w.mount, "data")
	testkit.Must(w.t, os.WriteFile(w.file, bytes.Repeat([]byte("berth..."), size/8), 0o600))
	unix.Sync()
	f, err := os.Open(w.file)
	testkit.Must(w.t, err)
	defer f.Close()
	testkit.Must(w.t, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
}

func (w *world) makeGroups(blkio string) {
	root := filepath.Join(blkio, fmt.Sprintf("berth-probe%d.sync", os.Getpid()))
	w.parent = filepath.Join(root, "fs")
	testkit.Must(w.t, os.MkdirAll(w.parent, 0o755))
	w.folder.Dir = filepath.Join(w.t.TempDir(), "fs")
	testkit.Must(w.t, os.MkdirAll(filepath.Join(w.folder.Dir, "addresses"), 0o755))
	testkit.Must(w.t, os.Symlink(w.parent, filepath.Join(w.folder.Dir, "groups")))
	w.t.Cleanup(func() {
		for _, d := range []string{"n1", "n2", "n6", "_server"} {
			w.remove(filepath.Join(w.parent, d))
		}
		w.remove(w.parent)
		w.remove(root)
	})
	testkit.Must(w.t, os.Mkdir(filepath.Join(w.parent, "_server"), 0o755))
	for addr, name := range nodes {
		testkit.Must(w.t, os.Mkdir(filepath.Join(w.parent, name), 0o755))
		testkit.Must(w.t, os.Symlink(name, filepath.Join(w.folder.Dir, "addresses", addr)))
	}
}

// remove removes a group when the threads that ended have left it.
func (w *world) remove(group string) {
	var err error
	if !testkit.Happens(func() bool { err = os.Remove(group); return err == nil || errors.Is(err, os.ErrNotExist) }) {
		w.t.Error(err)
	}
}

func (w *world) run(name string, args ...string) string {
	w.t.Helper()
	cmd := exec.Command(name, args...)
	var failed bytes.Buffer
	cmd.Stderr = &failed
	out, err := fork.Output(cmd)
	if err != nil {
		w.t.Fatalf("%s %v: %v: %s", name, args, err, failed.String())
	}
	return string(out)
}

// audit counts while do runs.
func (w *world) audit(do func()) Result {
	w.t.Helper()
	p, err := Open(w.major, w.minor)
	testkit.Must(w.t, err)
	defer p.Close()
	testkit.Must(w.t, w.folder.Look())
	do()
	w.counts, err = p.Read()
	testkit.Must(w.t, err)
	return w.folder.Result(w.counts, p.Ways())
}

// rests waits until nothing is read or written on the disk for a while.
func (w *world) rests() {
	w.t.Helper()
	stat := func() string {
		text, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/stat", w.major, w.minor))
		testkit.Must(w.t, err)
		return string(text)
	}
	last := stat()
	testkit.Eventually(w.t, "the disk comes to rest", func() bool {
		time.Sleep(300 * time.Millisecond)
		before := last
		last = stat()
		return before == last
	})
}

// ask connects from an address and sends one byte; do handles the connection in a thread of its own after it received the byte.
func (w *world) ask(from string, do func(c *net.TCPConn) error) {
	w.t.Helper()
	_, port, _ := net.SplitHostPort(w.listener.Addr().String())
	to := "127.0.0.1"
	if strings.Contains(from, ":") {
		to = "::1"
	}
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))}
	done := make(chan error, 1)
	go func() {
		done <- thread.Own(func() error {
			c, err := w.listener.Accept()
			if err != nil {
				return err
			}
			defer c.Close()
			return do(c.(*net.TCPConn))
		})
	}()
	c, err := d.Dial("tcp", net.JoinHostPort(to, port))
	testkit.Must(w.t, err)
	defer c.Close()
	_, err = c.Write([]byte("?"))
	testkit.Must(w.t, err)
	testkit.Must(w.t, <-done)
}

// request receives the byte of a request, moves its thread to a group ("": stays), and does the I/O.
func (w *world) request(from, group string, io func() error) {
	w.t.Helper()
	w.ask(from, func(c *net.TCPConn) error {
		if _, err := c.Read(make([]byte, 1)); err != nil {
			return err
		}
		if group != "" {
			if err := os.WriteFile(filepath.Join(w.parent, group, "tasks"), []byte("0"), 0); err != nil {
				return err
			}
		}
		return io()
	})
}

// askHere is request for a thread that is handed another connection: it receives and does the I/O in the calling thread.
func (w *world) askHere(from string, io func() error) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))}
	client, err := d.Dial("tcp", l.Addr().String())
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := client.Write([]byte("?")); err != nil {
		return err
	}
	c, err := l.Accept()
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); err != nil {
		return err
	}
	return io()
}

// process receives a request in a process of its own, which gets the connection as its standard input.
func (w *world) process(from, role string) {
	w.t.Helper()
	w.ask(from, func(c *net.TCPConn) error {
		f, err := c.File()
		if err != nil {
			return err
		}
		defer f.Close()
		if err := unix.SetNonblock(int(f.Fd()), false); err != nil {
			return err
		}
		cmd := self(role, w.file)
		cmd.Stdin = f
		return fork.Run(cmd)
	})
}

// direct reads or writes some blocks past the page cache.
func direct(path string, flags, blocks int) error {
	fd, err := unix.Open(path, flags|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	raw := make([]byte, block+4096)
	b := raw[4096-uintptr(unsafe.Pointer(&raw[0]))%4096:][:block]
	for i := range blocks {
		if flags == unix.O_WRONLY {
			_, err = unix.Pwrite(fd, b, int64(i)*block)
		} else {
			_, err = unix.Pread(fd, b, int64(i)*block)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// asHelper makes this test a process that handles a connection with a child, as socat does.
const asHelper = "BERTH_PROBE_HELPER"

func TestMain(m *testing.M) {
	switch role, path, _ := strings.Cut(os.Getenv(asHelper), " "); role {
	case "":
		os.Exit(m.Run())
	case "relay": // the connection is standard input; its child reads the file when it is told of a request
		os.Exit(status(relay(path)))
	case "worker": // a thread receives, another one reads
		_, err := syscall.Read(0, make([]byte, 1))
		if err == nil {
			runtime.LockOSThread()
			err = thread.Own(func() error { return direct(path, unix.O_RDONLY, 16) })
		}
		os.Exit(status(err))
	case "forker": // receives, then starts a child, which is told at once
		_, err := syscall.Read(0, make([]byte, 1))
		if err == nil {
			child := self("child", path)
			child.Stdin = strings.NewReader("?")
			err = fork.Run(child)
		}
		os.Exit(status(err))
	case "child":
		_, err := os.Stdin.Read(make([]byte, 1))
		if err == nil {
			err = direct(path, unix.O_RDONLY, 16)
		}
		os.Exit(status(err))
	}
}

func status(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func relay(path string) error {
	child := self("child", path)
	in, err := child.StdinPipe()
	if err != nil {
		return err
	}
	if err := fork.Start(child); err != nil {
		return err
	}
	b := make([]byte, 1)
	if _, err := syscall.Read(0, b); err != nil {
		return err
	}
	if _, err := in.Write(b); err != nil {
		return err
	}
	return fork.Wait(child)
}

func self(role, path string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), asHelper+"="+role+" "+path)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd
}
