package bed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/bench/result"
	"berth/internal/bench/side"
	"berth/internal/host"
	"berth/internal/host/block"
	"berth/internal/sys/refuse"
)

// Suspect is one ingredient of a node that may carry a row's loss.
type Suspect struct {
	Name string // "user-namespace"
	result.Tried
}

// Lineup holds the additional arms of berth bench explain, and the ingredients that they try.
type Lineup struct {
	Arms     []Side
	Suspects []Suspect
	Notes    []string // what was left out, and why

	now func(side.Arm) side.Arm // makes an arm use the settings as they were
}

// Trying says which ingredients are tried, and on which machine.
type Trying struct {
	Row        Job
	Device     string   // block device that is measured, "" for a file
	Writes     bool     // data may be written before trials
	Cores      int      // of the machine
	Jobs       []int    // other numbers of threads to try; default: 1 and 16 a core
	Schedulers bool     // change the device's I/O scheduler; it is put back
	Only       []string // names of suspects, or their part before the colon; empty: all
	Node       side.Arm // the node as it is
}

// Wants reports whether a suspect was asked for.
func (t Trying) Wants(name string) bool {
	kind, _, _ := strings.Cut(name, ":")
	return len(t.Only) == 0 || slices.Contains(t.Only, name) || slices.Contains(t.Only, kind)
}

// Settings adds the settings that both arms share: threads, CPUs, writes before the trial, the scheduler of the device. undo
// restores what Settings changes. It also runs if this process is killed.
func (l *Lineup) Settings(t Trying) (undo func() error, err error) {
	undo = func() error { return nil }
	jobs := t.Jobs
	if len(jobs) == 0 {
		jobs = []int{1, boundThreads * t.Cores}
	}
	for _, n := range jobs {
		if name := fmt.Sprintf("jobs:%d", n); n != t.Row.Threads && t.Wants(name) {
			l.Setting(name, fmt.Sprintf("the node's loss with %d threads, against that with %d", t.Row.Threads, n),
				side.WithJobs(side.Host, n), side.WithJobs(t.Node, n))
		}
	}
	switch cpu, err := lastCPU(); {
	case !t.Wants("cpu-placement"):
	case err != nil || t.Cores < 2:
		l.LeftOut("cpu-placement", "there is one CPU only")
	default:
		l.Setting("cpu-placement", "the node's loss where the kernel places the threads, against that on CPU "+cpu+" alone in both arms",
			side.OnCPU(side.Host, cpu), side.OnCPU(t.Node, cpu))
	}
	switch {
	case !t.Wants("preconditioning"):
	case !t.Writes:
		l.LeftOut("preconditioning", "the device is read only; --destroy-data lets it be written")
	default:
		l.Setting("preconditioning", "the node's loss as the data lies, against that right after a second of random 4 KiB writes",
			side.AfterWrites(side.Host, side.RandomWrites()), side.AfterWrites(t.Node, side.RandomWrites()))
	}
	if !t.Wants("scheduler") {
		return undo, nil
	}
	return l.schedulers(t)
}

func (l *Lineup) schedulers(t Trying) (undo func() error, err error) {
	undo = func() error { return nil }
	if !t.Schedulers {
		l.LeftOut("scheduler", "it is changed only with --schedulers, on the disk that --device names")
		return undo, nil
	}
	if t.Device == "" {
		return nil, refuse.Invalidf("--schedulers goes with --device: the scheduler of a disk is changed only where it is named")
	}
	disk, err := block.Resolve("/sys", t.Device)
	if err != nil {
		return nil, err
	}
	file, now, offered := side.Schedulers("/sys", disk.Name)
	if now == "" {
		return nil, refuse.Cannotf("leave --schedulers out", "%s has no I/O scheduler to change", disk.Name)
	}
	if undo, err = side.LastWill("echo " + side.Quoted(now) + " > " + side.Quoted(file)); err != nil {
		return nil, err
	}
	// Each arm sets its scheduler, also the arms of an ordinary run. Otherwise a trial would run with that of the trial before it.
	for i := range l.Arms {
		l.Arms[i].Run = side.WithScheduler(l.Arms[i].Run, file, now)
	}
	for _, s := range offered {
		if s != now && slices.Contains([]string{"none", "mq-deadline", "bfq"}, s) && t.Wants("scheduler:"+s) {
			l.Setting("scheduler:"+s, fmt.Sprintf("the node's loss under %s, against that under %s", now, s),
				side.WithScheduler(side.Host, file, s), side.WithScheduler(t.Node, file, s))
		}
	}
	l.now = func(a side.Arm) side.Arm { return side.WithScheduler(a, file, now) }
	return undo, nil
}

