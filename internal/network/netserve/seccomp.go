package netserve

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// denied are the system calls that the process never needs and that a break-in would begin with: other programs, other
// processes, other namespaces, and the kernel's widest doors. A list of what is allowed would have to follow Go's runtime.
var denied = []uint32{
	unix.SYS_EXECVE, unix.SYS_EXECVEAT, unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_GETFD,
	unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_OPEN_TREE,
	unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN, unix.SYS_MOUNT_SETATTR, unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, unix.SYS_KEYCTL, unix.SYS_ADD_KEY,
	unix.SYS_REQUEST_KEY, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_REBOOT, unix.SYS_SWAPON,
	unix.SYS_QUOTACTL, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_PERSONALITY, unix.SYS_VMSPLICE,
	unix.SYS_MKDIRAT, unix.SYS_UNLINKAT, unix.SYS_RENAMEAT2, unix.SYS_LINKAT, unix.SYS_SYMLINKAT, unix.SYS_FCHMODAT, unix.SYS_FCHOWNAT,
}

// machines are the architectures by Go's name, as the kernel numbers them (AUDIT_ARCH_*).
var machines = map[string]uint32{"amd64": 0xc000003e, "arm64": 0xc00000b7, "riscv64": 0xc00000f3}

// filter makes the kernel refuse the denied calls with EPERM, for all threads. On another architecture it does nothing: the
// process has no rights in any case.
func filter() error {
	machine, known := machines[runtime.GOARCH]
	if !known {
		return nil
	}
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
		{Code: load, K: 4}, // struct seccomp_data: arch
		{Code: equal, K: machine, Jt: 1},
		{Code: ret, K: refuse},
		{Code: load, K: 0}, // nr
		{Code: atOrUp, K: x32, Jf: 1},
		{Code: ret, K: refuse},
	}
	for _, call := range denied {
		program = append(program, unix.SockFilter{Code: equal, K: call, Jf: 1}, unix.SockFilter{Code: ret, K: refuse})
	}
	program = append(program, unix.SockFilter{Code: ret, K: allow})
	p := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&p)))
	if errno != 0 && errno != unix.ENOSYS && errno != unix.EINVAL { // a kernel without seccomp
		return fmt.Errorf("filter system calls: %w", errno)
	}
	return nil
}
