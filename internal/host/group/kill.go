package group

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host"
)

// place is a group in one hierarchy.
type place struct {
	Hierarchy
	dir string
}

func (h Hierarchy) at(path string) place {
	return place{Hierarchy: h, dir: filepath.Join(h.Mount, path)}
}

// places returns the existing groups at a path, one for each hierarchy.
func places(h host.Cgroups, path string) []place {
	var all []place
	for _, hh := range Hierarchies(h) {
		p := hh.at(path)
		if _, err := os.Stat(p.dir); err == nil {
			all = append(all, p)
		}
	}
	return all
}

// There reports whether a group exists in any hierarchy.
func There(h host.Cgroups, path string) bool { return len(places(h, path)) > 0 }

// Members returns the processes in a group and in the groups inside it, in these hierarchies, in ascending order.
func Members(in []Hierarchy, path string) ([]int, error) {
	var all []place
	for _, h := range in {
		all = append(all, h.at(path))
	}
	return members(all)
}

// Procs returns the processes in a group and in the groups inside it, in ascending order. A group that does not exist has none.
func Procs(h host.Cgroups, path string) ([]int, error) { return members(places(h, path)) }

// Kill kills every process in a group and in the groups inside it, and returns when they have ended. A context without a
// deadline gets one of ten seconds.
func Kill(ctx context.Context, h host.Cgroups, path string) error {
	ctx, cancel := patience(ctx)
	defer cancel()
	return kill(ctx, places(h, path))
}

// Make makes a group in every hierarchy. It enables no v2 controller for the group, so Remove leaves nothing behind.
func Make(ctx context.Context, h host.Cgroups, path string) error {
	g := Group{Path: path, In: Hierarchies(h)}
	for i := range g.In {
		if g.In[i].V2 {
			g.In[i].Controllers = nil
		}
	}
	if err := g.Prepare(ctx); err != nil {
		return err
	}
	return g.Do(ctx)
}

// Remove kills every process in a group, and removes it in every hierarchy with the groups inside it.
// A group that is not there is no error. A context without a deadline gets one of ten seconds.
func Remove(ctx context.Context, h host.Cgroups, path string) error {
	g := Group{Path: path, In: Hierarchies(h)}
	return g.Undo(ctx)
}

func kill(ctx context.Context, in []place) error {
	_, _ = liftRates(in) // else a process that waits behind one does not end; stillThere names what waits all the same
	for {
		for _, p := range in {
			if p.V2 {
				if err := killV2(ctx, p.dir); err != nil {
					return err
				}
			}
		}
		pids, err := members(in)
		if err != nil || len(pids) == 0 {
			return err
		}
		if err := killRound(ctx, in, pids); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return stillThere(in[0].dir, pids, ctx.Err())
		}
	}
}

// killV2 writes cgroup.kill (kernel 5.14), which no fork outruns, and waits until cgroup.events says that the group is empty.
func killV2(ctx context.Context, dir string) error {
	err := WriteFile(filepath.Join(dir, "cgroup.kill"), "1")
	if Gone(err) {
		return nil // the group is gone, or the kernel is older: killRound kills
	}
	if err != nil {
		return err
	}
	events, err := os.Open(filepath.Join(dir, "cgroup.events"))
	if Gone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("watch the end of a group: %w", err)
	}
	defer events.Close()
	buf := make([]byte, 256)
	for ctx.Err() == nil {
		n, err := events.ReadAt(buf, 0)
		if n == 0 && Gone(err) || !strings.Contains(string(buf[:n]), "populated 1") {
			return nil
		}
		await(ctx, []unix.PollFd{{Fd: int32(events.Fd()), Events: unix.POLLPRI}})
	}
	return nil // kill reports the processes that are left
}

// watched bounds how many processes are waited for at a time: each costs a file descriptor.
const watched = 256