// AsItIs makes the arms of an ordinary run use the settings as they were.
func (l *Lineup) AsItIs(sides []Side) []Side {
	if l.now == nil {
		return sides
	}
	for i := range sides {
		sides[i].Run = l.now(sides[i].Run)
	}
	return sides
}

// Setting adds a pair of arms, host and node, that share a setting which the other arms do not have.
func (l *Lineup) Setting(name, what string, onHost, inNode side.Arm) {
	l.Arms = append(l.Arms, Side{Name: "host " + name, Run: onHost}, Side{Name: "node " + name, Run: inNode})
	l.Suspects = append(l.Suspects, Suspect{Name: name, Tried: result.Tried{Kind: result.Setting, What: what, With: result.Node, Without: result.Host, Base: &[2]string{"node " + name, "host " + name}}})
}

// Lacks adds a node without one ingredient. It is compared with the node, or with the arm with, which differs from it in that
// ingredient only.
func (l *Lineup) Lacks(name, what string, without side.Arm, with string) {
	if with == "" {
		with = result.Node
	}
	l.Arms = append(l.Arms, Side{Name: "node without " + name, Run: without})
	l.Suspects = append(l.Suspects, Suspect{Name: name, Tried: result.Tried{Kind: result.Removed, What: what, With: with, Without: "node without " + name}})
}

// Has adds two arms, with and without one ingredient. base names the two arms whose ratio there is without it.
func (l *Lineup) Has(name, what string, with, without Side, base *[2]string) {
	l.Arms = append(l.Arms, with, without)
	l.Suspects = append(l.Suspects, Suspect{Name: name, Tried: result.Tried{Kind: result.Added, What: what, With: with.Name, Without: without.Name, Base: base}})
}

// nodeToHost names the arms that show the loss of an ordinary node.
func (l *Lineup) nodeToHost() *[2]string { return &[2]string{result.Node, result.Host} }

// Overlay adds the node's data on its root's overlay instead of in a folder that is bound in. inNode is that node with
// the file as it sees it, onHost the host with the same file where the overlay keeps it.
func (l *Lineup) Overlay(inNode, onHost side.Arm) {
	l.Has("overlay", "the loss of a node whose data is on its overlay, against that of the node whose data is bound in",
		Side{Name: "node overlay", Run: inNode}, Side{Name: "host overlay's file", Run: onHost}, l.nodeToHost())
}

// Check refuses names in t.Only that are no suspects here.
func (l *Lineup) Check(t Trying) error {
	known := func(name string) bool {
		return name == "order" || slices.ContainsFunc(l.Suspects, func(s Suspect) bool {
			kind, _, _ := strings.Cut(s.Name, ":")
			return name == s.Name || name == kind
		}) || slices.ContainsFunc(l.Notes, func(n string) bool { return strings.HasPrefix(n, name+" is left out") })
	}
	for _, name := range t.Only {
		if !known(name) {
			return refuse.Invalidf("--only %s: there is no such ingredient here", name)
		}
	}
	return nil
}

