package oci

import (
	"fmt"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// seccompFor returns the node's system call filter: Docker's default profile for the capabilities of spec, for the
// processor's own system calls only.
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
	return profile, nil
}
