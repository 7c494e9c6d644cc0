// Package layout says where Berth keeps what: it only joins names, it touches no file.
package layout

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
)

// Layout is the place of one Berth on a host. The zero value is not useful: use New.
type Layout struct {
	Run string // live state, gone with a reboot where /run is a tmpfs
	Lib string // images, deltas, id ranges, stored specs
	tag string // "" for the default root, else a short hash of the root
}

// New returns the layout under root; "" is the default: /run/berth and /var/lib/berth.
// Any other root holds both (root/run, root/lib) and gets names of its own for what the kernel keeps
// host-wide (cgroups, the host-only bridge), so that two roots never share a node's state.
func New(root string) Layout {
	if root == "" {
		return Layout{Run: "/run/berth", Lib: "/var/lib/berth"}
	}
	sum := sha256.Sum256([]byte(filepath.Clean(root)))
	return Layout{Run: filepath.Join(root, "run"), Lib: filepath.Join(root, "lib"), tag: hex.EncodeToString(sum[:3])}
}

// CgroupParent is the path, relative to each hierarchy's mount, under which this Berth's groups live: a group of its
// own at the top, also where systemd is process 1. systemd leaves alone what it did not make, and it cannot take
// controllers away from the top while a group below hands them on (EBUSY), as this one does; test/lab shows both. A
// slice of systemd's would give no more (only services and scopes can be delegated, and these end with their process)
// and would cost a call over D-Bus for each node.
func (l Layout) CgroupParent() string { return l.tagged("berth") }

// CgroupPlace is CgroupParent for the nodes of one standing (vnode.Node.Place): they are weighed together against the
// rest of the host.
func (l Layout) CgroupPlace(place string) string {
	if place == "" {
		return l.CgroupParent()
	}
	return l.CgroupParent() + "." + place
}

// Protected holds a journal for each service of the host that is protected.
func (l Layout) Protected() string { return filepath.Join(l.Lib, "protected") }

// Bridge is the name of the host-only bridge that nodes without a parent share (at most 15 bytes).
func (l Layout) Bridge() string {
	if l.tag == "" {
		return "berth0"
	}
	return "berth" + l.tag
}

// Hub pins the network namespace of that bridge while there are nodes on it.
func (l Layout) Hub() string { return filepath.Join(l.Run, "bridge") }

func (l Layout) tagged(s string) string {
	if l.tag == "" {
		return s
	}
	return s + "-" + l.tag
}

// HostLock is the host-wide lock, the same for every root: devices and MACs are claimed under it.
func (l Layout) HostLock() string { return "/run/berth.lock" }

// VFLeases is the folder that says which node has which virtual function of an adapter: one a host too.
func (l Layout) VFLeases() string { return "/run/berth.vfs" }

// DiskLoans is the folder that says which disk Berth switched to which engine, for which nodes: one a host too.
func (l Layout) DiskLoans() string { return "/run/berth.disks" }

// Unit is the systemd unit that enables virtual functions at boot.
func (l Layout) Unit() string { return l.tagged("berth-vfs") + ".service" }

// ProtectUnit is the systemd unit that switches the disks of protected services again at boot.
func (l Layout) ProtectUnit() string { return l.tagged("berth-protect") + ".service" }

// SiteID holds what derived MACs of this site depend on.
func (l Layout) SiteID() string { return filepath.Join(l.Lib, "site-id") }

// KeeperSocket is where the keeper listens.
func (l Layout) KeeperSocket() string { return filepath.Join(l.Run, "keeper.sock") }

// KeeperLock is held by the keeper.
func (l Layout) KeeperLock() string { return filepath.Join(l.Run, "keeper.lock") }

// KeeperLog is what the keeper has to say.
func (l Layout) KeeperLog() string { return filepath.Join(l.Run, "keeper.log") }

// RuntimeState is the OCI runtime's --root.
func (l Layout) RuntimeState() string { return filepath.Join(l.Run, "runtime") }

