package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

const mib = 1 << 20

// blocks is how many blocks a request reads or writes: 1 MiB.
const blocks = mib / block

// brief is a result in one line: what is not zero.
func brief(r Result) string {
	var b []string
	charge := func(what string, c Charge) {
		if c.Bytes > 0 {
			b = append(b, fmt.Sprintf("%s %d (%s)", what, c.Bytes, c.list()))
		}
	}
	for _, n := range r.Nodes {
		if n.Read.Own > 0 {
			b = append(b, fmt.Sprintf("%s read %d", n.Name, n.Read.Own))
		}
		if n.Write.Own > 0 {
			b = append(b, fmt.Sprintf("%s wrote %d", n.Name, n.Write.Own))
		}
		charge(n.Name+" leaked reads", n.Read.Leaked)
		charge(n.Name+" leaked writes", n.Write.Leaked)
		charge(n.Name+" of others", n.Polluted)
	}
	for _, o := range r.Others {
		b = append(b, fmt.Sprintf("%s read %d wrote %d", o.Address, o.Read, o.Write))
	}
	charge("no peer", r.Unknown.NoPeer)
	charge("several", r.Unknown.Several)
	charge("kernel", r.Unknown.Kernel)
	charge("writeback", r.Writeback)
	return strings.Join(b, "; ")
}

func (w *world) want(what, want string, r Result) {
	w.t.Helper()
	if diff := cmp.Diff(want, brief(r)); diff != "" {
		w.t.Errorf("%s:\n%s", what, diff)
	}
}

func (w *world) read() error { return direct(w.file, unix.O_RDONLY, blocks) }

// TestWhoseReads checks, to the byte, whose a read is and whose group was charged, by where the receiving thread was.
func TestWhoseReads(t *testing.T) {
	w := newWorld(t)
	for _, tt := range []struct{ from, group, want string }{
		{"127.0.0.2", "n1", "n1 read 1048576"},
		{"::1", "n6", "n6 read 1048576"},
		{"127.0.0.3", "", "n2 leaked reads 1048576 (/)"},
		{"127.0.0.3", "_server", "n2 leaked reads 1048576 (_server)"},
		{"127.0.0.3", "n1", "n1 of others 1048576 (n2); n2 leaked reads 1048576 (n1)"},
		{"127.0.0.4", "_server", "127.0.0.4 read 1048576 wrote 0"},
		{"127.0.0.4", "n1", "n1 of others 1048576 (127.0.0.4); 127.0.0.4 read 1048576 wrote 0"},
	} {
		w.want(tt.from+" in "+tt.group, tt.want, w.audit(func() { w.request(tt.from, tt.group, w.read) }))
	}
	w.want("what was asked before the audit", "no peer 1048576 (/)", w.audit(func() { testkit.Must(w.t, w.read()) }))
	w.want("a thread that receives nothing", "n1 read 1048576; n2 read 1048576; several 1048576 (/)", w.audit(func() {
		w.request("127.0.0.2", "n1", w.read)
		w.request("127.0.0.3", "n2", w.read)
		testkit.Must(w.t, w.read())
	}))
	w.want("a thread of a pool that stays in a group", "n1 read 1048576; n1 of others 1048576 (n2); n2 leaked reads 1048576 (n1)", w.audit(func() {
		w.request("127.0.0.2", "n1", func() error {
			if err := w.read(); err != nil {
				return err
			}
			return w.askHere("127.0.0.3", w.read)
		})
	}))
	w.want("a server that asks another one", "n1 read 1048576", w.audit(func() {
		w.request("127.0.0.2", "n1", func() error { return errors.Join(fetch(w.t), w.read()) })
	}))
}

// fetch receives a byte over a connection that this thread makes, as a server does that asks a directory.
func fetch(t *testing.T) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		if c, err := l.Accept(); err == nil {
			_, _ = c.Write([]byte("!"))
			c.Close()
		}
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Read(make([]byte, 1))
	return err
}

