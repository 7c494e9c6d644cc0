package copy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/sys/treetar/treetest"
)

// list is an access control list as the kernel has it (linux/posix_acl_xattr.h): for each entry tag, permissions and id.
func list(entries ...[3]uint32) []byte {
	v := []byte{2, 0, 0, 0}
	for _, e := range entries {
		v = append(v, byte(e[0]), 0, byte(e[1]), 0, byte(e[2]), byte(e[2]>>8), byte(e[2]>>16), byte(e[2]>>24))
	}
	return v
}

// TestListsOfImages takes a tree from a node by export and import into another node, and one by GNU tar: with access control lists of
// files and folders, named users and groups, a mask narrower and wider than the group, odd owners and times.
func TestListsOfImages(t *testing.T) {
	nodes(t)
	const none = 0xffffffff
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	lists := map[string][]byte{
		"shared/wide":   list([3]uint32{1, 6, none}, [3]uint32{4, 4, none}, [3]uint32{16, 6, none}, [3]uint32{32, 4, none}),
		"shared/narrow": list([3]uint32{1, 7, none}, [3]uint32{2, 6, 1}, [3]uint32{2, 0, 1000}, [3]uint32{4, 7, none}, [3]uint32{8, 5, 7}, [3]uint32{16, 4, none}, [3]uint32{32, 0, none}),
		"shared":        list([3]uint32{1, 7, none}, [3]uint32{2, 7, 65535}, [3]uint32{4, 5, none}, [3]uint32{16, 7, none}, [3]uint32{32, 5, none}),
	}
	do := func(errs ...error) {
		t.Helper()
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	do(os.MkdirAll(filepath.Join(tree, "shared"), 0o755))
	for _, name := range []string{"shared/wide", "shared/narrow", "shared", "plain"} {
		path := filepath.Join(tree, name)
		if name != "shared" {
			do(os.WriteFile(path, []byte(name), 0o640))
		}
		do(os.Chown(path, 65535, 65534))
		if l := lists[name]; l != nil {
			do(unix.Setxattr(path, "system.posix_acl_access", l, 0))
		}
		when := unix.Timespec{Sec: -86400, Nsec: 123456789}
		do(unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{when, when}, 0))
	}
	do(unix.Setxattr(filepath.Join(tree, "shared"), "system.posix_acl_default", lists["shared"], 0))
	must(t, "cp", "-a", tree, "one:/tmp/lists")
	t.Cleanup(func() { must(t, "exec", "one", "--", "rm", "-rf", "/tmp/lists") })
	must(t, "export", "-o", filepath.Join(dir, "one.tar"), "one")
	stream, err := os.ReadFile(filepath.Join(dir, "one.tar"))
	do(err)
	gnuTar(t, filepath.Join(dir, "root"), string(stream))
	run1(t, exec.Command("tar", "-C", filepath.Join(dir, "root"), "-c", "--format=posix", "--acls", "--xattrs", "--xattrs-include=*", "-f", filepath.Join(dir, "gnu.tar"), "."))
	run1(t, exec.Command("tar", "-C", filepath.Join(dir, "root"), "-c", "--format=posix", "--acls", "-f", filepath.Join(dir, "names.tar"), "."))

	want := treetest.Read(t, tree, treetest.Whole())
	for _, from := range []string{"one", "gnu", "names"} {
		_, said := must(t, "image", "import", filepath.Join(dir, from+".tar"), "lists-"+from)
		if strings.Contains(said, "1 access control list that") != (from == "names") { // that of user daemon and group lp
			t.Errorf("%s.tar: import says %q", from, said)
		}
		name := "from-" + from
		must(t, "run", "-d", "--name", name, "--image", "oci:lists-"+from, "--", "/bin/sleep", "infinity")
		t.Cleanup(func() { must(t, "rm", "--force", name) })
		must(t, "cp", "-a", name+":/tmp/lists", filepath.Join(dir, name))
		got := treetest.Read(t, filepath.Join(dir, name), treetest.Whole())
		if from != "names" {
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s.tar (-want +got):\n%s", from, d)
			}
			continue
		}
		var st unix.Stat_t
		do(unix.Stat(filepath.Join(dir, name, "shared/narrow"), &st))
		if st.Mode&0o7777 != 0o700 { // 1000 may nothing, in the group or not
			t.Errorf("without its list a file has the mode %o, want 700", st.Mode&0o7777)
		}
	}
	// The kernel asks the list in the node too: it keeps the group out, and lets the user in.
	for user, may := range map[string]bool{"1:65534": true, "2:65534": true, "1000:65534": false, "2:2": false} {
		err := bench.Command("exec", "-u", user, "from-one", "--", "cat", "/tmp/lists/shared/narrow").Run()
		if (err == nil) != may {
			t.Errorf("user %s reads the file: %v, want %t", user, err, may)
		}
	}
	if err := bench.Command("exec", "-u", "2:65534", "from-one", "--", "sh", "-c", "echo >>/tmp/lists/shared/wide").Run(); err == nil {
		t.Error("the group, which may read, writes to the file: its list was lost and the mask became the group's rights")
	}
	if _, said := must(t, "image", "pack", "lists-one", "-o", filepath.Join(dir, "x.squashfs")); !strings.Contains(said, "no access control lists, and gives nobody more rights without them (3 files), no times before 1970 and after February 2106 (4 files)") ||
		strings.Count(said, "\n") != 1 {
		t.Errorf("image pack says %q", said)
	}
	must(t, "image", "rm", "file:"+filepath.Join(dir, "x.squashfs"))
}
