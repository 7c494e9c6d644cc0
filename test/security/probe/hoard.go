package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hoarded is the result of an attempt to hold kernel memory or entries of a kernel table.
type hoarded struct {
	Held    int64  `json:"held"`    // bytes: of sockets as the kernel counts them, else as they were written
	Made    int    `json:"made"`    // number of sockets, files or other objects
	Charged int64  `json:"charged"` // growth of the memory that is counted for the node
	Stopped string `json:"stopped"` // what ended it: "ok", or the kernel's error
}

// hold makes one more object that holds kernel memory, and returns its bytes.
type hold func() (int64, error)

// hoarders returns a new hold function for each kind of object.
var hoarders = map[string]func() hold{
	"tcp":      tcpPairs,
	"udp":      func() hold { return udpSocket },
	"unix":     func() hold { return unixPair },
	"usersock": func() hold { return userSocket },
	"answers":  func() hold { return unreadAnswers },
	"pipe":     func() hold { return fullPipe },
	"memfd":    func() hold { return memfd },
	"shm":      func() hold { return files("/dev/shm", 1<<20) },
	"inodes":   func() hold { return files("/dev/shm", 0) },
	"mqueue":   messageQueues,
	"sysvmsg":  func() hold { return messages },
	"sysvshm":  func() hold { return segment },
	"sysvsem":  func() hold { return semaphores },
	"timers":   func() hold { return timer },
	"ptys":     func() hold { return terminal },
	"inotify":  func() hold { return inotify },
	"aio":      func() hold { return aio },
}

// hoard holds objects until it has limit bytes or most objects, or the kernel refuses.
func hoard(kind, limit, most string) any {
	bytes, err := strconv.ParseInt(limit, 10, 64)
	number, err2 := strconv.Atoi(most)
	if err != nil || err2 != nil || hoarders[kind] == nil {
		return map[string]string{"error": "usage: hoard KIND BYTES NUMBER"}
	}
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) == nil {
		l.Cur = l.Max
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &l)
	}
	before := charged()
	var h hoarded
	more := hoarders[kind]()
	for err = nil; h.Held < bytes && h.Made < number; h.Made++ {
		var n int64
		if n, err = more(); err != nil {
			break
		}
		h.Held += n
	}
	h.Charged, h.Stopped = charged()-before, name(err)
	return h
}

// charged returns the memory usage of the node's cgroup.
func charged() int64 {
	for _, f := range []string{"memory/memory.usage_in_bytes", "memory.current"} {
		if text, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", f)); err == nil {
			n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
			return n
		}
	}
	return 0
}

var block = make([]byte, 32<<10)

// queued returns the bytes queued in sockets, received and not yet sent, as the kernel counts them (SO_MEMINFO).
func queued(fds ...int) (all int64) {
	for _, fd := range fds {
		var info [16]uint32
		size := uint32(unsafe.Sizeof(info))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
			uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
		if errno == 0 {
			all += int64(info[0]) + int64(info[2])
		}
	}
	return all
}

// large requests the largest possible socket buffers.
func large(fds ...int) {
	for _, fd := range fds {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 64<<20)
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 64<<20)
	}
}

// fill sends until the queue of fd stops growing.
func fill(fd int, send func() error) error {
	for before := int64(-1); queued(fd) > before; {
		before = queued(fd)
		for range 64 {
			if err := send(); err != nil {
				if queued(fd) == 0 {
					return err
				}
				break
			}
		}
	}
	if queued(fd) == 0 {
		return unix.ENOBUFS
	}
	return nil
}

// tcpPairs makes connections over the loopback that nobody reads.
func tcpPairs() hold {
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err == nil {
		err = unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	}
	if err == nil {
		err = unix.Listen(l, 64)
	}
	return func() (int64, error) {
		if err != nil {
			return 0, err
		}
		at, err := unix.Getsockname(l)
		if err != nil {
			return 0, err
		}
		from, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			return 0, err
		}
		large(from, l)
		if err := unix.Connect(from, at); err != nil {
			return 0, err
		}
		to, _, err := unix.Accept(l)
		if err != nil {
			return 0, err
		}
		for range 1 << 14 {
			if unix.Sendto(from, block, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil) != nil {
				break
			}
		}
		return queued(from, to), nil //nolint:nilerr // full
	}
}

func udpSocket() (int64, error) {
	to, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return 0, err
	}
	large(to)
	if err := unix.Bind(to, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, err
	}
	at, err := unix.Getsockname(to)
	if err != nil {
		return 0, err
	}
	from, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(from)
	err = fill(to, func() error { return unix.Sendto(from, block, 0, at) })
	return queued(to), err
}

func unixPair() (int64, error) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	large(p[0], p[1])
	for unix.Send(p[0], block, unix.MSG_NOSIGNAL) == nil {
	}
	return queued(p[0], p[1]), nil
}

