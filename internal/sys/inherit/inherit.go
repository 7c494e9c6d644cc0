// Package inherit frees this process of the state that it has from its caller and would pass on to nodes: CPU affinity, priorities,
// resource limits and the like. What the kernel lets nobody take off is refused.
package inherit

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
)

// state is one kind of state that a process has from its parent.
type state struct {
	name string       // for people, as in docs/SECURITY.md
	free func() error // sets it to what a process has that nobody changed
}

func states() []state {
	status := sync.OnceValues(readStatus)
	return []state{
		{"seccomp filter", noMoreThanFirst(status, "Seccomp_filters", "a seccomp filter", decimal)},
		{"no_new_privs", noMoreThanFirst(status, "NoNewPrivs", "no_new_privs", decimal)},
		{"capability bounding set", noMoreThanFirst(status, "CapBnd", "a smaller bounding set of capabilities", missing)},
		{"Landlock domain", noLandlock},
		{"time namespace", noTimeNamespace},
		{"memory-deny-write-execute", noMDWE},
		{"securebits", noSecurebits},
		{"resource limits", freeLimits},
		{"CPU affinity", eachThread(freeAffinity)},
		{"scheduling policy", eachThread(freeScheduler)},
		{"nice level", eachThread(freeNice)},
		{"I/O priority", eachThread(freeIOPriority)},
		{"memory policy", freeMemoryPolicy},
		{"timer slack", freeTimerSlack},
		{"personality", freePersonality},
		{"transparent huge pages off", switchOff(unix.PR_GET_THP_DISABLE, unix.PR_SET_THP_DISABLE)},
		{"merging of equal pages", switchOff(unix.PR_GET_MEMORY_MERGE, unix.PR_SET_MEMORY_MERGE)},
		{"memory failure policy", freeMemoryFailure},
		{"I/O flusher", freeIOFlusher},
		{"coredump filter", freeCoredumpFilter},
		{"open files", keepFiles},
	}
}

// Names returns what Free frees this process of, or refuses.
func Names() (all []string) {
	for _, s := range states() {
		all = append(all, s.name)
	}
	return all
}

// Free frees all threads of this process of the state of its caller, once. State that cannot be taken off is refused, with its name:
// refuse.Cannot. A seccomp filter, no_new_privs, a bounding set or a hard resource limit that process 1 of the host has as well is the
// host's own, and stays.
var Free = sync.OnceValue(free)

func free() error {
	for _, s := range states() {
		err := s.free()
		switch {
		case err == nil:
		case refuse.KindOf(err) != refuse.Failed:
			return err
		case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
			return refuse.Cannotf(remedy, "berth has its %s from its caller, which nodes would inherit, and may not take it off: %w", s.name, err)
		default:
			return fmt.Errorf("take off the caller's %s: %w", s.name, err)
		}
	}
	return nil
}

const remedy = "start it from a shell or service without that"

func stuck(what string) error {
	return refuse.Cannotf(remedy, "the caller of berth gives it %s, which nodes would inherit and nobody can take off", what)
}

// status is what /proc/PID/status says of this process and of process 1 of the host.
type status struct{ own, first string }

func readStatus() (status, error) {
	own, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return status{}, err
	}
	first, err := os.ReadFile("/proc/1/status")
	return status{string(own), string(first)}, err
}

// field returns a line of a status; "" on a kernel without it.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// noMoreThanFirst refuses a restriction of this process that process 1 of the host does not have.
func noMoreThanFirst(read func() (status, error), name, what string, more func(own, first string) bool) func() error {
	return func() error {
		s, err := read()
		if err == nil && more(field(s.own, name), field(s.first, name)) {
			return stuck(what)
		}
		return err
	}
}

// decimal reports whether a number is larger than that of process 1.
func decimal(own, first string) bool {
	a, errA := strconv.Atoi(own)
	b, errB := strconv.Atoi(first)
	return errA == nil && errB == nil && a > b
}

