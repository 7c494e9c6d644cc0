package main

import (
	"os"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// refused returns calls into the kernel that must fail in every node.
func refused() map[string]func() error {
	all := map[string]func() error{
		"mount tmpfs":       func() error { return unix.Mount("none", "/mnt", "tmpfs", 0, "") },
		"mount proc":        func() error { return unix.Mount("none", "/mnt", "proc", 0, "") },
		"mount cgroup":      func() error { return unix.Mount("none", "/mnt", "cgroup", 0, "memory") },
		"remount root":      func() error { return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND, "") },
		"remount /proc/sys": func() error { return unix.Mount("", "/proc/sys", "", unix.MS_REMOUNT|unix.MS_BIND, "") },
		"bind":              func() error { return unix.Mount("/proc", "/mnt", "", unix.MS_BIND, "") },
		"umount":            func() error { return unix.Unmount("/proc/sys", unix.MNT_DETACH) },
		"open_tree":         func() error { _, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE); return err },
		"fsopen":            func() error { _, err := unix.Fsopen("tmpfs", 0); return err },
		"mount_setattr": func() error {
			return unix.MountSetattr(unix.AT_FDCWD, "/proc/sys", 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY})
		},
		"move_mount": func() error { return unix.MoveMount(unix.AT_FDCWD, "/proc", unix.AT_FDCWD, "/mnt", 0) },
		"pivot_root": func() error { return unix.PivotRoot("/", "/mnt") },
		"mknod disk": func() error { return unix.Mknod("/tmp/disk", unix.S_IFBLK|0o600, int(unix.Mkdev(254, 0))) },
		"mknod mem":  func() error { return unix.Mknod("/tmp/mem", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 1))) },
		"mknod kmsg": func() error { return unix.Mknod("/dev/kmsg", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 11))) },
		"setns":      func() error { return setns() },
		"keyctl":     func() error { _, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false); return err },
		"add_key": func() error {
			_, err := unix.AddKey("user", "x", []byte("x"), unix.KEY_SPEC_PROCESS_KEYRING)
			return err
		},
		"request_key":     func() error { _, err := unix.RequestKey("user", "x", "", 0); return err },
		"kexec_load":      func() error { return raw(unix.SYS_KEXEC_LOAD, 0, 0, 0) },
		"kexec_file_load": func() error { return unix.KexecFileLoad(0, 0, "", 0) },
		"init_module":     func() error { return unix.InitModule(nil, "") },
		"finit_module":    func() error { return unix.FinitModule(0, "", 0) },
		"delete_module":   func() error { return unix.DeleteModule("none", 0) },
		"swapon":          func() error { return path(unix.SYS_SWAPON, "/tmp/swap") },
		"swapoff":         func() error { return path(unix.SYS_SWAPOFF, "/dev/vda") },
		"acct":            func() error { return unix.Acct("/tmp/acct") },
		"quotactl":        func() error { return path(unix.SYS_QUOTACTL, "/") },
		"clock_settime":   func() error { return raw(unix.SYS_CLOCK_SETTIME, 0, 0, 0) },
		"settimeofday":    func() error { return unix.Settimeofday(&unix.Timeval{Sec: 1}) },
		"adjtimex":        func() error { _, err := unix.Adjtimex(&unix.Timex{Modes: 1, Freq: 1}); return err },
		"sethostname":     func() error { return unix.Sethostname([]byte("mine")) },
		"setdomainname":   func() error { return unix.Setdomainname([]byte("mine")) },
		"iopl":            func() error { return raw(unix.SYS_IOPL, 3, 0, 0) },
		"ioperm":          func() error { return raw(unix.SYS_IOPERM, 0x80, 1, 1) },
		"perf_event_open": func() error {
			_, err := unix.PerfEventOpen(&unix.PerfEventAttr{Size: 64, Type: unix.PERF_TYPE_SOFTWARE}, 0, -1, -1, 0)
			return err
		},
		"bpf":         func() error { return raw(unix.SYS_BPF, 0, 0, 0) },
		"userfaultfd": func() error { return raw(unix.SYS_USERFAULTFD, 0, 0, 0) },
		"io_uring_setup": func() error {
			var p [120]byte
			return raw(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&p)), 0)
		},
		"fanotify_init":     func() error { _, err := unix.FanotifyInit(0, 0); return err },
		"open_by_handle_at": func() error { return byHandle() },
		"lookup_dcookie":    func() error { return raw(unix.SYS_LOOKUP_DCOOKIE, 0, 0, 0) },
		"syslog":            func() error { _, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, make([]byte, 64)); return err },
		"vhangup":           func() error { return raw(unix.SYS_VHANGUP, 0, 0, 0) },
		"move_pages":        func() error { return raw(unix.SYS_MOVE_PAGES, 1, 0, 0) },
		"kcmp of process 1": func() error { return raw(unix.SYS_KCMP, 1, uintptr(os.Getpid()), 0) },
		"reboot": func() error {
			return raw(unix.SYS_REBOOT, unix.LINUX_REBOOT_MAGIC1, unix.LINUX_REBOOT_MAGIC2, unix.LINUX_REBOOT_CMD_RESTART)
		},
		"vsock":                  func() error { _, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0); return err },
		"kernel crypto socket":   func() error { _, err := unix.Socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0); return err },
		"packet socket":          func() error { _, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0x0300); return err },
		"raw socket":             func() error { _, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP); return err },
		"raise a hard limit":     func() error { return raiseLimit() },
		"lower oom_score_adj":    func() error { _, err := write("/proc/self/oom_score_adj=-500"); return err },
		"real-time scheduling":   func() error { return raw(unix.SYS_SCHED_SETSCHEDULER, 0, 1, uintptr(unsafe.Pointer(&[1]int32{1}))) },
		"a better nice level":    func() error { return unix.Setpriority(unix.PRIO_PROCESS, 0, -20) },
		"personality of 32 bits": func() error { return raw(unix.SYS_PERSONALITY, 0x0040000, 0, 0) },
	}
	for n, flag := range map[string]uintptr{
		"user": unix.CLONE_NEWUSER, "mount": unix.CLONE_NEWNS, "net": unix.CLONE_NEWNET, "pid": unix.CLONE_NEWPID,
		"uts": unix.CLONE_NEWUTS, "ipc": unix.CLONE_NEWIPC, "cgroup": unix.CLONE_NEWCGROUP, "time": unix.CLONE_NEWTIME,
	} {
		all["unshare "+n] = func() error { return unix.Unshare(int(flag)) }
		if flag != unix.CLONE_NEWTIME { // clone's own signal number is in its place
			all["clone "+n] = func() error { return clone(flag) }
		}
	}
	all["clone3 user"] = func() error {
		args := [11]uint64{0: unix.CLONE_NEWUSER, 4: uint64(syscall.SIGCHLD)}
		return child(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args))
	}
	return all
}

