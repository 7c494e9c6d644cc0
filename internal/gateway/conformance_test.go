package gateway

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/layout"
	"berth/internal/mounts"
	"berth/internal/refuse"
	"berth/internal/thread"
	"berth/internal/vnode"
)

// A member of the suite: a gateway, and how to make a source for it that holds these, owned by root:
//
//	file        "data"
//	up          a link to ../secret, which is beside the source
//	beneath/    another file system; made within the mount namespace of the test by prepare
type member struct {
	gateway Gateway
	source  func(t *testing.T) string
	prepare func(source string) error
}

func members() map[string]member {
	return map[string]member{
		"bind": {gateway: Bind{}, source: folder, prepare: func(source string) error {
			return unix.Mount("berth-test", source+"/beneath", "tmpfs", 0, "mode=0777")
		}},
	}
}

func folder(t *testing.T) string {
	t.Helper()
	top, err := os.MkdirTemp("", "berth-gateway-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(top) })
	source := filepath.Join(top, "source")
	for _, err := range []error{
		os.Chmod(top, 0o711),
		os.MkdirAll(source+"/beneath", 0o755),
		os.WriteFile(source+"/file", []byte("data\n"), 0o644),
		os.WriteFile(top+"/secret", []byte("secret\n"), 0o644),
		os.Symlink("../secret", source+"/up"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return source
}

// TestConformance checks what every gateway must guarantee.
func TestConformance(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts a file system")
	}
	for name, m := range members() {
		t.Run(name, func(t *testing.T) {
			t.Run("reads and writes", m.readsAndWrites)
			t.Run("identity", m.identity)
			t.Run("read-only", m.readOnly)
			t.Run("links", m.links)
			t.Run("source gone", m.sourceGone)
			t.Run("plan is pure", m.pure)
		})
	}
}

func (m member) readsAndWrites(t *testing.T) {
	source := m.source(t)
	got, err := m.run(t, vnode.Mount{Source: source, Target: "/data"},
		`cat file; stat -c %u:%g file; echo new >new; chown 7:8 new; echo 1 >beneath/x && echo beneath; cp /bin/true suid; chmod u+s suid; mknod null c 1 3 2>/dev/null || echo no mknod`)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("data\n0:0\nbeneath\nno mknod", got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var st unix.Stat_t
	if err := unix.Stat(source+"/new", &st); err != nil || st.Uid != 7 || st.Gid != 8 {
		t.Errorf("the node's 7:8 is %d:%d on the host, %v", st.Uid, st.Gid, err)
	}
}

func (m member) identity(t *testing.T) {
	got, err := m.run(t, vnode.Mount{Source: m.source(t), Target: "/data", Map: vnode.Identity},
		`cat file; stat -c %u:%g file; echo x 2>/dev/null >file || echo denied`)
	if err != nil || got != "data\n65534:65534\ndenied" {
		t.Errorf("got %q, %v", got, err)
	}
}

func (m member) readOnly(t *testing.T) {
	got, err := m.run(t, vnode.Mount{Source: m.source(t), Target: "/data", ReadOnly: true},
		`cat file; for f in file beneath/x; do (echo x >$f) 2>&1 | grep -o 'Read-only.*'; done; mount -o remount,bind,rw . 2>/dev/null || echo locked`)
	if err != nil || got != "data\nRead-only file system\nRead-only file system\nlocked" {
		t.Errorf("got %q, %v", got, err)
	}
}

// In the node a link resolves to the node's own files, not to the host's files beside the source.
func (m member) links(t *testing.T) {
	got, err := m.run(t, vnode.Mount{Source: m.source(t), Target: "/data"}, `cat up 2>/dev/null || echo nothing`)
	if err != nil || got != "nothing" {
		t.Errorf("got %q, %v", got, err)
	}
}

func (m member) sourceGone(t *testing.T) {
	source := m.source(t)
	mount := vnode.Mount{Source: source + "/file", Target: "/data"}
	s, err := m.gateway.Look(mount, node(t))
	if err != nil {
		t.Fatal(err)
	}
	way, err := m.gateway.Plan(mount, s, node(t), "/stage/0")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(source, source+".old"); err != nil {
		t.Fatal(err)
	}
	if _, err := m.gateway.Look(mount, node(t)); refuse.KindOf(err) != refuse.NotFound {
		t.Errorf("look: %v", err)
	}
	if err := m.enter(t, way, "true", nil, func() error { return nil }); refuse.KindOf(err) != refuse.NotFound {
		t.Errorf("start: %v", err)
	}
}

func (m member) pure(t *testing.T) {
	mount := vnode.Mount{Source: "/not/here", Target: "/data", ReadOnly: true}
	s := Source{Path: "/not/here", FSType: "ext4"}
	var ways [2]Way
	for i := range ways {
		var err error
		if ways[i], err = m.gateway.Plan(mount, s, Node{UserNS: true}, "/stage/0"); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(ways[0], ways[1]); diff != "" {
		t.Errorf("two plans differ:\n%s", diff)
	}
	if w := ways[0]; w.Mount.Target != "/data" || w.Stage.At != "/stage/0" {
		t.Errorf("got %+v", w)
	}
}

func node(t *testing.T) Node {
	return Node{UserNS: true, Layout: layout.New(t.TempDir())}
}

// run does a whole mount: look, plan, stage, bind as the runtime would, and run a script in it as the node's root.
func (m member) run(t *testing.T, mount vnode.Mount, script string) (string, error) {
	t.Helper()
	s, err := m.gateway.Look(mount, node(t))
	if err != nil {
		return "", err
	}
	way, err := m.gateway.Plan(mount, s, node(t), "/stage/0")
	if err != nil {
		return "", err
	}
	var out []byte
	err = m.enter(t, way, script, &out, func() error { return m.prepare(mount.Source) })
	return strings.TrimSpace(string(out)), err
}

func (m member) enter(t *testing.T, way Way, script string, out *[]byte, prepare func() error) error {
	t.Helper()
	dir := filepath.Dir(folder(t))
	stage := filepath.Join(dir, "stage")
	if err := os.Mkdir(stage, 0o711); err != nil {
		t.Fatal(err)
	}
	way.Stage.At = filepath.Join(stage, "0")
	p := &mounts.Plan{
		Dir:   stage,
		Root:  mounts.Root{At: filepath.Join(stage, "root"), Plain: dir},
		Stage: []mounts.Stage{way.Stage},
		IDs:   mounts.IDs{Base: 0x41240000, Size: 65536},
	}
	ids := []syscall.SysProcIDMap{{HostID: int(p.IDs.Base), Size: int(p.IDs.Size)}}
	err := thread.Own(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		if err := prepare(); err != nil {
			return err
		}
		if err := p.Enter(context.Background()); err != nil {
			return err
		}
		// Like a runtime, bind the staged mount in a mount namespace of the node's user namespace.
		cmd := exec.Command("/bin/sh", "-ec", "mount --"+way.Mount.Options[0]+" "+way.Stage.At+" "+way.Stage.At+"; cd "+way.Stage.At+"\n"+script)
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS, UidMappings: ids, GidMappings: ids,
			GidMappingsEnableSetgroups: true, Credential: &syscall.Credential{},
		}
		got, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, got)
		}
		if out != nil {
			*out = got
		}
		return nil
	})
	info, readErr := os.ReadFile("/proc/self/mountinfo")
	if readErr != nil || strings.Contains(string(info), dir) {
		t.Errorf("the host sees a mount of the node: %v\n%s", readErr, info)
	}
	return err
}
