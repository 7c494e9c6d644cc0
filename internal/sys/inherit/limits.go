package inherit

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
)

const infinity = ^uint64(0) // RLIM_INFINITY

// hardFiles is how many files a process of a node may have open whose spec does not say: as systemd lets services raise it.
const hardFiles = 512 << 10

// limit is what a process has of a resource that nobody limited.
type limit struct {
	name       string // as in a spec
	resource   int
	soft, hard uint64
	least      bool // a lower hard limit that cannot be raised breaks nodes: it is refused. Else it stays
	first      bool // as process 1 has it: what the host's admin chose, or the kernel by the size of the memory
}

// limits are the kernel's own (INIT_RLIMITS in include/asm-generic/resource.h), but for open files.
func limits() []limit {
	return []limit{
		{name: "cpu", resource: unix.RLIMIT_CPU, soft: infinity, hard: infinity, least: true},
		{name: "fsize", resource: unix.RLIMIT_FSIZE, soft: infinity, hard: infinity, least: true},
		{name: "data", resource: unix.RLIMIT_DATA, soft: infinity, hard: infinity, least: true},
		{name: "stack", resource: unix.RLIMIT_STACK, soft: 8 << 20, hard: infinity},
		{name: "core", resource: unix.RLIMIT_CORE, soft: 0, hard: infinity},
		{name: "rss", resource: unix.RLIMIT_RSS, soft: infinity, hard: infinity},
		{name: "nproc", resource: unix.RLIMIT_NPROC, first: true},
		{name: "nofile", resource: unix.RLIMIT_NOFILE, soft: hardFiles, hard: hardFiles},
		{name: "memlock", resource: unix.RLIMIT_MEMLOCK, first: true},
		{name: "as", resource: unix.RLIMIT_AS, soft: infinity, hard: infinity, least: true},
		{name: "locks", resource: unix.RLIMIT_LOCKS, soft: infinity, hard: infinity},
		{name: "sigpending", resource: unix.RLIMIT_SIGPENDING, first: true},
		{name: "msgqueue", resource: unix.RLIMIT_MSGQUEUE, soft: 819200, hard: 819200},
		{name: "nice", resource: unix.RLIMIT_NICE},
		{name: "rtprio", resource: unix.RLIMIT_RTPRIO},
		{name: "rttime", resource: unix.RLIMIT_RTTIME, soft: infinity, hard: infinity},
	}
}

// after is what a process gets that has a limit: no lower hard limit if it could not raise it again.
func (l limit) after(has unix.Rlimit, raises bool) unix.Rlimit {
	if raises {
		return unix.Rlimit{Cur: l.soft, Max: l.hard}
	}
	return unix.Rlimit{Cur: l.soft, Max: max(l.hard, has.Max)}
}

// freeLimits gives this process the limits of a process that nobody limited. Without CAP_SYS_RESOURCE no hard limit can be raised: then
// one on time, size of files or address space is refused, as no program expects it, unless process 1 has it too, and others stay as they
// are. None is lowered then, because the spec of a node may ask for as much.
func freeLimits() error {
	raises := mayRaise()
	for _, l := range limits() {
		if l.first {
			var first unix.Rlimit
			if err := unix.Prlimit(1, l.resource, nil, &first); err != nil {
				continue // another user's process 1, as in a container
			}
			l.soft, l.hard = first.Cur, first.Max
		}
		if l.resource == unix.RLIMIT_NOFILE {
			most := mostFiles()
			l.soft, l.hard = min(l.soft, most), min(l.hard, most)
		}
		var has unix.Rlimit
		if err := unix.Getrlimit(l.resource, &has); err != nil {
			return err
		}
		want := l.after(has, raises)
		if has == want && l.resource != unix.RLIMIT_NOFILE { // package syscall gives children the soft limit of files that this process had at first, until it is set
			continue
		}
		err := unix.Setrlimit(l.resource, &want)
		if errors.Is(err, unix.EPERM) && has.Max < want.Max {
			if l.least && !firstHas(l.resource, has.Max) {
				return refuse.Cannotf(remedy+", or with CAP_SYS_RESOURCE", "the caller of berth gives it a hard resource limit (ulimit) of %d for %s, which nodes would inherit", has.Max, l.name)
			}
			want.Cur, want.Max = min(want.Cur, has.Max), has.Max
			err = unix.Setrlimit(l.resource, &want)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
	}
	return nil
}

// firstHas reports whether process 1 of the host has no more than this hard limit either, as in a container that has it.
func firstHas(resource int, hard uint64) bool {
	var first unix.Rlimit
	return unix.Prlimit(1, resource, nil, &first) == nil && first.Max <= hard
}

// mostFiles is the largest limit of open files that the kernel takes.
func mostFiles() uint64 {
	text, err := os.ReadFile("/proc/sys/fs/nr_open")
	n, bad := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || bad != nil {
		return hardFiles
	}
	return n
}

// mayRaise reports whether this process may raise hard limits: CAP_SYS_RESOURCE.
func mayRaise() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	return unix.Capget(&header, &sets[0]) == nil && sets[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// NodeFiles returns the limit of open files, soft and hard, for a node whose spec has none. A soft one that is lower would not last: runc,
// a program of Go, raises its own while it starts, and may do so after it was given the node's. 0 without CAP_SYS_RESOURCE: the process that
// starts the node may have a lower hard limit than this one, and gives it that.
func NodeFiles() uint64 {
	if !mayRaise() {
		return 0
	}
	return min(mostFiles(), hardFiles)
}