// TestProcesses checks servers whose receiving thread is not the one that reads.
func TestProcesses(t *testing.T) {
	w := newWorld(t)
	for role, by := range map[string]By{"worker": ByProcess, "relay": ByParent, "forker": ByProcess} {
		r := w.audit(func() { w.process("127.0.0.2", role) })
		w.want(role, "n1 leaked reads 1048576 (/)", r)
		if got := r.Nodes[0].ByProcess; got != mib || w.counts.Sums[0].By != by {
			t.Errorf("%s: %d bytes are told as seen by the process, want %d: %+v", role, got, mib, w.counts.Sums)
		}
	}
}

// TestWrites checks that what a thread writes itself is its peer's, and that what the kernel writes later is nobody's.
func TestWrites(t *testing.T) {
	w := newWorld(t)
	data := make([]byte, mib)
	w.want("direct", "n1 wrote 1048576", w.audit(func() {
		w.request("127.0.0.2", "n1", func() error { return direct(w.file, unix.O_WRONLY, blocks) })
	}))
	w.want("direct, leaked", "n2 leaked writes 1048576 (/)", w.audit(func() {
		w.request("127.0.0.3", "", func() error { return direct(w.file, unix.O_WRONLY, blocks) })
	}))
	write := func(name string, flags int) error {
		f, err := os.OpenFile(filepath.Join(w.mount, name), os.O_WRONLY|os.O_CREATE|flags, 0o600)
		if err != nil {
			return err
		}
		_, err = f.Write(data)
		return errors.Join(err, f.Close())
	}
	w.want("synchronous", "n1 wrote 1048576", w.audit(func() {
		w.request("127.0.0.2", "n1", func() error { return write("sync", os.O_SYNC) })
	}))
	r := w.audit(func() {
		w.request("127.0.0.2", "n1", func() error { return write("buffered", 0) })
		unix.Sync()
	})
	w.want("buffered", "writeback 1048576 (/)", r)
	if r.Journal.Bytes == 0 {
		t.Error("the journal wrote nothing")
	}
}

// TestHeld checks requests that a limit holds, which come from a kernel's thread where submit_bio cannot be seen.
func TestHeld(t *testing.T) {
	w := newWorld(t)
	for _, op := range []string{"read", "write"} {
		limit := fmt.Sprintf("%d:%d %d", w.major, w.minor, 4*mib)
		testkit.Must(w.t, os.WriteFile(filepath.Join(w.parent, "n1", "blkio.throttle."+op+"_bps_device"), []byte(limit), 0))
	}
	buffered := func() error { // with readahead
		f, err := os.Open(w.file)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			return err
		}
		_, err = f.ReadAt(make([]byte, 3*mib), 0)
		return err
	}
	r := w.audit(func() { w.request("127.0.0.2", "n1", buffered) })
	n := r.Nodes[0]
	if r.Leaked != 0 || r.Unknown.Bytes() != 0 || n.Read.Own < 3*mib || r.Ways.Held() && n.ByGroup == 0 {
		t.Errorf("a held read: %s, of it %d by the group (%+v)", brief(r), n.ByGroup, r.Ways)
	}
	// Reads ahead may still be held: they belong to no audit below.
	testkit.Must(w.t, os.WriteFile(filepath.Join(w.parent, "n1", "blkio.throttle.read_bps_device"), fmt.Appendf(nil, "%d:%d 0", w.major, w.minor), 0))
	w.rests()
	w.want("held write", "n1 wrote 1048576", w.audit(func() {
		w.request("127.0.0.2", "n1", func() error { return direct(w.file, unix.O_WRONLY, blocks) })
	}))
	testkit.Must(w.t, os.WriteFile(filepath.Join(w.parent, "n1", "blkio.throttle.read_bps_device"), fmt.Appendf(nil, "%d:%d %d", w.major, w.minor, 4*mib), 0))
	r = w.audit(func() {
		w.request("127.0.0.2", "n1", buffered)
		w.request("127.0.0.3", "n1", buffered)
	})
	if r.Ways.Held() && (r.Unknown.Kernel.Bytes == 0 || r.Nodes[0].ByGroup != 0) {
		t.Errorf("two peers in one group with a limit: %s, want that the probe does not guess", brief(r))
	}
}