// ProbeLock is held while runtimes are tried.
func (l Layout) ProbeLock() string { return filepath.Join(l.Run, "probe.lock") }

// RuntimeProbe says which runtime is fastest here.
func (l Layout) RuntimeProbe() string { return filepath.Join(l.Lib, "runtime.json") }

// IDs has an entry for each claimed id range.
func (l Layout) IDs() string { return filepath.Join(l.Lib, "ids") }

// MACs has an entry for each claimed MAC.
func (l Layout) MACs() string { return filepath.Join(l.Lib, "macs") }

// VFs has an entry for each adapter that shall be divided, and into how many virtual functions.
func (l Layout) VFs() string { return filepath.Join(l.Lib, "vfs") }

// Pools holds the pools of MACs.
func (l Layout) Pools() string { return filepath.Join(l.Lib, "pools") }

// Addresses has an entry for each address on the host-only bridge.
func (l Layout) Addresses() string { return filepath.Join(l.Lib, "addresses") }

// Images is the image store.
func (l Layout) Images() string { return filepath.Join(l.Lib, "images") }

// LibNodes has a folder a node, lasting.
func (l Layout) LibNodes() string { return filepath.Join(l.Lib, "nodes") }

// RunNodes has a folder a running node.
func (l Layout) RunNodes() string { return filepath.Join(l.Run, "nodes") }

// Lock is a node's lock.
func (l Layout) Lock(node string) string { return filepath.Join(l.Run, "locks", node) }

// Node returns the places of one node.
func (l Layout) Node(name string) Node {
	return Node{Name: name, Lib: filepath.Join(l.LibNodes(), name), Run: filepath.Join(l.RunNodes(), name)}
}

// Node is where one node keeps what.
type Node struct {
	Name string
	Lib  string // lasting: until berth rm
	Run  string // live: until the node stops
}

// Claims is the journal of lasting steps.
func (n Node) Claims() string { return filepath.Join(n.Lib, "journal") }

// Spec is the spec as applied, and as it is now.
func (n Node) Spec() string { return filepath.Join(n.Lib, "spec.json") }

// Status is what became of the node.
func (n Node) Status() string { return filepath.Join(n.Lib, "status.json") }

// Delta takes the node's writes.
func (n Node) Delta() string { return filepath.Join(n.Lib, "delta") }

// Log is what the node's command wrote, its newest part.
func (n Node) Log() string { return filepath.Join(n.Lib, "log") }

// OldLog is what the node's command wrote before that.
func (n Node) OldLog() string { return filepath.Join(n.Lib, "log.1") }

// LogPipe is what the node's command writes to.
func (n Node) LogPipe() string { return filepath.Join(n.Run, "log") }

// Journal is the journal of live steps.
func (n Node) Journal() string { return filepath.Join(n.Run, "journal") }

// PIDFile holds the pid of the node's process 1.
func (n Node) PIDFile() string { return filepath.Join(n.Run, "pid") }

// NetNS is the pinned network namespace, where a link must outlive process 1.
func (n Node) NetNS() string { return filepath.Join(n.Run, "netns") }

// Devices is what the node has of the host's devices, as JSON.
func (n Node) Devices() string { return filepath.Join(n.Run, "devices") }

// Bundle is the OCI bundle: config.json.
func (n Node) Bundle() string { return filepath.Join(n.Run, "bundle") }

// Root is where the root is mounted, in the runtime's own mount namespace only.
func (n Node) Root() string { return filepath.Join(n.Run, "root") }

// Stage is where sources are staged, likewise.
func (n Node) Stage() string { return filepath.Join(n.Run, "stage") }

// TTY is the socket that takes the terminal of berth run -t.
func (n Node) TTY() string { return filepath.Join(n.Run, "tty") }

// RuntimeLog is the runtime's own messages.
func (n Node) RuntimeLog() string { return filepath.Join(n.Run, "runtime.log") }
