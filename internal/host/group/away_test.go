package group

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"berth/internal/host/group/grouptest"
)

// TestV2Return finds this process outside of a v2 group, in it, and where another group has the path.
func TestV2Return(t *testing.T) {
	h, dir := grouptest.Drawn(t)
	ino, _, _, err := Inode(dir)
	grouptest.Must(t, err)
	g := &Group{Path: "berth/wn", Root: "berth/wn/node", In: Hierarchies(h)}
	g.In[0].Inode = ino
	self := []int{os.Getpid()}
	r, err := g.Return(self, g.Root)
	grouptest.Must(t, err)
	if r == nil || len(r.Away) != 1 || !strings.Contains(r.Why(), "process "+strconv.Itoa(os.Getpid())) {
		t.Errorf("outside: %+v", r)
	}
	grouptest.Must(t, os.WriteFile(filepath.Join(dir, "node", "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())+"\n"), 0o644))
	if r, err = g.Return(self, g.Root); err != nil || r != nil {
		t.Errorf("inside: %+v, %v", r, err)
	}
	g.In[0].Inode++
	if r, err = g.Return(self, g.Root); err != nil || r == nil || len(r.Gone) != 1 || !strings.Contains(r.Why(), "gone from v2") {
		t.Errorf("another group has the path: %+v, %v", r, err)
	}
}
