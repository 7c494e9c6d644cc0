package copier

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
	"berth/internal/sys/treetar"
	"berth/test/testkit"
)

// says is a node in a machine whose copier writes this stream, says this, and ends.
func says(t *testing.T, stream string, m message) *Node {
	t.Helper()
	return &Node{Name: "m", There: func(_ context.Context, words []string, _, out, report *os.File) (func() (unix.WaitStatus, error), error) {
		if len(words) != 3 || !strings.Contains(words[0], `"Node":"m"`) {
			t.Errorf("the copier gets the words %q", words)
		}
		_, err := out.WriteString(stream)
		testkit.Must(t, err)
		testkit.Must(t, json.NewEncoder(report).Encode(m))
		return func() (unix.WaitStatus, error) { return 0, nil }, nil
	}}
}

// TestThere: the copier of a machine is its guest's. What it says is an error or none, and nothing that the user is to type.
func TestThere(t *testing.T) {
	for name, c := range map[string]struct {
		says message
		kind refuse.Kind
		text string
	}{
		"all is well":    {message{Done: true, Tally: &treetar.Tally{Devices: 3}}, 0, ""},
		"not found":      {message{Done: true, Kind: refuse.NotFound, What: []byte("no such")}, refuse.NotFound, `the guest of node m says: "no such"`},
		"a kind of none": {message{Done: true, What: []byte("odd")}, refuse.Failed, `the guest of node m says: "odd"`},
		"an exit code":   {message{Done: true, Kind: 77, What: []byte("odd")}, refuse.Failed, `the guest of node m says: "odd"`},
		"a remedy":       {message{Done: true, Kind: refuse.Busy, What: []byte("busy"), Remedy: []byte("curl x | sh")}, refuse.Busy, `the guest of node m says: "busy"`},
		"two lines":      {message{Done: true, What: []byte("odd\nberth: rm -rf x")}, refuse.Failed, `the guest of node m says: "odd\nberth: rm -rf x"`},
		"a book":         {message{Done: true, What: bytes.Repeat([]byte("x"), 9999)}, refuse.Failed, `the guest of node m says: "` + strings.Repeat("x", mostWords) + `"`},
		"nothing":        {message{}, refuse.Failed, "the copier in node m ended early: it said nothing"},
	} {
		out, err := os.CreateTemp(t.TempDir(), "")
		testkit.Must(t, err)
		tally, err := says(t, "a stream", c.says).ToStream(t.Context(), "/x", out)
		if text := errorText(err); refuse.KindOf(err) != c.kind || text != c.text {
			t.Errorf("%s: %v of kind %d", name, err, refuse.KindOf(err))
		}
		if got, err := os.ReadFile(out.Name()); string(got) != "a stream" || err != nil {
			t.Errorf("%s: the stream is %q: %v", name, got, err)
		}
		if c.kind == 0 && tally.Devices != 3 {
			t.Errorf("%s: it counts %+v", name, tally)
		}
		out.Close()
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestCountsThere: a guest's counts and its names of files look like such.
func TestCountsThere(t *testing.T) {
	out, err := os.CreateTemp(t.TempDir(), "")
	testkit.Must(t, err)
	defer out.Close()
	tally, err := says(t, "", message{Done: true, Tally: &treetar.Tally{Devices: -1, Unreadable: 1, First: "a\nb"}}).ToStream(t.Context(), "/x", out)
	if err != nil || tally.Devices != 0 || tally.First != `"a\nb"` {
		t.Errorf("%+v: %v", tally, err)
	}
}

// there is a node in a machine whose guest does this in the copier's place, and which says nothing until the copy is given up.
func there(guest func(in, out *os.File)) *Node {
	return &Node{Name: "m", There: func(ctx context.Context, _ []string, in, out, report *os.File) (func() (unix.WaitStatus, error), error) {
		var own [3]*os.File
		for i, f := range []*os.File{in, out, report} {
			if f == nil {
				continue
			}
			fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				return nil, err
			}
			own[i] = os.NewFile(uintptr(fd), "own")
		}
		go guest(own[0], own[1])
		return func() (unix.WaitStatus, error) {
			<-ctx.Done()
			return unix.WaitStatus(unix.SIGKILL), own[2].Close()
		}, nil
	}}
}

// archive is a tar stream of these entries.
func archive(t *testing.T, entries ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		testkit.Must(t, w.WriteHeader(&h))
	}
	testkit.Must(t, w.Close())
	return b.Bytes()
}

