package lab_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/image/imagetest"
	"berth/test/built"
	"berth/test/lab"
	"berth/test/sample"
	"berth/test/testkit"
)

// cut is one power cut into an act.
type cut struct {
	powerAct
	point string // the fault point at which the act is stopped; "": it has ended
}

// fileSystems are those under Berth's roots, with their options of mount. None writes back by itself: what is not synced is lost.
var fileSystems = []struct{ kind, quiet, options string }{
	{"ext4", "-q", "noauto_da_alloc,commit=3600"},
	{"xfs", "-q", "noatime"},
	{"btrfs", "-q", "commit=3600"},
}

// power is a machine whose power is cut, with several roots of Berth's, each alone on its disk: what one of them syncs is not on the
// disk of another.
type power struct {
	m     *lab.VM
	roots []root
}

type root struct {
	name  string
	lane  int    // which acts it gets
	begin string // of each script
	kept  string // what may not be lost, as it was before the power cut
}

// TestPowerCut kills the emulator in the middle of acts and right after their end: on ext4, XFS and btrfs what was not flushed is lost, what
// a program had synced and what a command had said is there.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	var lanes [][]cut
	rounds := 0
	w := sample.Of(t)
	for _, acts := range powerActs {
		var cuts []cut
		for _, a := range acts {
			for _, points := range a.inside {
				for _, p := range sample.Some(w, 1, points...) {
					cuts = append(cuts, cut{a, p})
				}
			}
			cuts = append(cuts, cut{powerAct: a})
		}
		lanes, rounds = append(lanes, cuts), max(rounds, len(cuts))
	}
	p := newPower(t, len(lanes))
	for round := range rounds {
		began := time.Now()
		of := func(r root, round int) *cut {
			if round < 0 || round >= len(lanes[r.lane]) {
				return nil
			}
			return &lanes[r.lane][round]
		}
		p.each(t, "prepare", func(r root) string {
			if c := of(r, round); c != nil {
				return c.before
			}
			return ""
		})
		p.m.OK(t, "sync")
		p.each(t, "act", func(r root) string {
			c := of(r, round)
			if c == nil {
				return ""
			}
			if c.point == "" {
				return c.does("''")
			}
			return c.does(`"` + c.point + `"`)
		})
		said := p.each(t, "what is kept", func(r root) string {
			if c := of(r, round); c != nil && c.keeps != "" {
				return c.keeps
			}
			return "kept"
		})
		acted := time.Since(began).Seconds()
		p.m.Kill()
		p.boot(t)
		for i, r := range p.roots {
			p.roots[i].kept = said[r.name]
		}
		p.each(t, "after the power cut", func(r root) string {
			c := of(r, round)
			if c == nil {
				return ""
			}
			what := "echo '" + c.name + ", cut at its end'"
			if c.point != "" {
				what = "echo '" + c.name + ", cut at " + c.point + "'"
			}
			return what + "\n" + c.after(c.point == "")
		})
		t.Logf("round %d of %d: acts %.0f s, boot and checks %.0f s", round+1, rounds, acted, time.Since(began).Seconds()-acted)
	}
}

