// Command probe tries inside a node what a node must not do. It writes the result of each attempt as JSON: "ok" or the name of
// the kernel's error. It is one static program, so it also runs in an empty image.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: probe WHAT [ARG…]")
		os.Exit(2)
	}
	args := os.Args[2:]
	answer := map[string]func([]string) any{
		"refused": func([]string) any { return tried(refused()) },
		"read":    func(paths []string) any { return each(paths, read) },
		"write":   func(paths []string) any { return each(paths, write) },
		"find":    func(a []string) any { return find(a[0], a[1]) },
		"open":    func(dirs []string) any { return reachable(dirs) },
		"fds":     func([]string) any { return descriptors() },
		"status":  func(a []string) any { return status(a[0]) },
		"prctls":  func([]string) any { return prctls() },
		"devices": func([]string) any { return devices() },
		"pids":    func([]string) any { return numbers("/proc") },
		"signal":  func(pids []string) any { return each(pids, signal) },
		"socket":  func(names []string) any { return each(names, connect) },
		"install": func(a []string) any { return each(a, install) },
		"empower": func(a []string) any { return each(a, empower) },
		"links":   func(a []string) any { return each(a, os.Readlink) },
		"streams": func([]string) any { return streams() },
		"spoof":   func(a []string) any { return spoof(a) },
		"hog":     func(a []string) any { return hog(a[0]) },
		"stalk":   func([]string) any { return stalk() },
		"reach":   func([]string) any { return reach() },
		"bomb":    func([]string) any { return bomb() },
		"hoard":   func(a []string) any { return hoard(a[0], a[1], a[2]) },
		"sockets": func([]string) any { return sockets() },
		"output":  func([]string) any { return output() },
		"sleep":   func([]string) any { return sleep() },
		"identity": func([]string) any {
			return map[string]int{"uid": os.Getuid(), "gid": os.Getgid(), "umask": syscall.Umask(0)}
		},
	}[os.Args[1]]
	if answer == nil {
		fmt.Fprintf(os.Stderr, "probe: unknown %q\n", os.Args[1])
		os.Exit(2)
	}
	if err := json.NewEncoder(os.Stdout).Encode(answer(args)); err != nil {
		os.Exit(1)
	}
	if slices.Contains(args, "stay") { // keeps its memory and files
		sleep()
	}
}

// name returns "ok" for nil, else the kernel's name of the error.
func name(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &errno):
		if n := unix.ErrnoName(errno); n != "" {
			return n
		}
		return "errno " + strconv.Itoa(int(errno))
	}
	return err.Error()
}

// each calls do with every argument and collects the results: the text that do returns, or name of its error.
func each(args []string, do func(string) (string, error)) map[string]string {
	all := map[string]string{}
	for _, a := range args {
		text, err := do(a)
		if all[a] = name(err); err == nil && text != "" {
			all[a] = text
		}
	}
	return all
}

func tried(all map[string]func() error) map[string]string {
	result := map[string]string{}
	for n, do := range all {
		result[n] = name(do())
	}
	return result
}

// read reads the first byte of a file.
func read(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b := make([]byte, 64)
	n, err := f.Read(b)
	if n == 0 && err != nil {
		return "nothing", nil
	}
	return "read " + strings.TrimSpace(string(b[:n])), nil
}

// write opens PATH=TEXT for writing and writes the text.
func write(arg string) (string, error) {
	path, text, _ := strings.Cut(arg, "=")
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(text))
	return "", err
}

// find searches below top for files whose name contains word, and tries to read each.
func find(top, word string) map[string]string {
	all := map[string]string{}
	_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, _ error) error {
		if path == "/proc" || path == "/sys" {
			return fs.SkipDir
		}
		if d != nil && strings.Contains(d.Name(), word) && !d.IsDir() {
			text, err := read(path)
			if all[path] = name(err); err == nil {
				all[path] = text
			}
		}
		return nil // skips closed folders
	})
	return all
}

// reachable lists what this process can open for reading or writing below some folders.
func reachable(dirs []string) []string {
	var all []string
	for _, top := range dirs {
		_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.Type()&fs.ModeSymlink != 0 {
				return nil //nolint:nilerr // closed
			}
			for how, flag := range map[string]int{"r": unix.O_RDONLY, "w": unix.O_WRONLY} {
				fd, err := unix.Open(path, flag|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
				if err == nil {
					unix.Close(fd)
					all = append(all, how+" "+path)
				}
			}
			return nil
		})
	}
	return all
}

// descriptors returns the open files of this process and of process 1: number to target.
func descriptors() map[string]map[string]string {
	all := map[string]map[string]string{}
	for _, pid := range []string{"self", "1"} {
		all[pid] = map[string]string{}
		dir := "/proc/" + pid + "/fd"
		for _, fd := range numbers(dir) {
			target, err := os.Readlink(filepath.Join(dir, strconv.Itoa(fd)))
			if err != nil || pid == "self" && strings.HasPrefix(target, "/proc/") || goOwn(target) {
				continue
			}
			all[pid][strconv.Itoa(fd)] = target
		}
	}
	return all
}

// goOwn reports whether Go's runtime has opened the file: its poller, or the CPU limit of its cgroup.
func goOwn(target string) bool {
	base := filepath.Base(target)
	return strings.HasPrefix(target, "anon_inode:") || strings.HasPrefix(target, "/sys/fs/cgroup/") && (strings.HasPrefix(base, "cpu.cfs_") || base == "cpu.max")
}

func numbers(dir string) []int {
	var all []int
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			all = append(all, n)
		}
	}
	return all
}

// status returns /proc/PID/status as a map.
func status(pid string) map[string]string {
	text, err := os.ReadFile("/proc/" + pid + "/status")
	all := map[string]string{}
	if err != nil {
		all["error"] = err.Error()
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		all[key] = strings.TrimSpace(value)
	}
	return all
}

// devices lists the device nodes below /dev: path to type and number.
func devices() map[string]string {
	all := map[string]string{}
	_ = filepath.WalkDir("/dev", func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err != nil || unix.Lstat(path, &st) != nil {
			return nil //nolint:nilerr // closed
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFCHR:
			all[path] = fmt.Sprintf("c %d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
		case unix.S_IFBLK:
			all[path] = fmt.Sprintf("b %d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
		}
		return nil
	})
	return all
}
