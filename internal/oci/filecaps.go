package oci

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// checkFileCaps returns a *CommandError if the kernel would refuse a program because its file asks for a capability that
// the node does not have (EPERM of bprm_caps_from_vfs_caps). The runtimes notice too late to report it well.
//
// The file must be opened through the node's own mount: on a mount with nosuid, file capabilities have no effect.
func checkFileCaps(f *os.File, what string, of func() (rights, error)) error {
	raw := make([]byte, 64)
	n, _ := unix.Fgetxattr(int(f.Fd()), "security.capability", raw) // an error means no attribute, as for nearly every file
	asks, root, needs := fileCaps(raw[:max(n, 0)])
	var fs unix.Statfs_t
	if !needs || unix.Fstatfs(int(f.Fd()), &fs) != nil || fs.Flags&unix.ST_NOSUID != 0 {
		return nil //nolint:nilerr // no attribute is no error
	}
	has, err := of()
	if err != nil {
		return err
	}
	if root != 0 && root != has.root { // of another user namespace: without effect
		return nil
	}
	var lacks []string
	for i, name := range capabilityNumbers() {
		if asks&(1<<i) != 0 && !slices.Contains(has.bounding, name) {
			lacks = append(lacks, name)
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	return &CommandError{Code: ExitCannotRun, Command: what, Why: fmt.Sprintf("operation not permitted: its file asks for %s, which the node does not have",
		strings.Join(lacks, ", "))}
}

// fileCaps decodes the attribute security.capability (uapi linux/capability.h, struct vfs_ns_cap_data). It returns the
// permitted capabilities, the host's id of the root user in whose user namespaces they apply (0: version 2, no root), and
// whether the program needs all of them (the effective bit). Read through an idmapped mount, every attribute has a root.
func fileCaps(raw []byte) (permitted uint64, root uint32, needs bool) {
	const effective, version2, version3 = 0x000001, 0x02000000, 0x03000000
	if len(raw) < 20 {
		return 0, 0, false
	}
	magic := binary.LittleEndian.Uint32(raw)
	switch version := magic &^ effective; {
	case version == version3 && len(raw) == 24:
		root = binary.LittleEndian.Uint32(raw[20:])
	case version != version2 || len(raw) != 20:
		return 0, 0, false
	}
	permitted = uint64(binary.LittleEndian.Uint32(raw[4:])) | uint64(binary.LittleEndian.Uint32(raw[12:]))<<32
	return permitted, root, magic&effective != 0
}

// capabilityNumbers returns the names of the kernel's capabilities, indexed by number.
func capabilityNumbers() []string {
	const names = `CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE
		NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT
		SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG
		WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE`
	all := strings.Fields(names)
	for i := range all {
		all[i] = "CAP_" + all[i]
	}
	return all
}

// rights decide which file capabilities have effect in a node.
type rights struct {
	bounding []string
	root     uint32 // the host's id of the node's root
}

func (l *Launch) rights() (rights, error) {
	r := rights{root: l.Plan.IDs.Base}
	spec, err := ReadSpec(l.Bundle)
	if err == nil && spec.Process != nil && spec.Process.Capabilities != nil {
		r.bounding = spec.Process.Capabilities.Bounding
	}
	return r, err
}
