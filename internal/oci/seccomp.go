package oci

import (
	"fmt"
	"slices"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// seccompFor returns the node's system call filter: Docker's default profile for the capabilities of spec, for the
// processor's own system calls and a short list of socket families only.
//
// 32-bit (and x32) system calls are refused on amd64: a 32-bit program is killed by SIGSYS at its first one. They are
// a second, rarely used door into the kernel whose socketcall(2) slips past the rules for sockets, and a filter for
// three call tables costs 14 ms more at each start of a node (34 rather than 48 ms with runc 1.1 and libseccomp 2.5).
func seccompFor(spec *specs.Spec) (*specs.LinuxSeccomp, error) {
	profile, err := seccomp.GetDefaultProfile(spec)
	if err != nil {
		return nil, fmt.Errorf("make the seccomp profile: %w", err)
	}
	if len(profile.Architectures) > 1 {
		profile.Architectures = profile.Architectures[:1] // the first is the native one
	}
	profile.Syscalls = append(slices.DeleteFunc(profile.Syscalls, func(c specs.LinuxSyscall) bool {
		return slices.Equal(c.Names, []string{"socket"})
	}), sockets()...)
	return profile, nil
}

// sockets allows the families of sockets that programs of a node have a use for. The others are rarely used parts of the
// kernel, for which it would even load modules.
//
// Of netlink only what tools and libraries ask the kernel by: addresses and routes (getifaddrs, ip), sockets (ss), events of
// devices (udev), audit records (logins), and generic (ethtool). The rest is closed, NETLINK_USERSOCK first of all: by that,
// processes queue messages for each other, which no memory limit counts.
func sockets() []specs.LinuxSyscall {
	allow := func(args ...specs.LinuxSeccompArg) specs.LinuxSyscall {
		return specs.LinuxSyscall{Names: []string{"socket"}, Action: specs.ActAllow, Args: args}
	}
	is := func(index uint, value uint64) specs.LinuxSeccompArg {
		return specs.LinuxSeccompArg{Index: index, Value: value, Op: specs.OpEqualTo}
	}
	var all []specs.LinuxSyscall
	for _, family := range []uint64{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6} {
		all = append(all, allow(is(0, family)))
	}
	for _, protocol := range []uint64{
		unix.NETLINK_ROUTE, unix.NETLINK_SOCK_DIAG, unix.NETLINK_AUDIT, unix.NETLINK_KOBJECT_UEVENT, unix.NETLINK_GENERIC,
	} {
		all = append(all, allow(is(0, unix.AF_NETLINK), is(2, protocol)))
	}
	return all
}