// newPower starts the machine, with a disk for each root: one root for each lane and file system.
func newPower(t *testing.T, lanes int) *power {
	var disks []lab.Disk
	for range lanes * len(fileSystems) {
		disks = append(disks, lab.Disk{Size: 1 << 30})
	}
	dir := t.TempDir()
	testkit.Must(t, built.Berth(t.Context(), filepath.Join(dir, "berth"), built.Fault))
	testkit.Must(t, built.Agent(t.Context(), dir, built.Fault))
	testkit.Must(t, built.Site(t.Context(), dir))
	functions, err := os.ReadFile("testdata/power.sh")
	testkit.Must(t, err)
	archive := imagetest.Busybox(t)

	p := &power{m: lab.Start(t, lab.Options{Machines: []lab.Machine{{Memory: 2048, Disks: disks}}}).VM(0)}
	for _, name := range []string{"berth", "berthd", "berth-site"} {
		p.m.Copy(t, filepath.Join(dir, name), "/usr/local/bin/"+name)
	}
	p.m.Copy(t, archive, "/root/busybox.tar")
	p.m.Write(t, "/root/power.sh", string(functions))
	p.m.Write(t, "/root/program", `keep() {
	test -s $1 || cat /proc/sys/kernel/random/uuid >$1
	dd if=/dev/null of=$1 conv=notrunc,fsync 2>/dev/null
}
keep /kept
keep /x/kept
cat /kept /x/kept >/told/new
mv /told/new /told/synced
exec sleep 1000000
`)
	p.m.OK(t, `mkdir -p /srv/busybox/bin /srv/busybox/srv; cp /bin/busybox /srv/busybox/bin; mv /root/program /srv/busybox/srv
for a in sh cat dd sleep mv test; do ln -s busybox /srv/busybox/bin/$a; done`)
	for lane := range lanes {
		for i, f := range fileSystems {
			name := f.kind + string(rune('a'+lane))
			begin := fmt.Sprintf("N=%s F=%s QUIET=%s OPTIONS=%s D=/dev/disk/by-id/virtio-disk%d BOUND=%d\n. /root/power.sh\n",
				name, f.kind, f.quiet, f.options, lane*len(fileSystems)+i, int(5*testkit.Bound().Seconds()))
			p.roots = append(p.roots, root{name: name, lane: lane, begin: begin})
		}
	}
	p.prepare(t)
	p.each(t, "make the roots", func(root) string { return "first" })
	p.m.OK(t, `N=any; . /root/power.sh; berth image import /root/busybox.tar any; berth image pack any -o /root/foreign.erofs; mv /root/foreign.erofs /root/other.erofs; berth image rm any
berth image rm file:/root/foreign.erofs 2>/dev/null || true; sync`)
	return p
}

// boot switches the machine on again.
func (p *power) boot(t *testing.T) {
	t.Helper()
	p.m.Boot(t)
	p.prepare(t)
	p.each(t, "mount the roots", func(root) string { return "up" })
}

// prepare is what the machine needs after each boot: Berth's choice of a runtime, and that its kernel writes nothing back by itself. XFS
// pushes its log at the latest after two hours.
func (p *power) prepare(t *testing.T) {
	t.Helper()
	p.m.OK(t, "modprobe -a ext4 xfs btrfs loop erofs overlay || true; sysctl -qw vm.dirty_writeback_centisecs=0 vm.dirty_expire_centisecs=360000 fs.xfs.xfssyncd_centisecs=720000")
	choose(t, p.m, "/var/lib/berth")
}

// each runs a script for each root, all at once, and returns what each printed. A script that fails ends the test.
func (p *power) each(t *testing.T, what string, script func(root) string) map[string]string {
	t.Helper()
	var all strings.Builder
	all.WriteString("mkdir -p /run/power; cd /run/power; rm -f failed *.out\n")
	for _, r := range p.roots {
		if text := script(r); text != "" {
			p.m.Write(t, "/run/"+r.name+".kept", r.kept) // all of them are more than an argument may be long
			fmt.Fprintf(&all, "cat >%[1]s.sh <<'END OF THE SCRIPT'\nKEPT=$(cat /run/%[1]s.kept)\n%[2]s%[3]s\nEND OF THE SCRIPT\n(bash -eu %[1]s.sh >%[1]s.out 2>&1 || echo %[1]s >>failed) &\n",
				r.name, r.begin, text)
		}
	}
	const split = "root of the name "
	all.WriteString("wait\nfor r in $(cat failed 2>/dev/null || echo *.out); do r=${r%.out}; [ ! -e $r.out ] || { echo \"" + split + "$r\"; cat $r.out; }; done; [ ! -e failed ]\n")
	r := p.m.RunFor(t, 10*testkit.Bound(), "bash", "-c", all.String())
	if r.Code != 0 {
		t.Errorf("%s: exit code %d\n%s%s", what, r.Code, r.Out, r.Err)
	}
	said := map[string]string{}
	for _, part := range strings.Split(r.Out, split)[1:] {
		name, text, _ := strings.Cut(part, "\n")
		said[name] = strings.TrimSuffix(text, "\n")
	}
	return said
}
