package fault

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"berth/internal/host/netif"
	"berth/test/testkit"
)

// snapshot lists everything on the host that Berth could leave behind, one item per line, sorted. It omits values that differ
// from start to start: pids, inodes, the random MAC of a veth's outer end, and whether a link has a carrier: the kernel says that later,
// on a busy machine by seconds.
type snapshot []string

func (w *world) snapshot() snapshot {
	w.Helper()
	var s snapshot
	s = append(s, w.mounts()...)
	s = append(s, w.links()...)
	for _, d := range w.cgroupDirs() {
		s = append(s, "cgroup "+d)
	}
	s = append(s, w.loops()...)
	s = append(s, w.firewall()...)
	s = append(s, w.processLines()...)
	s = append(s, w.files()...)
	s.sort()
	return s
}

func (s snapshot) sort() { slices.Sort(s) }

// settled waits until the host is in one of the allowed states, because the kernel ends processes and links with a delay. It
// returns the state's name, and fails the test if the host does not come into one of them.
func (w *world) settled(what string, states map[string]snapshot, allowed ...string) string {
	w.Helper()
	var now snapshot
	name := ""
	if testkit.Happens(func() bool {
		now = w.snapshot()
		for _, name = range allowed {
			if slices.Equal(now, states[name]) {
				return true
			}
		}
		return false
	}) {
		return name
	}
	if slices.Equal(allowed, []string{"none"}) {
		w.Log(testkit.FinalMark + "something is left")
	}
	for _, name = range allowed {
		w.Errorf("%s: the host is not %s (-%s +now):\n%s", what, strings.Join(allowed, " or "), name, cmp.Diff(states[name], now))
	}
	w.FailNow()
	return ""
}

// mount is a line of mountinfo.
type mount struct{ number, at, kind, rest string }

func (m mount) key() string { return m.number + " " + m.at }

func (w *world) mountinfo() []mount {
	w.Helper()
	text, err := os.ReadFile("/proc/thread-self/mountinfo")
	testkit.Must(w, err)
	var all []mount
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		dash := slices.Index(f, "-")
		all = append(all, mount{number: f[0], at: f[4], kind: f[dash+1], rest: strings.Join(f[dash+1:], " ")})
	}
	return all
}

// mounts lists the kernel's own mounts and those that were made in this world.
func (w *world) mounts() []string {
	w.Helper()
	var all []string
	for _, m := range w.mountinfo() {
		if !w.foreign[m.key()] {
			all = append(all, "mount "+m.at+" "+m.rest)
		}
	}
	return all
}

func (w *world) links() []string {
	var links []netlink.Link
	testkit.Happens(func() bool { // a dump is interrupted when the list changes meanwhile
		var err error
		links, err = w.h.LinkList()
		return err == nil
	})
	var all []string
	for _, l := range links {
		a := l.Attrs()
		line := fmt.Sprintf("link %s %s mtu %d %v %v alt %v", a.Name, l.Type(), a.MTU, a.Flags&^net.FlagRunning, a.Alias, a.AltNames)
		if !strings.HasPrefix(a.Name, "berth-") {
			line += " " + a.HardwareAddr.String()
		}
		addrs, err := w.h.AddrList(l, netlink.FAMILY_ALL)
		if err != nil {
			continue // gone meanwhile
		}
		for _, ad := range addrs {
			if !ad.IP.IsLinkLocalUnicast() {
				line += " " + ad.IPNet.String()
			}
		}
		all = append(all, line)
	}
	return all
}

// firewall lists the rules of nftables, and the settings that decide what the host forwards.
func (w *world) firewall() []string {
	w.Helper()
	out, err := exec.Command("nft", "-s", "list", "ruleset").Output()
	if errors.Is(err, exec.ErrNotFound) {
		return nil // its tests skip
	}
	testkit.Must(w, err)
	var all []string
	for line := range strings.Lines(string(out)) {
		all = append(all, "nft "+strings.TrimRight(line, "\n"))
	}
	for _, name := range []string{"forwarding", "force_forwarding", "accept_ra"} {
		files, _ := filepath.Glob("/proc/sys/net/ipv[46]/conf/*/" + name)
		for _, f := range files {
			text, _ := os.ReadFile(f) // its link may be gone
			if port := strings.Contains(f, "/"+netif.PortPrefix); !port && len(text) > 0 {
				all = append(all, "setting "+f+" "+strings.TrimSpace(string(text)))
			}
		}
	}
	return all
}

// cgroupDirs lists the groups of this root in all hierarchies, inner ones first.
func (w *world) cgroupDirs() []string {
	tops := slices.Collect(maps.Values(w.cg.V1))
	if w.cg.V2 != "" {
		tops = append(tops, w.cg.V2)
	}
	slices.Sort(tops)
	var all []string
	for _, top := range slices.Compact(tops) {
		mine, _ := filepath.Glob(filepath.Join(top, w.l.CgroupParent()+"*"))
		for _, d := range mine {
			_ = filepath.WalkDir(d, func(p string, e fs.DirEntry, err error) error {
				if err == nil && e.IsDir() {
					all = append(all, p)
				}
				return nil
			})
		}
	}
	slices.Reverse(all)
	return all
}

func (w *world) loops() []string {
	var all []string
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(text), w.dir+"/") {
			all = append(all, "loop device of "+strings.TrimSpace(string(text)))
		}
	}
	return all
}

// process is a process that belongs to this root.
type process struct {
	pid    int
	zombie bool
	keeper bool
	cmd    string
}

