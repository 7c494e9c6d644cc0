// Package gatewaytest is the conformance suite of gateways: it checks against the kernel what each of them must guarantee.
package gatewaytest

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/spec/vnode"
	"berth/internal/storage/gateway"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
	"berth/test/testkit"
)

// Suite checks one gateway. Run needs root.
type Suite struct {
	Gateway gateway.Gateway
	// Source makes a file system that the gateway reaches. It is removed with the test.
	Source func(t *testing.T) Source
	// Files is how many files a node makes in one folder; 0: 20,000.
	Files int
	// Small makes one with room for less than 16 MiB; nil: the behaviour on a full disk is not checked.
	Small func(t *testing.T) Source
	// Quota makes one of a project that may have less than 8 MiB; nil: the behaviour at a quota is not checked.
	Quota func(t *testing.T) Source
	// Kept is how many files are written and read back; 0: 200.
	Kept int
	// Single: one node at a time can have the source.
	Single bool
	// Restart ends the source's server with all its connections, and starts it again; nil: there is no server.
	Restart func(t *testing.T)
	// Connect joins the network namespace of a process to the server's network; nil: nodes are in the host's network.
	Connect func(t *testing.T, pid int)
	// Start starts a node that has the mount; nil: a process in namespaces of its own, which is root there.
	Start func(t *testing.T, to gateway.Node, w gateway.Way, beneath func(dir string) error) (Node, error)
}

// Source is a file system for one test. It holds, owned by root:
//
//	file        "data"
//	up          a link to ../secret, which is beside it, in the same folder of the host
//	beneath/    an empty folder
type Source struct {
	Name string // as a spec names it
	Dir  string // where its files are on this host when no node uses it
	// Options are those of the mount.
	Options vnode.Options
	// Owner is the owner, at the source, of files made through a gateway with OneOwner or NoChown. It also owns the
	// files of the source.
	Owner uint32
	// Beneath mounts another, writable file system at beneath/, in the mount namespace in which the node is made. nil: the
	// gateway cannot see such a mount. dir is the staged source.
	Beneath func(dir string) error
}

// Node is a node that was started for a test.
type Node interface {
	// Run runs a shell script as the node's root in the folder where the mount is, and returns what it writes.
	Run(script string) (string, error)
	// Kill kills the node and waits for its end.
	Kill()
}

// Run runs the suite.
func (s Suite) Run(t *testing.T) {
	testkit.NeedsRoot(t)
	if s.Start == nil {
		s.Start = s.namespaces
	}
	t.Run("reads and writes", s.readsAndWrites)
	t.Run("identity", s.identity)
	t.Run("read-only", s.readOnly)
	t.Run("links", s.links)
	t.Run("posix", s.posix)
	t.Run("full disk", s.fullDisk)
	t.Run("what is written is there", s.kept)
	t.Run("mmap and many files", s.manyFiles)
	t.Run("locks of two nodes", s.locks)
	t.Run("server restarts", s.restarts)
	t.Run("node dies", s.dies)
	t.Run("source gone", s.sourceGone)
	t.Run("plan is pure", s.pure)
	t.Run("steps are read back", s.readBack)
	t.Run("killed between steps", s.killed)
	t.Run("helpers", s.helpers)
}

// deviates reports whether the gateway declares a deviation.
func (s Suite) deviates(d gateway.Deviation) bool { return slices.Contains(s.Gateway.Deviations(), d) }

func (s Suite) readsAndWrites(t *testing.T) {
	source := s.Source(t)
	want := "data\n0:0\nbeneath\nno mknod"
	if source.Beneath == nil {
		want = "data\n0:0\nno mknod"
	}
	if s.deviates(gateway.OneOwner) || s.deviates(gateway.NoChown) {
		want = "data\n0:0\nno chown\nno mknod"
	}
	got, err := s.inside(t, source, vnode.Mount{},
		`cat file; stat -c %u:%g file; echo new >new; chown 7:8 new 2>/dev/null || echo no chown; mountpoint -q beneath && echo 1 >beneath/x && echo beneath; cp /bin/true suid; chmod u+s suid; mknod null c 1 3 2>/dev/null || echo no mknod`)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var st unix.Stat_t
	uid, gid := uint32(7), uint32(8)
	if s.deviates(gateway.OneOwner) || s.deviates(gateway.NoChown) {
		uid, gid = source.Owner, source.Owner
	}
	if err := unix.Stat(source.Dir+"/new", &st); err != nil || st.Uid != uid || st.Gid != gid {
		t.Errorf("the node's 7:8 is %d:%d at the source, want %d:%d, %v", st.Uid, st.Gid, uid, gid, err)
	}
}

