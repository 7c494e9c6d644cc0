package oci

// Capability is one capability that a node gets, and why.
type Capability struct{ Name, Reason string }

// CommandCapabilities returns the capabilities of a command node: those that a program started as root needs for its own
// files and users. With a user namespace they apply only to the node's own ids and network.
//
// Two are left out on purpose, though other container engines give them: MKNOD (Berth makes device nodes, outside) and
// NET_RAW (raw frames carry any MAC and IP address; ping works without it through net.ipv4.ping_group_range).
// NET_ADMIN and SYS_ADMIN are in neither list: with them a node could undo its own limits and addresses.
func CommandCapabilities() []Capability {
	return []Capability{
		{"CAP_CHOWN", "package tools and servers change the owner of their files"},
		{"CAP_DAC_OVERRIDE", "root reads and writes files of the node's other users"},
		{"CAP_FOWNER", "root changes modes and times of the node's other users' files"},
		{"CAP_FSETID", "set-group-id bits survive a write or a change of mode by root"},
		{"CAP_KILL", "root signals the node's other users' processes"},
		{"CAP_NET_BIND_SERVICE", "ports below 1024 of the node's own network"},
		{"CAP_SETFCAP", "package tools give files capabilities (counting in the node only)"},
		{"CAP_SETGID", "servers and job starters drop to their group"},
		{"CAP_SETPCAP", "servers and job starters drop capabilities from their bounding set"},
		{"CAP_SETUID", "servers and job starters drop to their user"},
		{"CAP_SYS_CHROOT", "servers that lock themselves into a folder (sshd)"},
	}
}

// InitCapabilities returns the capabilities of a node with an init system: those of a command, and those that shutdown and
// logins need.
//
// An init does not need SYS_ADMIN because its mounts (/run, /dev, /proc, /sys, its cgroup) are made for it. Units that
// ask for their own mount namespace (PrivateTmp=, ProtectSystem=) run without one.
func InitCapabilities() []Capability {
	return append(CommandCapabilities(),
		Capability{"CAP_SYS_BOOT", "halt, poweroff and reboot end the node: in a pid namespace reboot(2) kills its init; kexec stays closed by seccomp"},
		Capability{"CAP_AUDIT_WRITE", "logins (PAM, sshd) write an audit record and fail without it where there is no user namespace"},
	)
}

func capabilityNames(list []Capability) []string {
	names := make([]string, len(list))
	for i, c := range list {
		names[i] = c.Name
	}
	return names
}
