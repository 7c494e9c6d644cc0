// Package oci turns a node into an OCI runtime specification and drives the runtimes that Debian ships, runc and
// crun, behind one small interface.
//
// [Config], which is pure, makes the specification. Three steps carry it out:
//
//	oci.bundle   writes config.json where the runtime reads it
//	oci.create   the runtime makes the namespaces and an init that waits ([Launch]); then links are moved in
//	oci.start    the init becomes the node's command, and the step verifies that it did
//
// [Exec] runs one more command inside, [Find] and [Probe] choose the runtime, [Escapes] names its known container escapes.
//
// # What a node may do
//
// A node has one of two capability lists ([CommandCapabilities], [InitCapabilities]); a seccomp filter that allows system
// calls known to be harmless and answers EPERM to the rest; no new privileges if it is a command node; a device cgroup
// that allows only the standard devices and those of its spec; masked and read-only paths; and its own session keyring
// (the runtimes' default).
//
// # User namespaces and containers inside a node
//
// They are refused: the seccomp filter answers EPERM to unshare(2), setns(2), mount(2) and to clone(2) with any
// namespace flag, and ENOSYS to clone3(2), whose flags a filter cannot see (C libraries then fall back to clone).
// The reason: most local root exploits of the kernel begin with namespaces that ordinary users make, and a virtual node
// needs none. Therefore rootless podman, bubblewrap, flatpak and browsers with a namespace sandbox do not work inside a
// node.
package oci