func (s Suite) identity(t *testing.T) {
	if s.deviates(gateway.OneOwner) {
		return // the owner is always that of the mount
	}
	source := s.Source(t)
	if err := os.Chown(source.Dir+"/file", 0, 0); err != nil { // the host's root, who is nobody in the node
		t.Fatal(err)
	}
	got, err := s.inside(t, source, vnode.Mount{Map: vnode.Identity},
		`cat file; stat -c %u:%g file; echo x 2>/dev/null >file || echo denied`)
	if err != nil || got != "data\n65534:65534\ndenied" {
		t.Errorf("got %q, %v", got, err)
	}
}

func (s Suite) readOnly(t *testing.T) {
	got, err := s.inside(t, s.Source(t), vnode.Mount{ReadOnly: true},
		`cat file; for f in file beneath/x; do (echo x >$f) 2>&1 | grep -o 'Read-only.*'; done; mount -o remount,bind,rw . 2>/dev/null || true; echo x 2>/dev/null >file && echo open || echo locked`)
	if err != nil || got != "data\nRead-only file system\nRead-only file system\nlocked" {
		t.Errorf("got %q, %v", got, err)
	}
}

// In the node a link resolves to the node's own files, not to the files beside the source.
func (s Suite) links(t *testing.T) {
	got, err := s.inside(t, s.Source(t), vnode.Mount{}, `cat up 2>/dev/null || echo nothing`)
	if err != nil || got != "nothing" {
		t.Errorf("got %q, %v", got, err)
	}
}

func (s Suite) sourceGone(t *testing.T) {
	source := s.Source(t)
	source.Beneath = nil
	b := s.bed(t, source, vnode.Mount{})
	if err := os.Rename(source.Dir, source.Dir+".old"); err != nil {
		t.Fatal(err)
	}
	_, err := s.Gateway.Look(t.Context(), b.mount, b.to)
	if late := err == nil; late != s.deviates(gateway.LateLook) || !late && refuse.KindOf(err) != refuse.NotFound {
		t.Errorf("look: %v", err)
	}
	if _, err := b.start(); refuse.KindOf(err) != refuse.NotFound {
		t.Errorf("start: %v", err)
	}
	b.end()
	if err := os.Rename(source.Dir+".old", source.Dir); err != nil {
		t.Error(err)
	}
}

