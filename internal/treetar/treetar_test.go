package treetar

import (
	"archive/tar"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"berth/internal/treetar/treetest"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// descriptors are those of this process.
func descriptors(t testing.TB) Descriptors {
	t.Helper()
	d, err := OpenDescriptors()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

func pack(t testing.TB, dir string, from From) ([]byte, Tally) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_PATH, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	from.Files = descriptors(t)
	var b bytes.Buffer
	tally, err := Pack(t.Context(), &b, fd, from)
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), tally
}

// into unpacks a stream into a folder.
func into(t testing.TB, dir string, stream []byte, to To) (Tally, error) {
	t.Helper()
	to.Files = descriptors(t)
	as := to.Top
	to.Place = func(*tar.Header) (int, string, error) {
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return fd, as, err
	}
	return Unpack(t.Context(), bytes.NewReader(stream), to)
}

// TestRoundTrip packs random trees and unpacks them, here and with GNU tar, and unpacks what GNU tar packs.
func TestRoundTrip(t *testing.T) {
	needRoot(t)
	work := t.TempDir()
	var n atomic.Int64
	rapid.Check(t, func(rt *rapid.T) {
		dir := filepath.Join(work, strconv.FormatInt(n.Add(1), 10))
		if err := os.Mkdir(dir, 0o755); err != nil {
			rt.Fatal(err)
		}
		defer os.RemoveAll(dir)
		treetest.Make(rt, filepath.Join(dir, "tree"), treetest.All())
		want := treetest.Read(t, filepath.Join(dir, "tree"), treetest.Whole())
		stream, tally := pack(t, filepath.Join(dir, "tree"), From{Top: "tree"})
		if len(tally.Notes()) > 0 {
			rt.Fatalf("left out: %v", tally.Notes())
		}
		for _, way := range []string{"ours", "to tar", "from tar"} {
			to := filepath.Join(dir, way)
			if err := os.Mkdir(to, 0o755); err != nil {
				rt.Fatal(err)
			}
			switch way {
			case "to tar":
				gnuTar(rt, stream, "-C", to, "-x", "-p", "--xattrs", "--acls", "--numeric-owner")
			case "from tar":
				stream = gnuTar(rt, nil, "-C", dir, "-c", "--format=posix", "--sparse", "--xattrs", "--acls", "--numeric-owner", "tree")
				fallthrough
			default:
				if _, err := into(t, to, stream, To{Top: "tree", Owners: true}); err != nil {
					rt.Fatalf("%s: %v", way, err)
				}
			}
			keep := treetest.Whole()
			if way == "from tar" {
				keep.ACLs, keep.Holes = false, false // GNU tar writes the names of users, and zeros where a hole is small
				want = treetest.Read(t, filepath.Join(dir, "tree"), keep)
			}
			if d := cmp.Diff(want, treetest.Read(t, filepath.Join(to, "tree"), keep)); d != "" {
				rt.Fatalf("%s (-want +got):\n%s", way, d)
			}
		}
	})
}

func gnuTar(t *rapid.T, stdin []byte, args ...string) []byte {
	cmd := exec.Command("tar", args...)
	cmd.Stdin = bytes.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tar %v: %v: %s", args, err, &stderr)
	}
	return out
}
