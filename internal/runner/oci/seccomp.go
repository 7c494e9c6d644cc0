package oci

import (
	"fmt"
	"slices"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// seccompFor returns the node's system call filter: Docker's default profile for the capabilities of spec, limited to the
// processor's native system calls and a short list of socket families.
//
// On amd64, 32-bit and x32 system calls are refused: SIGSYS kills a 32-bit program at its first one. They are a rarely used
// second entry into the kernel whose socketcall(2) bypasses the rules for sockets. A filter for three call tables also
// costs 14 ms more at each start of a node (48 instead of 34 ms with runc 1.1 and libseccomp 2.5).
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

// sockets allows the socket families that programs of a node need. The others are rarely used parts of the kernel, for which
// it would even load modules.
//
// It allows only those netlink protocols by which tools and libraries query the kernel: addresses and routes (getifaddrs,
// ip), sockets (ss), device events (udev), audit records (logins), and generic netlink (ethtool). It closes the rest, above
// all NETLINK_USERSOCK: with it processes queue messages for each other that no memory limit counts.
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
