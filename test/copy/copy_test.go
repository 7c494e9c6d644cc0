package copy

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"berth/internal/sys/treetar/treetest"
	"berth/test/env"
)

var count atomic.Int64

// check checks a property of random trees, of a few: each check runs programs. It gives each a folder of its own.
func check(t *testing.T, checks int, f func(t *rapid.T, dir string)) {
	t.Helper()
	old := flag.Lookup("rapid.checks").Value.String()
	if err := flag.Set("rapid.checks", strconv.Itoa(checks)); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = flag.Set("rapid.checks", old) }()
	work := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		dir := filepath.Join(work, strconv.FormatInt(count.Add(1), 10))
		if err := os.Mkdir(dir, 0o755); err != nil {
			rt.Fatal(err)
		}
		defer os.RemoveAll(dir)
		f(rt, dir)
	})
}

func differ(t *rapid.T, what string, want, got []string) {
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("%s (-want +got):\n%s", what, d)
	}
}

// TestCopyKeeps copies random trees into a running and a stopped node and out again: to a folder, and as a stream to GNU tar.
func TestCopyKeeps(t *testing.T) {
	nodes(t)
	check(t, 12, func(rt *rapid.T, dir string) {
		tree := filepath.Join(dir, "tree")
		treetest.Make(rt, tree, treetest.All())
		keep := treetest.Whole()
		keep.SetID = false // dropped on the way out
		want := treetest.Read(t, tree, keep)
		for _, node := range []string{"one", "two"} {
			in := node + ":/tmp/t" + filepath.Base(dir)
			must(rt, "cp", "-a", tree, in)
			out := filepath.Join(dir, node)
			must(rt, "cp", "-a", in, out)
			differ(rt, node+": out again", want, treetest.Read(t, out, keep))
			stream, _ := must(rt, "cp", in, "-")
			tarred := filepath.Join(dir, "tar"+node)
			gnuTar(rt, tarred, stream)
			differ(rt, node+": out to tar", want, treetest.Read(t, filepath.Join(tarred, filepath.Base(in)), keep))
		}
		// Without -a: all belongs to the node's user, then to the caller, and names no users.
		plain := filepath.Join(dir, "plain")
		must(rt, "cp", tree, "one:/tmp/p"+filepath.Base(dir))
		must(rt, "cp", "one:/tmp/p"+filepath.Base(dir), plain)
		keep.Owners, keep.ACLs, keep.Narrow = false, false, true
		differ(rt, "without -a", treetest.Read(t, tree, keep), treetest.Read(t, plain, keep))
	})
}

func gnuTar(t env.T, dir, stream string) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatalf("%v", err)
	}
	cmd := exec.Command("tar", "-C", dir, "-x", "-p", "--xattrs", "--xattrs-include=*", "--acls", "--numeric-owner", "-f", "/dev/stdin")
	cmd.Stdin = stringReader(stream)
	run1(t, cmd)
}

// TestExportKeeps exports a node whose image is a random tree, running and stopped, and compares it with the tree.
func TestExportKeeps(t *testing.T) {
	nodes(t)
	check(t, 8, func(rt *rapid.T, dir string) {
		tree := filepath.Join(dir, "tree")
		treetest.Make(rt, tree, treetest.All())
		must(rt, "cp", "-a", tree, "one:/tmp/tree")
		must(rt, "cp", "-a", tree, "two:/tmp/tree")
		keep := treetest.Whole()
		for _, node := range []string{"one", "two"} {
			file, to := filepath.Join(dir, node+".tar"), filepath.Join(dir, node)
			must(rt, "export", "-o", file, node)
			stream, err := os.ReadFile(file)
			if err != nil {
				rt.Fatal(err)
			}
			gnuTar(rt, to, string(stream))
			differ(rt, node, treetest.Read(t, tree, keep), treetest.Read(t, filepath.Join(to, "tmp/tree"), keep))
		}
		must(rt, "exec", "one", "--", "rm", "-rf", "/tmp/tree")
		must(rt, "start", "two")
		must(rt, "exec", "two", "--", "rm", "-rf", "/tmp/tree")
		must(rt, "stop", "two")
	})
}

// TestLikePodman copies and exports the same trees with podman.
func TestLikePodman(t *testing.T) {
	nodes(t)
	if _, err := exec.LookPath("podman"); err != nil {
		t.Skip("no podman on this host")
	}
	store := t.TempDir()
	podman := func(t env.T, args ...string) string {
		t.Helper()
		out, _ := run1(t, exec.Command("podman", append([]string{
			"--root", store + "/root", "--runroot", store + "/run", "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--events-backend", "none",
		}, args...)...))
		return out
	}
	root := filepath.Join(store, "one.tar")
	must(t, "export", "-o", root, "one")
	podman(t, "import", root, "box")
	podman(t, "create", "--cgroups=disabled", "--network", "none", "--name", "box", "box", "/bin/sleep", "infinity")
	t.Cleanup(func() { podman(t, "rm", "--force", "box") })
	kind := treetest.All()
	kind.ACLs, kind.FIFOs, kind.Odd, kind.Easy = false, false, false, true // podman keeps no lists; 4.3 leaves out FIFOs and fails on some names
	keep := treetest.Whole()
	keep.ACLs, keep.Holes, keep.TopTime, keep.SetID, keep.Owners, keep.Nanoseconds = false, false, false, false, false, false
	check(t, 2, func(rt *rapid.T, dir string) {
		tree := filepath.Join(dir, "tree")
		treetest.Make(rt, tree, kind)
		name := "like" + filepath.Base(dir)
		podman(rt, "cp", tree, "box:/tmp/"+name)
		podman(rt, "cp", "box:/tmp/"+name, filepath.Join(dir, "theirs"))
		must(rt, "cp", tree, "one:/tmp/"+name)
		must(rt, "cp", "one:/tmp/"+name, filepath.Join(dir, "ours"))
		differ(rt, "cp", treetest.Read(t, filepath.Join(dir, "theirs"), keep), treetest.Read(t, filepath.Join(dir, "ours"), keep))
		// The trees of the same name that both have now, as they export them. podman keeps owners by default.
		must(rt, "exec", "one", "--", "rm", "-rf", "/tmp/"+name)
		must(rt, "cp", "-a", tree, "one:/tmp/"+name)
		podman(rt, "cp", "--archive=false", tree, "box:/tmp/arch"+name)
		gnuTar(rt, filepath.Join(dir, "ourexport"), first(must(rt, "export", "one")))
		gnuTar(rt, filepath.Join(dir, "theirexport"), podman(rt, "export", "box"))
		with := keep
		with.Owners = true
		differ(rt, "export", treetest.Read(t, filepath.Join(dir, "theirexport/tmp/arch"+name), with), treetest.Read(t, filepath.Join(dir, "ourexport/tmp", name), with))
	})
}
