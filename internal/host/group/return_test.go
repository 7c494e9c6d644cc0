package group

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/host/group/grouptest"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// TestV2Return finds this process outside of a v2 group, in it, and where another group has the path.
func TestV2Return(t *testing.T) {
	h, dir := grouptest.Drawn(t)
	ino, _, _, err := Inode(dir)
	testkit.Must(t, err)
	g := &Group{Path: "berth/wn", Root: "berth/wn/node", In: Hierarchies(h)}
	g.In[0].Inode = ino
	self := []int{os.Getpid()}
	r, err := g.Return(self, g.Root)
	testkit.Must(t, err)
	if r == nil || len(r.Away) != 1 || !strings.Contains(r.Why(), "process "+strconv.Itoa(os.Getpid())) {
		t.Errorf("outside: %+v", r)
	}
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "node", "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())+"\n"), 0o644))
	if r, err = g.Return(self, g.Root); err != nil || r != nil {
		t.Errorf("inside: %+v, %v", r, err)
	}
	g.In[0].Inode++
	if r, err = g.Return(self, g.Root); err != nil || r == nil || len(r.Gone) != 1 || !strings.Contains(r.Why(), "gone from v2") {
		t.Errorf("another group has the path: %+v, %v", r, err)
	}
}

// TestReturnToGone: a group of somebody else's that ends meanwhile is not made again. The container's own in the node's is.
func TestReturnToGone(t *testing.T) {
	h, _ := grouptest.Drawn(t)
	for to, made := range map[string]bool{"system.slice/x.service": false, "berth/wn/again": true} {
		g := &Group{Path: to}
		if made {
			g.Path = "berth/wn"
		}
		r := &Return{Group: g, To: to, Away: []Away{{PID: os.Getpid(), In: Hierarchies(h)[0]}}}
		testkit.Must(t, os.MkdirAll(filepath.Join(h.V2, "system.slice"), 0o755))
		if err := r.Do(t.Context()); err == nil { // a folder of plain files has no cgroup.procs
			t.Errorf("%s: it was moved", to)
		}
		if _, err := os.Stat(filepath.Join(h.V2, to)); (err == nil) != made {
			t.Errorf("%s is made: %v, %v", to, !made, err)
		}
	}
}

// TestV2Busy: who switches controllers on in a group that has processes of its own is told which these are, and what to do.
func TestV2Busy(t *testing.T) {
	h, dir := grouptest.Drawn(t)
	self := fmt.Sprintf("process %d %q", os.Getpid(), proc.Name(os.Getpid()))
	for at, want := range map[string]string{
		h.V2:              "run berth where the cgroup tree is its own, for example outside a container",
		filepath.Dir(dir): "end them, or move each into another group (echo PID >GROUP/cgroup.procs), and repeat",
		dir:               "if they are the node's: for p in $(cat " + dir + "/cgroup.procs); do echo $p >" + dir + "/node/cgroup.procs; done; berth repair; end or move others",
	} {
		testkit.Must(t, os.WriteFile(filepath.Join(at, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600))
		err := busy(at, unix.EBUSY)
		r, ok := errors.AsType[*refuse.Error](err)
		if !ok || r.Remedy != want || !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), self+" in "+at+" itself") {
			t.Errorf("%s: %v, want %q", at, err, want)
		}
	}
}