// killRound kills the processes that exist now and waits for some of them. If there is a freezer, it freezes them first so
// that none forks; a frozen process dies when it is thawed.
func killRound(ctx context.Context, in []place, pids []int) error {
	freezer := ""
	if i := slices.IndexFunc(in, func(p place) bool { return p.Has("freezer") }); i >= 0 {
		freezer = filepath.Join(in[i].dir, "freezer.state")
		if err := WriteFile(freezer, "FROZEN"); err != nil && !Gone(err) {
			return err
		}
		var err error
		if pids, err = members(in); err != nil { // with those forked before the freeze
			return errors.Join(err, WriteFile(freezer, "THAWED"))
		}
	}
	var wait []unix.PollFd
	defer func() { closeAll(wait) }()
	var failed error
	for some := range slices.Chunk(pids, watched) {
		fds, err := killSome(in, some)
		failed = errors.Join(failed, err)
		if wait == nil {
			wait = fds
			continue
		}
		closeAll(fds)
	}
	if freezer != "" {
		if err := WriteFile(freezer, "THAWED"); err != nil && !Gone(err) {
			failed = errors.Join(failed, err)
		}
	}
	if failed != nil {
		return failed
	}
	for left := wait; len(left) > 0 && ctx.Err() == nil; {
		await(ctx, left)
		left = slices.DeleteFunc(slices.Clone(left), func(p unix.PollFd) bool { return p.Revents != 0 })
	}
	return nil
}

func closeAll(fds []unix.PollFd) {
	for _, fd := range fds {
		_ = unix.Close(int(fd.Fd))
	}
}

// killSome kills processes of the group and returns their pidfds. A pid may have been reused, so it is looked up in the
// group again once its pidfd is open.
func killSome(in []place, pids []int) ([]unix.PollFd, error) {
	var fds []unix.PollFd
	held := make([]int, 0, len(pids))
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil { // the process has ended
			continue
		}
		fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		held = append(held, pid)
	}
	still, err := members(in)
	if err != nil {
		return fds, err
	}
	for i, pid := range held {
		if _, ours := slices.BinarySearch(still, pid); !ours {
			continue
		}
		if err := unix.PidfdSendSignal(int(fds[i].Fd), unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fds, fmt.Errorf("kill process %d: %w", pid, err)
		}
	}
	return fds, nil
}

// members returns the processes in the groups and in the groups inside them, in ascending order.
func members(in []place) ([]int, error) {
	all, err := listed(in, "cgroup.procs")
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(all)), nil
}

// listed returns the numbers in a file of groups and of the groups inside them: processes, or threads.
func listed(in []place, name string) (map[int]bool, error) {
	all := map[int]bool{}
	for _, p := range in {
		inner, err := groupsIn(p.dir)
		if err != nil {
			return nil, err
		}
		for _, dir := range append(inner, p.dir) {
			text, err := ReadFile(filepath.Join(dir, name))
			if Gone(err) || errors.Is(err, unix.EOPNOTSUPP) { // a threaded group: its processes are listed in the group above
				continue
			}
			if err != nil {
				return nil, err
			}
			for line := range strings.Lines(text) {
				if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 0 { // 0: a process outside this pid namespace
					all[pid] = true
				}
			}
		}
	}
	return all, nil
}

// groupsIn lists the groups inside a group, outer ones first.
func groupsIn(dir string) ([]string, error) {
	_, children, _, err := Inode(dir)
	if err != nil || !children {
		return nil, err
	}
	var inner []string
	err = filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		switch {
		case Gone(err):
			return nil // removed during the walk
		case err != nil:
			return err
		case e.IsDir() && p != dir:
			inner = append(inner, p)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the groups in %s: %w", dir, err)
	}
	return inner, nil
}

// defaultPatience is how long killed processes may take to end: a process in disk I/O ends when the I/O is done.
const defaultPatience = 10 * time.Second

func patience(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, defaultPatience)
}

// await waits for an event for a short time, so that the caller can check the context.
func await(ctx context.Context, fds []unix.PollFd) {
	if ctx.Err() == nil {
		_, _ = unix.Poll(fds, 50) // an interrupted wait is harmless: the caller loops
	}
}