// missing reports whether process 1 has a bit that this process lacks.
func missing(own, first string) bool {
	a, errA := strconv.ParseUint(own, 16, 64)
	b, errB := strconv.ParseUint(first, 16, 64)
	return errA == nil && errB == nil && b&^a != 0
}

// noLandlock refuses a Landlock domain (landlock(7)), which /proc does not show. One that has rules of files lets nobody change mounts:
// to unmount the root as idle is EPERM then, else EINVAL, always (hook_sb_umount in security/landlock/fs.c, do_umount in fs/namespace.c).
// One that has rules of TCP refuses with EACCES to bind a port, or to connect to one; a connection to all hosts is never tried.
func noLandlock() error {
	const version = 1 // LANDLOCK_CREATE_RULESET_VERSION
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, version); errno != 0 {
		return nil // the kernel has none, or it is off
	}
	if err := unix.Unmount("/", unix.MNT_EXPIRE); errors.Is(err, unix.EPERM) {
		return stuck("a Landlock domain, which forbids mounts")
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil // no IPv4: no port to bind
	}
	defer unix.Close(fd)
	bound := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	connected := unix.Connect(fd, &unix.SockaddrInet4{Addr: [4]byte{255, 255, 255, 255}, Port: 9}) // ENETUNREACH (tcp_v4_connect in net/ipv4/tcp_ipv4.c)
	if errors.Is(bound, unix.EACCES) || errors.Is(connected, unix.EACCES) {
		return stuck("a Landlock domain, which forbids TCP ports")
	}
	return nil
}

// keepFiles keeps open files, but for the standard streams, from programs that are started from now on, unless they are given to them.
func keepFiles() error { return unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) }

// noTimeNamespace refuses a time namespace (time_namespaces(7)), which a process of several threads cannot leave: the clocks of nodes would
// differ from the host's, and the starts of their processes from what the journals say.
func noTimeNamespace() error {
	own, err := os.Readlink("/proc/self/ns/time_for_children")
	if err != nil {
		return nil //nolint:nilerr // a kernel without
	}
	first, err := os.Readlink("/proc/1/ns/time")
	if err != nil { // process 1 may be nobody's to look at: then the kernel's first one counts (PROC_TIME_INIT_INO in linux/proc_ns.h)
		first = "time:[4026531834]"
	}
	if first != own {
		return stuck("a time namespace of its own")
	}
	return nil
}

// noMDWE refuses PR_SET_MDWE (kernel 6.3): nodes could not make code at run time.
func noMDWE() error {
	got, err := unix.PrctlRetInt(unix.PR_GET_MDWE, 0, 0, 0, 0)
	if err == nil && got != 0 {
		return stuck("memory-deny-write-execute (PR_SET_MDWE)")
	}
	return nil // an older kernel
}

// noSecurebits takes off the bits that change what root and set-user-id programs get (capabilities(7)); locked ones stay, and are refused.
func noSecurebits() error {
	got, err := unix.PrctlRetInt(unix.PR_GET_SECUREBITS, 0, 0, 0, 0)
	if err != nil || got == 0 {
		return err
	}
	if err := onAll(unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, 0); err != nil {
		return stuck(fmt.Sprintf("securebits %#x", got))
	}
	return nil
}

// eachThread makes of a function for one thread one for all threads of this process. All have what the first one has, until it is freed. A
// thread that a thread starts meanwhile is found by another look.
func eachThread(free func(tid int) (changed bool, err error)) func() error {
	return func() error {
		again, err := free(os.Getpid())
		if err != nil {
			return err
		}
		for again {
			again = false
			tasks, err := os.ReadDir("/proc/self/task")
			if err != nil {
				return err
			}
			for _, task := range tasks {
				tid, err := strconv.Atoi(task.Name())
				if err != nil {
					continue
				}
				changed, err := free(tid)
				if err != nil && !errors.Is(err, unix.ESRCH) {
					return err
				}
				again = again || changed
			}
		}
		return nil
	}
}