// Plan needs neither the source nor the node, and gives the same answer twice.
func (s Suite) pure(t *testing.T) {
	mount := vnode.Mount{Source: s.Source(t).Name, Target: "/data", ReadOnly: true}
	source := gateway.Source{Path: "/not/here", FSType: "ext4"}
	var ways [2]gateway.Way
	for i := range ways {
		var err error
		if ways[i], err = s.Gateway.Plan(mount, source, gateway.Node{Name: "node", UserNS: true}, "/stage/0"); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(ways[0], ways[1], cmp.Exporter(func(reflect.Type) bool { return true })); diff != "" {
		t.Errorf("two plans differ:\n%s", diff)
	}
	w := ways[0]
	if w.Mount == nil || w.Stage == nil && len(w.After) == 0 {
		t.Errorf("nothing is mounted in the node: %+v", w)
	}
	if w.Mount != nil && w.Mount.Target != "/data" || w.Stage != nil && w.Stage.At != "/stage/0" {
		t.Errorf("got %+v, %+v", w.Stage, w.Mount)
	}
}

// readBack: Kinds names the kinds of all steps, and each step is read back from its record as it was.
func (s Suite) readBack(t *testing.T) {
	b := s.bed(t, s.Source(t), vnode.Mount{})
	kinds := map[string]bool{}
	for _, st := range b.steps() {
		again := b.decoded(st)
		if diff := cmp.Diff(st, again, cmp.Exporter(func(reflect.Type) bool { return true })); diff != "" || st.String() != again.String() {
			t.Errorf("%s is read back as %s:\n%s", st, again, diff)
		}
		kinds[st.Kind()] = true
	}
	if all := len(s.Gateway.Kinds()); len(kinds) > all || len(kinds) == 0 && all > 0 { // a test's node has no group to fence
		t.Errorf("the steps have %d kinds, Kinds %d", len(kinds), len(s.Gateway.Kinds()))
	}
}

// killed: a command that was killed before a step was journalled as done leaves nothing that Undo does not find by the
// record that was written before.
func (s Suite) killed(t *testing.T) {
	steps := len(s.bed(t, s.Source(t), vnode.Mount{}).steps())
	for last := range steps {
		source := s.Source(t)
		b := s.bed(t, source, vnode.Mount{})
		var records []step.Step
		n, err := b.startUntil(func(st step.Step) error {
			if len(records) > last {
				return nil
			}
			begun := b.decoded(st)
			if err := st.Do(t.Context()); err != nil {
				return err
			}
			b.noteHelpers(st)
			if len(records) < last { // done: the record has what Do filled in
				begun = b.decoded(st)
			}
			records = append(records, begun)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		n.Kill()
		for range 2 { // Undo is idempotent
			for _, record := range slices.Backward(records) {
				if err := record.Undo(t.Context()); err != nil {
					t.Errorf("undo %s after a kill in step %d: %v", record, last, err)
				}
			}
		}
		b.nothingLeft()
	}
}

// inside makes a node with the mount, runs a script in it, and ends the node.
func (s Suite) inside(t *testing.T, source Source, m vnode.Mount, script string) (string, error) {
	t.Helper()
	b := s.bed(t, source, m)
	n, err := b.start()
	if err != nil {
		return "", err
	}
	out, err := n.Run(script)
	n.Kill()
	b.end()
	return strings.TrimSpace(out), err
}

// Folder makes a Source in a folder of this host.
func Folder(t *testing.T) Source {
	t.Helper()
	return FolderIn(t, "")
}

// FolderIn makes one in a folder of a file system that is there; "": that of temporary files.
func FolderIn(t *testing.T, parent string) Source {
	t.Helper()
	return folder(t, tempDirIn(t, parent))
}

// SmallFolder makes one with room for 1 MiB.
func SmallFolder(t *testing.T) Source {
	t.Helper()
	top := tempDir(t)
	if err := unix.Mount("berth-small", top, "tmpfs", 0, "mode=0711,size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(top, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return folder(t, top)
}

func folder(t *testing.T, top string) Source {
	t.Helper()
	dir := filepath.Join(top, "source")
	for _, err := range []error{
		os.MkdirAll(dir+"/beneath", 0o755),
		os.WriteFile(dir+"/file", []byte("data\n"), 0o644),
		os.WriteFile(top+"/secret", []byte("secret\n"), 0o644),
		os.Symlink("../secret", dir+"/up"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return Source{Name: dir, Dir: dir, Beneath: func(dir string) error {
		return unix.Mount("berth-test", dir+"/beneath", "tmpfs", 0, "mode=0777")
	}}
}

// tempDir makes a folder that the node's root can pass through.
func tempDir(t *testing.T) string {
	t.Helper()
	return tempDirIn(t, "")
}

func tempDirIn(t *testing.T, parent string) string {
	t.Helper()
	top, err := os.MkdirTemp(parent, "berth-gateway-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(top) })
	if err := os.Chmod(top, 0o711); err != nil {
		t.Fatal(err)
	}
	return top
}

// Refused starts a node that its gateway refuses, checks that nothing of the attempt is left, and returns the error.
func Refused(t *testing.T, g gateway.Gateway, source Source) error {
	t.Helper()
	s := Suite{Gateway: g}
	s.Start = s.namespaces
	b := s.bed(t, source, vnode.Mount{})
	n, err := b.start()
	if n != nil {
		n.Kill()
	}
	b.end()
	return err
}
