package sftpserve

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// serveAlone makes this program a server of the folder that it names: a test kills it.
const serveAlone = "BERTH_TEST_SFTPSERVE"

func TestMain(m *testing.M) {
	if dir := os.Getenv(serveAlone); dir != "" {
		s, err := New(options(dir), slog.New(slog.NewTextHandler(os.Stderr, nil)))
		if err == nil {
			err = s.Serve(context.Background(), func(a net.Addr) { fmt.Println(a) })
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func options(dir string) Options {
	return Options{Dir: dir, User: "nobody", Allow: []string{"127.0.0.1"}, Listen: "127.0.0.1:0"}
}

// served is a folder that belongs to nobody, beside a secret.
func served(t *testing.T) string {
	t.Helper()
	testkit.NeedsRoot(t)
	top := t.TempDir()
	dir := filepath.Join(top, "data")
	for _, err := range []error{
		os.Mkdir(dir, 0o755), os.WriteFile(dir+"/file", []byte("data\n"), 0o644), os.WriteFile(top+"/secret", []byte("secret\n"), 0o644),
		os.Symlink("../secret", dir+"/up"), os.Symlink(top+"/secret", dir+"/absolute"), os.Lchown(dir, 65534, 65534),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func serve(t *testing.T, o Options) (addr string, stop func() error) {
	t.Helper()
	s, err := New(o, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan string, 1), make(chan error, 1)
	go func() { ended <- s.Serve(ctx, func(a net.Addr) { ready <- a.String() }) }()
	stop = func() error {
		cancel()
		err := <-ended
		ended <- err
		return err
	}
	t.Cleanup(func() { _ = stop() })
	select {
	case addr = <-ready:
	case err := <-ended:
		ended <- err
		t.Fatal(err)
	}
	return addr, stop
}

// client speaks SFTP version 3 by hand, as a hostile client may.
type client struct {
	t *testing.T
	net.Conn
}

func dial(t *testing.T, addr string) client {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return client{t, c}
}

const (
	fxInit, fxVersion, fxOpen, fxOpenDir, fxReadDir, fxRealPath = 1, 2, 3, 11, 12, 16
	fxStatus, fxHandle, fxName                                  = 101, 102, 104
)

// ask sends a packet and returns the answer's type and content.
func (c client) ask(kind byte, body []byte) (byte, []byte) {
	c.t.Helper()
	p := binary.BigEndian.AppendUint32(nil, uint32(len(body)+1))
	if _, err := c.Write(append(append(p, kind), body...)); err != nil {
		c.t.Fatal(err)
	}
	head := make([]byte, 5)
	if _, err := io.ReadFull(c, head); err != nil {
		c.t.Fatal(err)
	}
	answer := make([]byte, binary.BigEndian.Uint32(head)-1)
	if _, err := io.ReadFull(c, answer); err != nil {
		c.t.Fatal(err)
	}
	return head[4], answer
}

func (c client) start() {
	c.t.Helper()
	if kind, _ := c.ask(fxInit, binary.BigEndian.AppendUint32(nil, 3)); kind != fxVersion {
		c.t.Fatalf("the server answered %d", kind)
	}
}

func text(s string) []byte { return append(binary.BigEndian.AppendUint32(nil, uint32(len(s))), s...) }

func request(parts ...[]byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, 7), slices.Concat(parts...)...)
}

// first returns the first string of an answer.
func first(b []byte) string {
	n := binary.BigEndian.Uint32(b)
	return string(b[4 : 4+n])
}

// open opens a file with flags (1 read, 2 write, 8 create) and returns the status; 0: it is open.
func (c client) open(name string, flags uint32) uint32 {
	kind, b := c.ask(fxOpen, request(text(name), binary.BigEndian.AppendUint32(nil, flags), make([]byte, 4)))
	if kind == fxStatus {
		return binary.BigEndian.Uint32(b[4:])
	}
	return 0
}

func (c client) list(dir string) (names []string) {
	c.t.Helper()
	kind, b := c.ask(fxOpenDir, request(text(dir)))
	if kind != fxHandle {
		c.t.Fatalf("open folder %s: %d %q", dir, kind, b)
	}
	handle := b[4:]
	for {
		kind, b := c.ask(fxReadDir, request(handle))
		if kind != fxName {
			slices.Sort(names)
			return names
		}
		count, at := binary.BigEndian.Uint32(b[4:]), b[8:]
		for range count {
			name := first(at)
			at = at[4+len(name):]
			at = at[4+len(first(at))+32:] // the long name; flags, size, owner, mode, times
			if name != "." && name != ".." {
				names = append(names, name)
			}
		}
	}
}

// TestConfined: a session is not root, and sees the folder and nothing else of the host.
func TestConfined(t *testing.T) {
	dir := served(t)
	addr, stop := serve(t, options(dir))
	c := dial(t, addr)
	c.start()
	if kind, b := c.ask(fxRealPath, request(text("."))); kind != fxName || first(b[8:]) != data {
		t.Errorf("it begins at %q", b)
	}
	if got := c.list("."); !slices.Equal(got, []string{"absolute", "file", "up"}) {
		t.Errorf("the folder has %q", got)
	}
	if got := c.list("/etc"); !slices.Equal(got, []string{"passwd"}) {
		t.Errorf("/etc has %q", got)
	}
	if got := c.list("/"); slices.ContainsFunc(got, func(n string) bool {
		return !slices.Contains([]string{"data", "dev", "etc", "lib", "lib64", "usr"}, n)
	}) {
		t.Errorf("its root has %q", got)
	}
	const noSuchFile, denied, failure = 2, 3, 4
	for name, want := range map[string]uint32{
		"file": 0, "up": noSuchFile, "absolute": noSuchFile, "../etc/shadow": noSuchFile, "/proc/self/mem": noSuchFile, dir + "/file": noSuchFile,
	} {
		if got := c.open(name, 1); got != want {
			t.Errorf("open %s: status %d, want %d", name, got, want)
		}
	}
	for name, want := range map[string]uint32{"new": 0, "file": denied, "/new": denied, "/etc/passwd": denied, Program: failure} {
		if got := c.open(name, 2|8); got != want && (want == 0 || got == 0) {
			t.Errorf("write %s: status %d, want %d", name, got, want)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(dir+"/new", &st); err != nil || st.Uid != 65534 || st.Mode&0o777 != 0o666 {
		t.Errorf("a new file belongs to %d, mode %o, %v", st.Uid, st.Mode, err)
	}
	all := sessions(t, os.Getpid())
	if len(all) != 1 {
		t.Errorf("sessions: %v", all)
	}
	for _, pid := range all {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"\nUid:\t65534\t65534\t65534\t65534\n", "\nCapEff:\t0000000000000000\n", "\nCapPrm:\t0000000000000000\n", "\nNoNewPrivs:\t1\n"} {
			if !strings.Contains(string(status), want) {
				t.Errorf("a session has no %q:\n%s", want, status)
			}
		}
	}
	if err := stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	if left := sessions(t, os.Getpid()); len(left) > 0 {
		t.Errorf("sessions %v outlive the server", left)
	}
	if info, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(info), "berth-sftp") {
		t.Errorf("the host sees the jail: %v", err)
	}
}

// sessions lists the sessions that a process has.
func sessions(t *testing.T, parent int) (pids []int) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		b, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		for word := range strings.FieldsSeq(string(b)) {
			pid, err := strconv.Atoi(word)
			comm, commErr := os.ReadFile("/proc/" + word + "/comm")
			if err == nil && commErr == nil && strings.TrimSpace(string(comm)) == "sftp-server" {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// TestClients: a client that is not allowed gets nothing; one that opens too many sessions, no more.
func TestClients(t *testing.T) {
	o := options(served(t))
	o.Allow = []string{"192.0.2.0/24", "2001:db8::1"}
	addr, _ := serve(t, o)
	if n, err := dial(t, addr).Read(make([]byte, 1)); err == nil {
		t.Errorf("a client that is not allowed read %d bytes", n)
	}
	if left := sessions(t, os.Getpid()); len(left) > 0 {
		t.Errorf("it has sessions: %v", left)
	}
	o.Allow = append(o.Allow, "127.0.0.0/8")
	addr, _ = serve(t, o)
	for range perClient {
		dial(t, addr).start()
	}
	if _, err := dial(t, addr).Read(make([]byte, 1)); err == nil {
		t.Errorf("session %d of one client was served", perClient+1)
	}
}

// TestKilled: a server that is killed leaves no session.
func TestKilled(t *testing.T) {
	dir := served(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{serveAlone + "=" + dir}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, strings.TrimSpace(addr))
	c.start()
	all := sessions(t, cmd.Process.Pid)
	if len(all) != 1 {
		t.Fatalf("sessions: %v", all)
	}
	id, err := proc.Of(all[0])
	if err != nil {
		t.Fatal(err)
	}
	pidfd, err := id.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer pidfd.Close()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if !proc.WaitFor(t.Context(), pidfd, 10*time.Second) {
		t.Errorf("session %d outlives the server", id.PID)
	}
}

func TestRefused(t *testing.T) {
	dir := served(t)
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	for name, c := range map[string]struct {
		change func(*Options)
		kind   refuse.Kind
	}{
		"root":             {func(o *Options) { o.User = "root" }, refuse.Invalid},
		"root by number":   {func(o *Options) { o.User = "0" }, refuse.Invalid},
		"no such user":     {func(o *Options) { o.User = "no-such-user" }, refuse.NotFound},
		"nobody allowed":   {func(o *Options) { o.Allow = nil }, refuse.Invalid},
		"no address":       {func(o *Options) { o.Allow = []string{"host"} }, refuse.Invalid},
		"bits behind":      {func(o *Options) { o.Allow = []string{"10.0.0.1/24"} }, refuse.Invalid},
		"no port":          {func(o *Options) { o.Listen = "127.0.0.1" }, refuse.Invalid},
		"a name":           {func(o *Options) { o.Listen = "localhost:1" }, refuse.Invalid},
		"port too large":   {func(o *Options) { o.Listen = ":70000" }, refuse.Invalid},
		"relative":         {func(o *Options) { o.Dir = "data" }, refuse.Invalid},
		"no such folder":   {func(o *Options) { o.Dir += "/gone" }, refuse.NotFound},
		"a file":           {func(o *Options) { o.Dir += "/file" }, refuse.Invalid},
		"the host's root":  {func(o *Options) { o.Dir = "/" }, refuse.Invalid},
		"the host's /proc": {func(o *Options) { o.Dir = "/proc/sys" }, refuse.Invalid},
		"port is used":     {func(o *Options) { o.Listen = busy.Addr().String() }, refuse.Busy},
	} {
		o := options(dir)
		c.change(&o)
		s, err := New(o, slog.New(slog.DiscardHandler))
		if err == nil {
			err = s.Serve(t.Context(), func(net.Addr) { t.Errorf("%s: it serves", name) })
		}
		if refuse.KindOf(err) != c.kind {
			t.Errorf("%s: %v (kind %d), want kind %d", name, err, refuse.KindOf(err), c.kind)
		}
	}
}