// processes returns the processes that name the root, are in one of its cgroups, or see its mounts. Zombies count only if
// they are children of the keeper, which must reap them; the host's init reaps all others.
func (w *world) processes() []process {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	testkit.Must(w, err)
	var all []process
	parents, keepers, seen := map[int]int{}, map[int]bool{}, map[string]bool{}
	for _, d := range dirs {
		stat, err := os.ReadFile(d + "/stat")
		if err != nil {
			continue
		}
		f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		p := process{zombie: f[0] == "Z" || f[0] == "X"}
		p.pid, _ = strconv.Atoi(filepath.Base(d))
		parents[p.pid], _ = strconv.Atoi(f[1])
		cmd, _ := os.ReadFile(d + "/cmdline")
		p.cmd = strings.ReplaceAll(strings.TrimRight(string(cmd), "\x00"), "\x00", " ")
		p.keeper = p.cmd == "berth --root "+w.root+" keeper" || strings.HasPrefix(p.cmd, "berth --root "+w.root+" keeper --given ")
		keepers[p.pid] = p.keeper
		if p.pid == os.Getpid() { // its first thread may be the one with the world's namespaces
			continue
		}
		if p.zombie || w.isMine(d, p, seen) {
			all = append(all, p)
		}
	}
	return slices.DeleteFunc(all, func(p process) bool { return p.zombie && !keepers[parents[p.pid]] })
}

// isMine reports whether a process belongs to this root. It reads the mounts of each namespace once and caches the answer in seen.
func (w *world) isMine(proc string, p process, seen map[string]bool) bool {
	groups, _ := os.ReadFile(proc + "/cgroup")
	if strings.Contains(p.cmd, w.root) || strings.Contains(string(groups), "/"+w.l.CgroupParent()) {
		return true
	}
	ns, err := os.Readlink(proc + "/ns/mnt")
	mine, known := seen[ns]
	if err == nil && !known {
		mounts, _ := os.ReadFile(proc + "/mountinfo")
		mine = strings.Contains(string(mounts), " "+w.root)
		seen[ns] = mine
	}
	return mine
}

var tempName = regexp.MustCompile(`[0-9]{4,}`)

func (w *world) processLines() []string {
	var all []string
	for _, p := range w.processes() {
		if p.keeper && !p.zombie {
			all = append(all, w.keeperHolds(p.pid)...)
			continue
		}
		all = append(all, "process "+tempName.ReplaceAllString(p.cmd, "N"))
	}
	return all
}

// keeperHolds lists the namespaces that the keeper keeps alive by a thread or a descriptor, and node files that it has open.
func (w *world) keeperHolds(pid int) []string {
	var all []string
	proc := fmt.Sprintf("/proc/%d", pid)
	for i, kind := range []string{"net", "mnt"} {
		tasks, _ := filepath.Glob(proc + "/task/*/ns/" + kind)
		for _, t := range tasks {
			if ns, err := os.Readlink(t); err == nil && ns != w.ns[i] {
				all = append(all, "keeper has a thread in "+kind)
			}
		}
	}
	fds, _ := filepath.Glob(proc + "/fd/*")
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && (strings.HasPrefix(to, "net:") || strings.HasPrefix(to, "mnt:") || strings.HasPrefix(to, w.l.RunNodes())) {
			all = append(all, "keeper holds "+to)
		}
	}
	return all
}

// base lists the files that Berth makes once for all nodes and keeps, as it keeps the folders around them.
var base = []string{
	"lib/images/layers", "lib/images/layers/sha256", "lib/images/lock", "lib/images/records", "lib/images/tmp", "lib/images/unpack", "lib/images/use",
	"lib/images/packed", "lib/images/packed/files", "lib/images/packed/lock", "lib/images/packed/merged", "lib/images/packed/records",
	"lib/events/events", "lib/runtime.json", "lib/runtime-machine.json", "lib/site-id",
	"run/keeper.lock", "run/keeper.log", "run/keeper.sock", "run/netserve.lock", "run/probe.lock",
}

// files lists the files under the root, except base and what a node wrote to its own root. The lock file of an existing node
// is left out, because any command may make it.
func (w *world) files() []string {
	var all []string
	_ = filepath.WalkDir(w.root, func(p string, e fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(w.root, p)
		dir := filepath.Dir(rel)
		switch {
		case err != nil || rel == "." || slices.Contains(base, rel):
			return nil //nolint:nilerr // it went while we looked
		case e.IsDir() && strings.Count(rel, "/") < 2 && !strings.HasPrefix(e.Name(), "probe-"):
			return nil
		case dir == "run/locks":
			if _, err := os.Stat(w.l.Node(filepath.Base(rel)).Lib); err == nil {
				return nil
			}
		case filepath.Base(dir) == "delta", dir == "lib/images/layers/sha256", dir == "run/runtime":
			all = append(all, "file "+rel)
			if e.IsDir() { // its content belongs to the node, the image or the runtime
				return fs.SkipDir
			}
			return nil
		case strings.HasSuffix(rel, "/runtime.log"), strings.HasSuffix(rel, "/log"), strings.HasSuffix(rel, "/log.times"):
			return nil
		}
		if dir == "lib/macs" { // MACs differ from site to site
			rel = dir + "/MAC"
		}
		if strings.HasPrefix(dir, "lib/images/packed/") { // each packed file has another digest
			rel = dir + "/DIGEST"
		}
		all = append(all, "file "+rel+fileDetail(p, e))
		return nil
	})
	return all
}

func fileDetail(path string, e fs.DirEntry) string {
	if e.Type()&fs.ModeSymlink == 0 {
		return ""
	}
	to, _ := os.Readlink(path)
	return " → " + to
}
