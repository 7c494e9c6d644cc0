// Package proc identifies processes, and says whether one still runs and how it ended.
//
// A process id alone names nothing for long: the kernel gives it to another process later. With the time at which the
// process started it is unique until the next boot.
package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// ID identifies a process for as long as the host runs.
type ID struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // in clock ticks since boot
}

// Of returns the identity of the process that has this id now. A zombie counts.
func Of(pid int) (ID, error) {
	s, err := Read(pid)
	return ID{PID: pid, Start: s.Start}, err
}

// Self returns the identity of this process.
func Self() (ID, error) { return Of(os.Getpid()) }

// Alive reports whether the process runs. One whose first thread alone has ended lives on in its other threads. A process
// that cannot be looked at, because this one has no file descriptor left for example, counts as running: acts on the end
// of a process cannot be undone.
func (id ID) Alive() bool {
	s, err := Read(id.PID)
	if err != nil {
		return !Gone(err)
	}
	return s.Start == id.Start && !s.Ended()
}

// Open returns a pidfd of the process; a zombie counts. The error is unix.ESRCH if the process is gone, also if
// its id belongs to another one now; any other error leaves open whether it runs. The caller closes the file.
func (id ID) Open() (*os.File, error) {
	// Nonblocking, so that Wait needs no thread (Linux 5.10).
	fd, err := unix.PidfdOpen(id.PID, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", id.PID, err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	now, err := Of(id.PID) // asked after the pidfd was opened: the number cannot change hands any more
	if err == nil && now != id || Gone(err) {
		err = unix.ESRCH
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open process %d: %w", id.PID, err)
	}
	return f, nil
}

// Stat has the fields of /proc/PID/stat (proc_pid_stat(5)) that are needed.
type Stat struct {
	State   byte   // 'R', 'S', 'Z' …
	Flags   uint64 // the kernel's own
	Parent  int    // 0: none
	Threads int    // number of threads
	Start   uint64 // when the process started, in clock ticks since boot

	exit string // its wait status, if it is a zombie
}

// Read reads the stat of a process. The error is fs.ErrNotExist or unix.ESRCH if there is no such process: see Gone.
func Read(pid int) (Stat, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Stat{}, fmt.Errorf("read process %d: %w", pid, err)
	}
	s, err := parse(b)
	if err != nil {
		return Stat{}, fmt.Errorf("read process %d: %w", pid, err)
	}
	return s, nil
}

// Gone reports whether an error means that the process does not exist.
func Gone(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// Indexes of the fields of stat behind the name: of field 3, the first, and of fields 4, 9, 20, 22 and 52.
const (
	stateField   = 0
	parentField  = 1
	flagsField   = 6
	threadsField = 17
	startField   = 19
	exitField    = 49
)

func parse(text []byte) (Stat, error) {
	// The name (field 2) may hold anything, but it ends at the last parenthesis.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) <= startField {
		return Stat{}, fmt.Errorf("its stat has %d fields", len(fields)+2)
	}
	s := Stat{State: fields[stateField][0]}
	var errs [4]error
	s.Parent, errs[0] = strconv.Atoi(string(fields[parentField]))
	s.Threads, errs[1] = strconv.Atoi(string(fields[threadsField]))
	s.Start, errs[2] = strconv.ParseUint(string(fields[startField]), 10, 64)
	s.Flags, errs[3] = strconv.ParseUint(string(fields[flagsField]), 10, 64)
	if len(fields) > exitField {
		s.exit = string(fields[exitField])
	}
	return s, errors.Join(errs[:]...)
}

// exiting is PF_EXITING of the kernel's include/linux/sched.h.
const exiting = 4

// Ending reports whether the process has ended, or is about to: of a PID namespace's first process the kernel ends all others
// before it is a zombie.
func (id ID) Ending() bool {
	s, err := Read(id.PID)
	if err != nil {
		return Gone(err)
	}
	return s.Start != id.Start || s.Ended() || s.Threads <= 1 && s.Flags&exiting != 0
}

// Waits returns the kernel's function in which a thread of a process waits so that no signal ends it (state D of
// proc_pid_stat(5), and its wchan); "" if none of its threads does.
func Waits(pid int) (where string) {
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)) // gone: it waits for nothing
	for _, t := range tasks {
		dir := fmt.Sprintf("/proc/%d/task/%s", pid, t.Name())
		text, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue
		}
		if s, err := parse(text); err != nil || s.State != 'D' {
			continue
		}
		if in, err := os.ReadFile(dir + "/wchan"); err == nil && len(in) > 0 && string(in) != "0" {
			return string(in)
		}
		return "the kernel"
	}
	return ""
}

// Name returns the kernel's name of a process: the first 15 bytes of its program's name, unless it has given itself another;
// "" if it is gone.
func Name(pid int) string {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	return string(bytes.TrimSuffix(text, []byte("\n")))
}

// Ended reports whether no thread of the process runs any more: it is dead, or a zombie.
func (s Stat) Ended() bool { return s.State == 'X' || s.State == 'Z' && s.Threads <= 1 }