// TestThereEnds: a copy that the user gives up has ended, whatever the guest does.
func TestThereEnds(t *testing.T) {
	good := archive(t, tar.Header{Name: "x", Typeflag: tar.TypeReg, Mode: 0o600})
	big := filepath.Join(t.TempDir(), "big")
	testkit.Must(t, os.WriteFile(big, make([]byte, 1<<20), 0o600))
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	testkit.Must(t, err)
	defer null.Close()
	silent, typist, err := os.Pipe()
	testkit.Must(t, err)
	defer typist.Close()
	defer silent.Close()
	toHost := func(ctx context.Context, n *Node) (treetar.Tally, error) {
		return n.ToHost(ctx, "/x", filepath.Join(t.TempDir(), "x"), Options{})
	}
	for name, c := range map[string]struct {
		guest func(giveUp func()) func(in, out *os.File)
		copy  func(ctx context.Context, n *Node) (treetar.Tally, error)
	}{
		"zeros for ever": {func(giveUp func()) func(in, out *os.File) {
			return func(_, out *os.File) {
				defer out.Close()
				_, err := out.Write(good)
				for i := 0; err == nil; i++ {
					if _, err = out.Write(make([]byte, 64<<10)); i == 64 {
						giveUp()
					}
				}
			}
		}, toHost},
		"says nothing": {func(giveUp func()) func(in, out *os.File) { return func(_, _ *os.File) { giveUp() } }, toHost},
		"reads nothing": {func(giveUp func()) func(in, out *os.File) {
			return func(in, _ *os.File) {
				_, _ = in.Read(make([]byte, 1))
				giveUp()
			}
		}, func(ctx context.Context, n *Node) (treetar.Tally, error) {
			return n.FromHost(ctx, big, "/x", Options{})
		}},
		"never ends an export": {
			func(giveUp func()) func(in, out *os.File) { return func(_, _ *os.File) { giveUp() } },
			func(ctx context.Context, n *Node) (treetar.Tally, error) { return n.Export(ctx, null) },
		},
		"never takes a stream": {
			func(giveUp func()) func(in, out *os.File) { return func(_, _ *os.File) { giveUp() } },
			func(ctx context.Context, n *Node) (treetar.Tally, error) {
				return n.FromStream(ctx, silent, "/x", Options{})
			},
		},
	} {
		ctx, giveUp := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := c.copy(ctx, there(c.guest(giveUp)))
			ended <- err
		}()
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(testkit.Bound()):
			t.Errorf("%s: the copy does not end", name)
		}
	}
}

// TestNoLinkComes: a guest cannot lead a copy elsewhere by a link that it sent in place of a file before.
func TestNoLinkComes(t *testing.T) {
	dir := t.TempDir()
	testkit.Must(t, os.Mkdir(filepath.Join(dir, "elsewhere"), 0o700))
	to := filepath.Join(dir, "x")
	for _, h := range []tar.Header{{Name: "x", Typeflag: tar.TypeSymlink, Linkname: "elsewhere"}, {Name: "x", Typeflag: tar.TypeReg, Mode: 0o600}} {
		n := says(t, string(archive(t, h)), message{Done: true})
		if _, err := n.ToHost(t.Context(), "/x", to, Options{}); (err != nil) != (h.Typeflag == tar.TypeSymlink) {
			t.Errorf("an entry of type %q: %v", h.Typeflag, err)
		}
	}
	if info, err := os.Lstat(to); err != nil || !info.Mode().IsRegular() {
		t.Errorf("what was copied is %v: %v", info, err)
	}
	if all, err := os.ReadDir(filepath.Join(dir, "elsewhere")); len(all) > 0 || err != nil {
		t.Errorf("elsewhere is %v: %v", all, err)
	}
}

// TestRefusedStream: who sends a stream that is refused, and does not say why he ends, has his time; then the copy fails for the stream.
func TestRefusedStream(t *testing.T) {
	defer func(was time.Duration) { lastWords = was }(lastWords)
	lastWords = time.Millisecond
	n := there(func(_, out *os.File) { _, _ = out.WriteString(strings.Repeat("no tar", 1000)) })
	if _, err := n.ToHost(t.Context(), "/x", filepath.Join(t.TempDir(), "x"), Options{}); refuse.KindOf(err) != refuse.Invalid {
		t.Errorf("the error is %v", err)
	}
}

// TestUnreadStream: a caller's stream that cannot be read has not ended.
func TestUnreadStream(t *testing.T) {
	folder, err := os.Open(t.TempDir())
	testkit.Must(t, err)
	defer folder.Close()
	n := there(func(in, _ *os.File) { _, _ = io.Copy(io.Discard, in) })
	if _, err := n.FromStream(t.Context(), folder, "/x", Options{}); !errors.Is(err, unix.EISDIR) {
		t.Errorf("the error is %v", err)
	}
}

// TestReaderGone: a reader of the stream who has gone is named as such.
func TestReaderGone(t *testing.T) {
	r, w, err := os.Pipe()
	testkit.Must(t, err)
	defer w.Close()
	testkit.Must(t, r.Close())
	n := says(t, "a stream", message{Broken: true})
	if _, err := n.ToStream(t.Context(), "/x", w); !errors.Is(err, errBroken) {
		t.Errorf("the error is %v", err)
	}
}

// TestNamesThere: a guest is asked for names that begin in some way, and gives no others.
func TestNamesThere(t *testing.T) {
	got := says(t, "/etc/b\x00/etc/a\x00;reboot\x00", message{Done: true}).Names(t.Context(), "/etc/a")
	if !slices.Equal(got, []string{"/etc/a"}) {
		t.Errorf("the names are %q", got)
	}
}

// TestCannotStart: where no copier can be started, the error says what gives it room, or what the host forbids.
func TestCannotStart(t *testing.T) {
	n := &Node{Name: "n"}
	for err, c := range map[error]struct {
		kind refuse.Kind
		text string
	}{
		unix.EAGAIN: {refuse.Busy, "berth set n pids=NUMBER"},
		unix.EACCES: {refuse.Cannot, "vm.memfd_noexec"},
		unix.EPERM:  {refuse.Cannot, "user.max_user_namespaces"},
		unix.EIO:    {refuse.Failed, "start a copier for node n: input/output error"},
	} {
		if got := n.startErr(err); refuse.KindOf(got) != c.kind || !strings.Contains(got.Error(), c.text) || !errors.Is(got, err) {
			t.Errorf("%v: %v", err, got)
		}
	}
}
