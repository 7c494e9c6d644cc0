package gateway

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/spec/vnode"
	"berth/internal/storage/mounts"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

func TestNFSLook(t *testing.T) {
	m := vnode.Mount{Source: "192.0.2.1:/export", Target: "/data", Gateway: vnode.NFSGateway, Map: vnode.Identity}
	if _, err := (NFS{}).Look(t.Context(), m, Node{}); refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "user namespace") {
		t.Errorf("without a user namespace: %v", err)
	}
	s, err := NFS{}.Look(t.Context(), m, Node{UserNS: true})
	if lacks := canNFS("/"); lacks != nil {
		if refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "no NFS client") {
			t.Errorf("a kernel without NFS: %v", err)
		}
		return
	}
	if err != nil || s.Path != "/export" || s.Server != netip.MustParseAddr("192.0.2.1") {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestCanNFS(t *testing.T) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	modules := "lib/modules/" + unix.ByteSliceToString(u.Release[:]) + "/modules.dep"
	for name, c := range map[string]struct {
		file, text string
		can        bool
	}{
		"nothing":  {},
		"built in": {"proc/filesystems", "nodev\tnfs\nnodev\tnfs4\n", true},
		"other":    {"proc/filesystems", "nodev\tproc\n\text4\n", false},
		"module":   {modules, "kernel/fs/nfs/nfs.ko.xz: a\nkernel/fs/nfs/nfsv4.ko.xz: kernel/fs/nfs/nfs.ko.xz\n", true},
		"v3 alone": {modules, "kernel/fs/nfs/nfsv3.ko: a\n", false},
	} {
		root := t.TempDir()
		if c.file != "" {
			path := filepath.Join(root, c.file)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(c.text), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		if err := canNFS(root); (err == nil) != c.can || err != nil && refuse.KindOf(err) != refuse.Cannot {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNFSPlan: the fence is up before the mount, the mount before it is put into the node.
func TestNFSPlan(t *testing.T) {
	s := Source{Path: "/export", FSType: "nfs4", Server: netip.MustParseAddr("2001:db8::1")}
	to := Node{Name: "one", UserNS: true, Layout: layout.New("/r"), Cgroups: host.Cgroups{V2: "/sys/fs/cgroup"}, Group: "berth/one"}
	m := vnode.Mount{Source: "files:/export", Target: "/data", Gateway: vnode.NFSGateway, Options: vnode.Options{"port": "20490", "rsize": "65536"}}
	for via, want := range map[string][]string{
		vnode.ViaNode: {
			"fence.ports the node's processes cannot reach port 2049, 20490, by cgroup BPF",
			"nfs.mount files:/export (2001:db8::1) by NFS in the node's network: hard,port=20490,proto=tcp6,rsize=65536,sec=sys,vers=4.2",
			"gateway.put it at /data",
		},
		vnode.ViaHost: {
			"fence.ports the node's processes cannot reach port 2049, 20490, by cgroup BPF",
			"nfs.share files:/export (2001:db8::1) by NFS in the host's network, one mount for all nodes: hard,nosharecache,port=20490,proto=tcp6,rsize=65536,sec=sys,vers=4.2",
			"gateway.put it at /data, read-only",
		},
	} {
		m.Via, m.ReadOnly = via, via == vnode.ViaHost
		w, err := NFS{}.Plan(m, s, to, "/r/stage/m0")
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, st := range w.After {
			got = append(got, st.Kind()+" "+st.String())
			if _, known := (NFS{}).Kinds()[st.Kind()]; !known {
				t.Errorf("%s is no kind of NFS", st.Kind())
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s:\n%s", via, diff)
		}
		if w.Mount == nil || w.Mount.Target != "/data" || w.Stage != nil {
			t.Errorf("%s: no place for it: %+v", via, w)
		}
	}
	// The fence must know the port that NFS 3 uses.
	m.Options = vnode.Options{"vers": "3"}
	if w, err := (NFS{}).Plan(m, s, to, "/r/stage/m0"); err != nil || !strings.HasSuffix(w.After[1].String(), "port=2049,proto=tcp6,sec=sys,vers=3") {
		t.Errorf("NFS 3: %v, %v", w.After, err)
	}
	to.Cgroups.V2 = ""
	if _, err := (NFS{}).Plan(m, s, to, "/r/stage/m0"); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("without cgroup v2: %v", err)
	}
}

// TestUsers: a mount ends with its last user of this boot, and its lock with it. Mounts do not wait for each other.
func TestUsers(t *testing.T) {
	u := users{mounts.Hold{Dir: filepath.Join(t.TempDir(), "all", "nfs-1")}}
	other := users{mounts.Hold{Dir: filepath.Join(filepath.Dir(u.hold.Dir), "nfs-2")}}
	err := u.alone(t.Context(), func() error {
		return errors.Join(u.add("one.m0"), u.add("two.m0"), os.WriteFile(u.dir()+"/old.m0", []byte("another boot"), 0o600),
			other.alone(t.Context(), func() error { return other.add("one.m1") }))
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"two"}, u.othersNodes("one.m0")); diff != "" || !u.has("one.m0") {
		t.Errorf("the other users: %s", diff)
	}
	ended := 0
	for _, user := range []string{"one.m0", "two.m0", "two.m0"} {
		if err := u.remove(t.Context(), user, func() error { ended++; return nil }); err != nil || ended == 0 && user == "two.m0" {
			t.Errorf("%s: %v, %d ends", user, err, ended)
		}
		if user == "one.m0" && ended != 0 {
			t.Error("the mount ended though it has a user")
		}
	}
	if err := other.remove(t.Context(), "one.m1", func() error { return nil }); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Dir(u.hold.Dir)); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// sharing is a stuck step whose mount another node uses.
type sharing struct{ stuck }

func (*sharing) Shared() (string, []string) { return "192.0.2.1", []string{"other"} }

// TestKillShared: the error says for whom the requests are kept.
func TestKillShared(t *testing.T) {
	err := Kill(t.Context(), []step.Step{&sharing{}}, func(context.Context) error { return errors.New("still there") })
	if refuse.KindOf(err) != refuse.Busy || !strings.Contains(err.Error(), "192.0.2.1, whose mount node other uses too") {
		t.Errorf("got %v", err)
	}
}

// stuck is a step whose mount keeps processes from their end until it is cut twice.
type stuck struct {
	step.Step
	cuts int
}

func (s *stuck) Cut() { s.cuts++ }

func (s *stuck) Lost() string {
	if s.cuts > 0 {
		return "some"
	}
	return ""
}

func TestKill(t *testing.T) {
	s := &stuck{}
	steps := []step.Step{s}
	if lost := Lost(steps); lost != nil {
		t.Errorf("lost %q", lost)
	}
	if err := Kill(t.Context(), steps, func(context.Context) error { return nil }); err != nil || s.cuts != 0 {
		t.Errorf("processes that end: %v, %d cuts", err, s.cuts)
	}
	err := Kill(t.Context(), steps, func(context.Context) error {
		if s.cuts < 2 {
			return errors.New("still there")
		}
		return nil
	})
	if err != nil || s.cuts != 2 {
		t.Errorf("processes that wait: %v, %d cuts", err, s.cuts)
	}
	if diff := cmp.Diff([]string{"some"}, Lost(steps)); diff != "" {
		t.Error(diff)
	}
	if err := Kill(t.Context(), steps, func(context.Context) error { return errors.New("still there") }); err == nil || s.cuts > 12 {
		t.Errorf("processes that never end: %v, %d cuts", err, s.cuts)
	}
}
