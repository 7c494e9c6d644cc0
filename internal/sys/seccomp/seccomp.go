// Package seccomp takes system calls from programs that do not need them: it is the last wall around a process that speaks to
// strangers and was taken over.
package seccomp

import (
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// doors are the system calls that no such process needs and that a break-in would begin with: other processes, other namespaces,
// and the kernel's widest doors. A list of what is allowed would have to follow Go's runtime.
var doors = []uint32{
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_GETFD,
	unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_OPEN_TREE,
	unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN, unix.SYS_MOUNT_SETATTR, unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, unix.SYS_KEYCTL, unix.SYS_ADD_KEY,
	unix.SYS_REQUEST_KEY, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_REBOOT, unix.SYS_SWAPON,
	unix.SYS_QUOTACTL, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_PERSONALITY, unix.SYS_VMSPLICE,
	unix.SYS_MKDIRAT, unix.SYS_UNLINKAT, unix.SYS_RENAMEAT2, unix.SYS_LINKAT, unix.SYS_SYMLINKAT, unix.SYS_FCHMODAT, unix.SYS_FCHOWNAT,
}

// programs are the calls that start another program.
var programs = []uint32{unix.SYS_EXECVE, unix.SYS_EXECVEAT}

// machines are the architectures by Go's name, as the kernel numbers them (AUDIT_ARCH_*).
var machines = map[string]uint32{"amd64": 0xc000003e, "arm64": 0xc00000b7, "riscv64": 0xc00000f3}

// Filter is what a process is kept from, beside what none needs.
type Filter struct {
	Start   bool // it may start programs
	Network bool // it may make sockets of the network; else those of AF_UNIX alone
}

// Process makes the kernel refuse the calls with EPERM, for all threads of this process, and what they start. On an architecture
// that is not known, and without seccomp in the kernel, it does nothing: the process has no rights in any case.
func (f Filter) Process() error { return f.set(unix.SECCOMP_FILTER_FLAG_TSYNC) }

// Thread does so for the calling thread alone, and what that starts.
func (f Filter) Thread() error { return f.set(0) }

func (f Filter) set(flags uintptr) error {
	machine, known := machines[runtime.GOARCH]
	if !known {
		return nil
	}
	program := f.program(machine)
	p := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&p)))
	if errno != 0 && errno != unix.ENOSYS && errno != unix.EINVAL { // a kernel without seccomp
		return fmt.Errorf("filter system calls: %w", errno)
	}
	return nil
}

// program is the filter in the kernel's words (struct seccomp_data: nr at 0, arch at 4, the low half of the first argument at 16 on
// these architectures, which are little-endian).
func (f Filter) program(machine uint32) []unix.SockFilter {
	const (
		load   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		atOrUp = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
		ret    = unix.BPF_RET | unix.BPF_K
		allow  = 0x7fff0000
		refuse = 0x00050000 | uint32(unix.EPERM)
		x32    = 0x40000000 // the other numbers of amd64
	)
	program := []unix.SockFilter{
		{Code: load, K: 4},
		{Code: equal, K: machine, Jt: 1},
		{Code: ret, K: refuse},
		{Code: load, K: 0},
		{Code: atOrUp, K: x32, Jf: 1},
		{Code: ret, K: refuse},
	}
	denied := doors
	if !f.Start {
		denied = slices.Concat(programs, doors)
	}
	for _, call := range denied {
		program = append(program, unix.SockFilter{Code: equal, K: call, Jf: 1}, unix.SockFilter{Code: ret, K: refuse})
	}
	if !f.Network {
		program = append(program,
			unix.SockFilter{Code: equal, K: unix.SYS_SOCKET, Jf: 3},
			unix.SockFilter{Code: load, K: 16},
			unix.SockFilter{Code: equal, K: unix.AF_UNIX, Jt: 1},
			unix.SockFilter{Code: ret, K: refuse})
	}
	return append(program, unix.SockFilter{Code: ret, K: allow})
}