func raw(trap, a, b, c uintptr) error {
	_, _, errno := unix.RawSyscall(trap, a, b, c)
	if errno != 0 {
		return errno
	}
	return nil
}

func path(trap uintptr, name string) error {
	p, err := unix.BytePtrFromString(name)
	if err != nil {
		return err
	}
	return raw(trap, uintptr(unsafe.Pointer(p)), 0, 0)
}

// ioctl calls ioctl(2) with the address of one byte.
func ioctl(fd int, request uintptr, arg *byte) error {
	return raw(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(arg)))
}

// clone makes a process in a new namespace. The process ends at once.
func clone(flag uintptr) error { return child(unix.SYS_CLONE, flag|uintptr(syscall.SIGCHLD), 0) }

func child(trap, a, b uintptr) error {
	pid, _, errno := unix.RawSyscall6(trap, a, b, 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	if pid == 0 {
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	var ws unix.WaitStatus
	_, _ = unix.Wait4(int(pid), &ws, 0, nil)
	return nil
}

func setns() error {
	fd, err := unix.Open("/proc/1/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Setns(fd, unix.CLONE_NEWNS)
}

// byHandle opens the root of the file system by its handle, as the "shocker" escape did.
func byHandle() error {
	dir, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	_, err = unix.OpenByHandleAt(dir, unix.NewFileHandle(1, []byte{2, 0, 0, 0, 0, 0, 0, 0}), unix.O_RDONLY)
	return err
}

func raiseLimit() error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return err
	}
	l.Max++
	return unix.Prlimit(1, unix.RLIMIT_NOFILE, &l, nil)
}

// sockets tries each family of sockets, and each protocol of netlink: "inet", "netlink 5".
func sockets() map[string]string {
	all := map[string]string{}
	try := func(what string, family, kind, protocol int) {
		fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
		if all[what] = name(err); err == nil {
			unix.Close(fd)
		}
	}
	for what, family := range map[string]int{
		"unix": unix.AF_UNIX, "inet": unix.AF_INET, "inet6": unix.AF_INET6, "x25": unix.AF_X25, "appletalk": unix.AF_APPLETALK, "rds": unix.AF_RDS,
		"tipc": unix.AF_TIPC, "bluetooth": unix.AF_BLUETOOTH, "can": unix.AF_CAN, "kcm": unix.AF_KCM, "qipcrtr": unix.AF_QIPCRTR, "smc": unix.AF_SMC, "xdp": unix.AF_XDP,
	} {
		try(what, family, unix.SOCK_STREAM, 0)
	}
	for protocol := range 24 {
		try("netlink "+strconv.Itoa(protocol), unix.AF_NETLINK, unix.SOCK_RAW, protocol)
	}
	return all
}
