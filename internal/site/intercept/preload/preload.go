// Package preload lets the threads of a file server put themselves into the groups of the nodes that they serve: the library
// berth-sync.so, which the server loads (LD_PRELOAD), does it after each receive. Only cgroup v1 has groups for single threads.
package preload

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Library is the file that servers load: berth-sync.c, made by make build.
const Library = "berth-sync.so"

// Own gives the server's user the right to move its own threads, and no others, into a group: on cgroup v1 the kernel checks
// whether the process that opened the file tasks has the effective uid of the thread that is moved, or its saved one, or is
// root (kernel/cgroup/cgroup-v1.c, __cgroup1_procs_write).
func Own(group string, uid int) error {
	path := filepath.Join(group, "tasks")
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err == nil && int(st.Uid) == uid {
		return nil
	}
	if err := os.Chown(path, uid, -1); err != nil {
		return fmt.Errorf("let the server's user %d put its threads into a group: %w", uid, err)
	}
	return nil
}

// Server is a running file server that has the library.
type Server struct {
	PID    int
	Moved  uint64 // how often one of its threads went into another group
	Failed uint64 // how often one could not, and stayed where it was
	Last   error  // why it could not the last time; nil if that never happened
	Other  bool   // its library is of another version than this program: what changed between them begins with its restart
}

// version is VERSION of berth-sync.c. Libraries from before it was counted have 0.
const version = 1

// variable tells the library which file system the server serves.
const variable = "BERTH_SYNC_DIR"

// Servers finds the processes that have the library for a file system, whose folder dir is (place.Dir), sorted by number: those of
// root and of the user to whom [Own] gave the groups. Any other user could start a process that looks like one.
func Servers(dir string) ([]Server, error) {
	user := 0
	var st syscall.Stat_t
	if err := syscall.Stat(filepath.Join(dir, "groups", "_server", "tasks"), &st); err == nil {
		user = int(st.Uid)
	}
	all, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []Server
	for _, e := range all {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if uid := effective(pid); uid != 0 && uid != user {
			continue
		}
		environ, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err != nil || !slices.Contains(strings.Split(string(environ), "\x00"), variable+"="+dir) {
			continue // another program, or it has ended
		}
		s, ok, err := counts(pid)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ESRCH) {
			return nil, fmt.Errorf("read what the threads of process %d did: %w", pid, err)
		}
		if ok {
			found = append(found, s)
		}
	}
	slices.SortFunc(found, func(a, b Server) int { return a.PID - b.PID })
	return found, nil
}

// effective reads the effective user of a process; -1 if it has ended. The owner of /proc/PID is another one for some processes.
func effective(pid int) int {
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return -1
	}
	_, line, _ := bytes.Cut(status, []byte("\nUid:"))
	if f := bytes.Fields(line); len(f) > 1 {
		if uid, err := strconv.Atoi(string(f[1])); err == nil {
			return uid
		}
	}
	return -1
}

// counts reads the library's counters: struct counts of berth-sync.c, in memory that has a name.
func counts(pid int) (Server, bool, error) {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	maps, err := os.ReadFile(filepath.Join(proc, "maps"))
	if err != nil {
		return Server{}, false, err
	}
	for line := range bytes.Lines(maps) {
		if !bytes.Contains(line, []byte("/memfd:berth-sync")) {
			continue
		}
		begin, _, _ := strings.Cut(string(line), "-")
		at, err := strconv.ParseInt(begin, 16, 64)
		if err != nil {
			return Server{}, false, fmt.Errorf("%s/maps: %q is no address", proc, begin)
		}
		memory, err := os.Open(filepath.Join(proc, "mem"))
		if err != nil {
			return Server{}, false, err
		}
		defer memory.Close()
		var b [32]byte
		if _, err := memory.ReadAt(b[:], at); err != nil {
			return Server{}, false, err
		}
		word := func(i int) uint64 { return binary.NativeEndian.Uint64(b[8*i:]) }
		s := Server{PID: pid, Moved: word(0), Failed: word(1), Other: word(3) != version}
		if s.Failed > 0 {
			s.Last = syscall.Errno(word(2))
		}
		return s, true, nil
	}
	return Server{}, false, nil
}
