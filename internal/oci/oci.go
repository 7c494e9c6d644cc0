// Package oci turns a node into an OCI runtime specification and drives the runtimes that Debian ships, runc and
// crun, behind one small interface.
//
// A node's life here: [Config] (pure) makes the specification; three steps carry it out:
//
//	oci.bundle   writes config.json where the runtime reads it
//	oci.create   the runtime makes the namespaces and an init that waits ([Launch]); links are moved in now
//	oci.start    the init becomes the node's command, and it is proved that it did
//
// [Exec] runs one more command inside, [Find] and [Probe] choose the runtime, [Escapes] names what is known to be
// broken in it.
//
// # What a node may do
//
// Two capability lists ([CommandCapabilities], [InitCapabilities]); a seccomp filter that allows what is known to be
// harmless and answers EPERM to the rest; no new privileges for command nodes; a device cgroup closed but for the
// standard devices and those asked for; masked and read-only paths; a session keyring of its own (the runtimes' default).
//
// # User namespaces and containers inside a node
//
// They are refused: the seccomp filter answers EPERM to unshare(2), setns(2), mount(2) and to clone(2) with any
// namespace flag, and ENOSYS to clone3(2), whose flags a filter cannot see (C libraries then fall back to clone).
// The reason: namespaces in the hands of a node's users are where most of the kernel's local root exploits began, and
// a virtual node needs none of its own. Rootless podman, bubblewrap, flatpak and browsers with a namespace sandbox do
// therefore not work inside a node.
package oci