// userSocket makes a netlink socket that another process of the node fills.
func userSocket() (int64, error) {
	to, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_NONBLOCK, unix.NETLINK_USERSOCK)
	if err != nil {
		return 0, err
	}
	if err := unix.Bind(to, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, err
	}
	at, err := unix.Getsockname(to)
	if err != nil {
		return 0, err
	}
	err = fill(to, func() error { return unix.Sendto(to, block, unix.MSG_DONTWAIT, at) })
	return queued(to), err
}

// unreadAnswers makes a netlink socket that sends unknown requests to the kernel and reads no answers.
func unreadAnswers() (int64, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return 0, err
	}
	ask := struct {
		length uint32
		what   uint16
		flags  uint16
		_      [2]uint32
	}{16, 0x7ff, unix.NLM_F_REQUEST | unix.NLM_F_ACK, [2]uint32{}}
	one := unsafe.Slice((*byte)(unsafe.Pointer(&ask)), 16)
	many := []byte(strings.Repeat(string(one), 16))
	kernel := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	err = fill(fd, func() error { return unix.Sendto(fd, many, unix.MSG_DONTWAIT, kernel) })
	return queued(fd), err
}

func fullPipe() (held int64, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_NONBLOCK); err != nil {
		return 0, err
	}
	_, _ = unix.FcntlInt(uintptr(p[1]), unix.F_SETPIPE_SZ, 1<<20)
	for {
		n, err := unix.Write(p[1], block)
		if err != nil {
			return held, nil //nolint:nilerr // full
		}
		held += int64(n)
	}
}

func memfd() (int64, error) {
	fd, err := unix.MemfdCreate("hoard", 0)
	if err != nil {
		return 0, err
	}
	n, err := unix.Write(fd, block)
	return int64(n), err
}

// files makes files of the given size. An empty file counts as 1,000 bytes, about what the kernel needs for it.
func files(dir string, size int) func() (int64, error) {
	made, text := 0, make([]byte, size)
	return func() (int64, error) {
		made++
		err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("hoard-%d-%d", size, made)), text, 0o600)
		return int64(max(size, 1000)), err
	}
}

func messageQueues() hold {
	made := 0
	return func() (held int64, err error) {
		made++
		path, err := unix.BytePtrFromString(fmt.Sprintf("hoard%d", made))
		if err != nil {
			return 0, err
		}
		attr := [8]int64{1: 10, 2: 8192}
		fd, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(path)), unix.O_CREAT|unix.O_RDWR|unix.O_NONBLOCK, 0o600, uintptr(unsafe.Pointer(&attr)), 0, 0)
		if errno != 0 {
			return 0, errno
		}
		for {
			if _, _, errno := unix.Syscall6(unix.SYS_MQ_TIMEDSEND, fd, uintptr(unsafe.Pointer(&block[0])), 8192, 0, 0, 0); errno != 0 {
				return held, nil //nolint:nilerr // full
			}
			held += 8192
		}
	}
}

func messages() (held int64, err error) {
	id, _, errno := unix.Syscall(unix.SYS_MSGGET, 0, 0o1600, 0)
	if errno != 0 {
		return 0, errno
	}
	message := make([]byte, 8+8192)
	message[0] = 1
	for {
		if _, _, errno := unix.Syscall6(unix.SYS_MSGSND, id, uintptr(unsafe.Pointer(&message[0])), 8192, 0o4000, 0, 0); errno != 0 {
			return held, nil //nolint:nilerr // full
		}
		held += 8192
	}
}

func segment() (int64, error) {
	id, err := unix.SysvShmGet(0, 1<<20, 0o1600)
	if err != nil {
		return 0, err
	}
	at, err := unix.SysvShmAttach(id, 0, 0)
	if err != nil {
		return 0, err
	}
	for i := 0; i < len(at); i += 4096 {
		at[i] = 1
	}
	return int64(len(at)), nil
}

func semaphores() (int64, error) {
	const number, each = 32000, 64
	if _, _, errno := unix.Syscall(unix.SYS_SEMGET, 0, number, 0o1600); errno != 0 {
		return 0, errno
	}
	return number * each, nil
}

func timer() (int64, error) {
	var id int32
	if _, _, errno := unix.Syscall(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, 0, uintptr(unsafe.Pointer(&id))); errno != 0 {
		return 0, errno
	}
	return 0, nil
}

func terminal() (int64, error) {
	_, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY, 0)
	return 0, err
}

func inotify() (int64, error) {
	_, err := unix.InotifyInit1(0)
	return 0, err
}

func aio() (int64, error) {
	var context uintptr
	if _, _, errno := unix.Syscall(unix.SYS_IO_SETUP, 1000, uintptr(unsafe.Pointer(&context)), 0); errno != 0 {
		return 0, errno
	}
	return 0, nil
}