// TestNothingStays checks that no program, map or link is left after Close and after Audit, also when it is interrupted. Others audit
// meanwhile: one began before, one goes on.
func TestNothingStays(t *testing.T) {
	w := newWorld(t)
	earlier, err := Open(w.major, w.minor)
	testkit.Must(t, err)
	before := loaded(t)
	p, err := Open(w.major, w.minor)
	testkit.Must(t, err)
	own := without(loaded(t), before)
	if len(own) < 8 {
		t.Errorf("an audit has %v", own)
	}
	later, err := Open(w.major, w.minor)
	testkit.Must(t, err)
	defer later.Close()
	testkit.Must(t, earlier.Close())
	testkit.Must(t, p.Close())
	goes(t, own)

	before = loaded(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	var r Result
	go func() {
		var err error
		r, err = Audit(ctx, w.folder.Dir, w.major, w.minor, time.Hour)
		done <- err
	}()
	testkit.Eventually(t, "the audit has begun", func() bool { own = without(loaded(t), before); return len(own) >= 8 })
	cancel()
	testkit.Must(t, <-done)
	if len(r.Nodes) != len(nodes) {
		t.Errorf("an audit that is interrupted says %+v", r)
	}
	goes(t, own)
}

// loaded lists the kernel's programs and maps that this process has descriptors of, as in "prog_id:\t7". Other processes may audit as well.
func loaded(t *testing.T) (all []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/self/fdinfo/*")
	testkit.Must(t, err)
	for _, f := range files {
		text, _ := os.ReadFile(f) // it may be closed now
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "prog_id:") || strings.HasPrefix(line, "map_id:") {
				all = append(all, strings.TrimSpace(line))
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// without lists those of all that are not among others.
func without(all, others []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(others, s) })
}

// goes waits until the kernel has freed programs and maps, which it does a little after they are closed. It gives their numbers to no others
// (kernel/bpf/syscall.c: idr_alloc_cyclic).
func goes(t *testing.T, own []string) {
	t.Helper()
	for _, s := range own {
		kind, number, _ := strings.Cut(s, ":\t")
		id, err := strconv.ParseUint(number, 10, 32)
		testkit.Must(t, err)
		testkit.Eventually(t, s+" is gone", func() bool {
			if kind == "map_id" {
				m, err := ebpf.NewMapFromID(ebpf.MapID(id))
				return errors.Is(err, os.ErrNotExist) || m.Close() != nil
			}
			p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
			return errors.Is(err, os.ErrNotExist) || p.Close() != nil
		})
	}
}

// TestEachWay loads each program at its place. What a kernel refuses is a refusal with one line.
func TestEachWay(t *testing.T) {
	w := newWorld(t)
	for _, want := range []Ways{{"sock_recv_length", queued}, {"tcp_recvmsg", queued}, {"sock_recv_length", submitted}} {
		p, err := open(w.major, w.minor, []string{want.Receive}, []string{want.Submit})
		if err != nil {
			if refuse.KindOf(err) != refuse.Cannot || strings.Contains(err.Error(), "\n") {
				t.Errorf("%+v: %v", want, err)
			}
			t.Logf("%+v: %v", want, err)
			continue
		}
		if p.Ways() != want {
			t.Errorf("%+v, want %+v", p.Ways(), want)
		}
		testkit.Must(w.t, p.Close())
	}
}

// TestObject checks that the object is what the source says: by the recorded sums, and by the compiler if it is there.
func TestObject(t *testing.T) { testkit.Object(t, "probe") }

// BenchmarkReceive measures a receive of one byte over loopback with the probe and without.
func BenchmarkReceive(b *testing.B) {
	testkit.NeedsRoot(b)
	for _, with := range []bool{false, true} {
		b.Run(fmt.Sprintf("probe=%v", with), func(b *testing.B) {
			if with {
				p, err := Open(7, 0)
				if err != nil {
					b.Skipf("no probe here: %v", err)
				}
				defer p.Close()
			}
			receive(b)
		})
	}
}

func receive(b *testing.B) {
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	s, err := l.AcceptTCP()
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	f, err := s.File()
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	const chunk = 64 << 10
	go func() {
		for data := make([]byte, chunk); ; {
			if _, err := c.Write(data); err != nil {
				return
			}
		}
	}()
	one := make([]byte, 1)
	for b.Loop() {
		if _, err := unix.Read(int(f.Fd()), one); err != nil {
			b.Fatal(err)
		}
	}
}