// LayOutBeside writes a data file in a folder of the root of a node, on the file system that o measures, and returns its
// path. The file gets the owner of the folder, and is removed with the folder.
func LayOutBeside(ctx context.Context, o Storage, dir string) (string, error) {
	var here, there unix.Stat_t
	if err := unix.Stat(dir, &here); err != nil {
		return "", fmt.Errorf("find where the node's writes go: %w", err)
	}
	if err := unix.Stat(o.Dir, &there); err != nil {
		return "", fmt.Errorf("find the folder to measure in: %w", err)
	}
	if here.Dev != there.Dev {
		return "", fmt.Errorf("%s is on another disk than the node's writes (%s); --root can put these there", o.Dir, dir)
	}
	if err := CheckFolder(dir, 2*o.Size); err != nil { // the run's own file is still to come
		return "", err
	}
	path := filepath.Join(dir, DataFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return "", fmt.Errorf("create the data file: %w", err)
	}
	err = f.Chown(int(here.Uid), int(here.Gid))
	if err == nil {
		err = write(ctx, f, o.Size, func(int64, int64) {})
	}
	return path, errors.Join(err, f.Close())
}

// LeftOut records that a suspect cannot be tried here.
func (l *Lineup) LeftOut(name, why string) { l.Notes = append(l.Notes, name+" is left out: "+why) }

// lastCPU is the last of the CPUs that this process may use: the first often serves interrupts.
func lastCPU() (string, error) {
	for line := range strings.Lines(side.Word("/proc/self/status") + "\n") {
		if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
			list = strings.TrimSpace(list)
			return list[strings.LastIndexAny(list, ",-")+1:], nil
		}
	}
	return "", errors.New("the kernel does not say which CPUs may be used")
}

// deep is how deep the groups of the suspect "cgroup-depth" are nested.
const deep = 8

// Groups adds arms for the host in a cgroup of each controller, in cgroups of all controllers, and in nested cgroups. undo removes
// the groups. It also runs if this process is killed.
func (l *Lineup) Groups(t Trying, h host.Cgroups, pid int) (undo func() error, err error) {
	g := side.Groups{Base: fmt.Sprintf("berth-explain-%d", pid)}
	hierarchies := map[string][]string{} // mount to controllers
	for c, mount := range h.V1 {
		hierarchies[mount] = append(hierarchies[mount], c)
	}
	var all, nested []string
	for _, mount := range slices.Sorted(maps.Keys(hierarchies)) {
		slices.Sort(hierarchies[mount])
		name := strings.TrimPrefix(strings.Join(hierarchies[mount], ","), "name=")
		all = append(all, g.Add(mount, "all", "", 1))
		nested = append(nested, g.Add(mount, "deep", "", deep))
		if t.Wants("cgroup:" + name) {
			l.grouped("cgroup:"+name, "the host in a group of its own of the controller "+name+", against the host", g.Add(mount, name, "", 1))
		}
	}
	for _, c := range h.V2Enabled {
		if t.Wants("cgroup:" + c) {
			l.grouped("cgroup:"+c, "the host in a group of its own with the controller "+c+", against the host", g.Add(h.V2, c, c, 1))
		}
	}
	if h.V2 != "" {
		every := strings.Join(h.V2Enabled, " ")
		all = append(all, g.Add(h.V2, "all", every, 1))
		nested = append(nested, g.Add(h.V2, "deep", every, deep))
	}
	if len(all) > 0 && t.Wants("cgroups") {
		l.grouped("cgroups", "the host in a group of its own in every hierarchy, against the host", all...)
	}
	if len(nested) > 0 && t.Wants("cgroup-depth") {
		l.grouped("cgroup-depth", fmt.Sprintf("the host in groups nested %d deep in every hierarchy, against the host", deep), nested...)
	}
	undo, err = side.LastWill(g.Removal())
	if err != nil {
		return nil, err
	}
	if err := g.Make(); err != nil {
		return nil, errors.Join(err, undo())
	}
	return undo, nil
}

func (l *Lineup) grouped(name, what string, procs ...string) {
	l.Arms = append(l.Arms, Side{Name: "host " + name, Run: side.InGroups(procs...)})
	l.Suspects = append(l.Suspects, Suspect{Name: name, Tried: result.Tried{Kind: result.Added, What: what, With: "host " + name, Without: result.Host}})
}
