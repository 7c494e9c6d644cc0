// Package layout defines the paths of Berth's files, and makes the folders that all nodes share.
package layout

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
)

// Layout holds the folders of one Berth on a host. The zero value is not useful: use New.
type Layout struct {
	Run  string // live state; lost at reboot if /run is a tmpfs
	Lib  string // images, deltas, id ranges, stored specs
	root string // as given; "" is the default
	tag  string // "" for the default root, else a short hash of the root
}

// New returns the layout under root. "" is the default: /run/berth and /var/lib/berth. Any other root holds both
// (root/run, root/lib), and has its own names for host-wide kernel objects (cgroups, the host-only bridge), so that two
// roots never share a node's state.
func New(root string) Layout {
	if root == "" {
		return Layout{Run: "/run/berth", Lib: "/var/lib/berth"}
	}
	sum := sha256.Sum256([]byte(filepath.Clean(root)))
	return Layout{Run: filepath.Join(root, "run"), Lib: filepath.Join(root, "lib"), root: root, tag: hex.EncodeToString(sum[:3])}
}

// Args returns the arguments that make another berth use this layout.
func (l Layout) Args() []string {
	if l.root == "" {
		return nil
	}
	return []string{"--root", l.root}
}

// CgroupParent returns the path of the cgroup that holds this Berth's cgroups, relative to each hierarchy's mount. It
// is a top-level group, also where systemd is process 1: systemd leaves alone the groups it did not make. It cannot
// take controllers away from the top while a group below passes them on (EBUSY), as this one does; test/lab shows both.
// A systemd slice would be no better (only services and scopes can be delegated, and these end with their process), and
// would cost a D-Bus call for each node.
func (l Layout) CgroupParent() string { return l.tagged("berth") }

// StandingCgroup returns the cgroup for the nodes of one standing (vnode.Node.StandingGroup). They are weighed together against
// the rest of the host.
func (l Layout) StandingCgroup(group string) string {
	if group == "" {
		return l.CgroupParent()
	}
	return l.CgroupParent() + "." + group
}

// Protected returns the folder with a journal for each protected service of the host.
func (l Layout) Protected() string { return filepath.Join(l.Lib, "protected") }

// Bridge returns the name of the host-only bridge that nodes without a parent share (at most 15 bytes).
func (l Layout) Bridge() string {
	if l.tag == "" {
		return "berth0"
	}
	return "berth" + l.tag
}

// NATBridge returns the name of the bridge of mode nat, and of its table of nftables (at most 15 bytes).
func (l Layout) NATBridge() string {
	if l.tag == "" {
		return "berth-nat"
	}
	return "berthn" + l.tag
}

// NAT returns the folders of mode nat: one for files that last, and one for files that end with the last running node.
func (l Layout) NAT() (lib, run string) {
	return filepath.Join(l.Lib, "nat"), filepath.Join(l.Run, "nat")
}

// Forwarding begins the names of the files that record the host's settings of forwarding before Berth changed them. They
// are host-wide.
func (l Layout) Forwarding() string { return "/run/berth.forwarding" }

// Hub returns the file that pins the network namespace of that bridge while nodes use it.
func (l Layout) Hub() string { return filepath.Join(l.Run, "bridge") }

func (l Layout) tagged(s string) string {
	if l.tag == "" {
		return s
	}
	return s + "-" + l.tag
}

// HostLock returns the host-wide lock, the same for every root. Claims of devices and MACs hold it.
func (l Layout) HostLock() string { return "/run/berth.lock" }

// VFLeases returns the folder that records which node has which virtual function of an adapter. It is host-wide too.
func (l Layout) VFLeases() string { return "/run/berth.vfs" }

// VLANs returns the folder that records which nodes use which VLAN device of the host. It is host-wide too.
func (l Layout) VLANs() string { return "/run/berth.vlans" }

// DiskLoans returns the folder that records which disk Berth switched to which engine, for which nodes. It is host-wide
// too.
func (l Layout) DiskLoans() string { return "/run/berth.disks" }

// Unit returns the systemd unit that enables virtual functions at boot.
func (l Layout) Unit() string { return l.tagged("berth-vfs") + ".service" }

// ProtectUnit returns the systemd unit that switches the disks of protected services to their engine at boot.
func (l Layout) ProtectUnit() string { return l.tagged("berth-protect") + ".service" }

// AutostartUnit returns the systemd unit that starts nodes at boot.
func (l Layout) AutostartUnit() string { return l.tagged("berth-autostart") + ".service" }

// SiteID returns the file with the id from which this site's MACs are derived.
func (l Layout) SiteID() string { return filepath.Join(l.Lib, "site-id") }

// KeeperSocket returns the socket that the keeper listens on.
func (l Layout) KeeperSocket() string { return filepath.Join(l.Run, "keeper.sock") }

// KeeperLock returns the lock that the keeper holds.
func (l Layout) KeeperLock() string { return filepath.Join(l.Run, "keeper.lock") }

// KeeperLog returns the keeper's log file.
func (l Layout) KeeperLog() string { return filepath.Join(l.Run, "keeper.log") }

// AgentSocket returns the unix socket of the host's agent.
func (l Layout) AgentSocket() string { return filepath.Join(l.Run, "berthd.sock") }

// Site returns the file that says to which site this host belongs; there is none on a host that is alone.
func (l Layout) Site() string { return filepath.Join(l.Lib, "site.json") }

// SiteSocket returns the socket on which the agent claims names, MACs and addresses for nodes of this host.
func (l Layout) SiteSocket() string { return filepath.Join(l.Run, "site.sock") }

// SiteOwed returns the folder with an entry for each claim that is given up here, and that the site was not told of.
func (l Layout) SiteOwed() string { return filepath.Join(l.Lib, "site-owed") }

// NetserveSocket returns the socket on which root talks to the process that serves names and relays.
func (l Layout) NetserveSocket() string { return filepath.Join(l.Run, "netserve.sock") }

// NetserveLock returns the lock file of processes that talk to netserve.
func (l Layout) NetserveLock() string { return filepath.Join(l.Run, "netserve.lock") }

// RuntimeState returns the folder for the OCI runtime's --root.
func (l Layout) RuntimeState() string { return filepath.Join(l.Run, "runtime") }

// ProbeLock returns the lock that is held while runtimes are tried.
func (l Layout) ProbeLock() string { return filepath.Join(l.Run, "probe.lock") }

// RuntimeProbe returns the file that records the fastest runtime on this host.
func (l Layout) RuntimeProbe() string { return filepath.Join(l.Lib, "runtime.json") }

// IDs returns the folder with an entry for each claimed id range.
func (l Layout) IDs() string { return filepath.Join(l.Lib, "ids") }

// UsersList returns the admin's file of the host's ids that nodes may share.
func (l Layout) UsersList() string { return l.Etc("users.yaml") }

// Etc returns the path of a file of the admin: in /etc/berth, or below another root.
func (l Layout) Etc(name string) string { return filepath.Join(cmp.Or(l.root, "/etc/berth"), name) }

// MACs returns the folder with an entry for each claimed MAC.
func (l Layout) MACs() string { return filepath.Join(l.Lib, "macs") }

// VFs returns the folder with an entry for each adapter to divide: into how many virtual functions.
func (l Layout) VFs() string { return filepath.Join(l.Lib, "vfs") }

// Pools returns the folder with the pools of MACs.
func (l Layout) Pools() string { return filepath.Join(l.Lib, "pools") }

// Addresses returns the folder with an entry for each address on the host-only bridge.
func (l Layout) Addresses() string { return filepath.Join(l.Lib, "addresses") }

// Images returns the folder of the image store.
func (l Layout) Images() string { return filepath.Join(l.Lib, "images") }

// Pulls returns the folder that holds the blobs of images that are being pulled.
func (l Layout) Pulls() string { return filepath.Join(l.Images(), "pulls") }

// Builds returns the folder that holds images that are being built.
func (l Layout) Builds() string { return filepath.Join(l.Images(), "builds") }

// Layers returns the folder of the unpacked layers, each named by its digest.
func (l Layout) Layers() string { return filepath.Join(l.Images(), "layers", "sha256") }

// Scratch returns the folder with the records of the pools of scratch volumes.
func (l Layout) Scratch() string { return filepath.Join(l.Lib, "scratch") }

// Events returns the folder with the file of nodes' events.
func (l Layout) Events() string { return filepath.Join(l.Lib, "events") }

// Audit returns the file of the acts that the agent of this host was asked for.
func (l Layout) Audit() string { return filepath.Join(l.Lib, "audit.log") }

// LibNodes returns the folder with a lasting folder per node.
func (l Layout) LibNodes() string { return filepath.Join(l.Lib, "nodes") }

// RunNodes returns the folder with a folder per running node.
func (l Layout) RunNodes() string { return filepath.Join(l.Run, "nodes") }

// Lock returns a node's lock file.
func (l Layout) Lock(node string) string { return filepath.Join(l.Run, "locks", node) }

// Node returns the folders of one node.
func (l Layout) Node(name string) Node {
	return Node{Name: name, Lib: filepath.Join(l.LibNodes(), name), Run: filepath.Join(l.RunNodes(), name)}
}

// Node holds the name and the folders of one node.
type Node struct {
	Name string
	Lib  string // lasting: until berth rm
	Run  string // live: until the node stops
}

// Claims returns the journal of lasting steps.
func (n Node) Claims() string { return filepath.Join(n.Lib, "journal") }

// Spec returns the file with the spec as applied and as it is now.
func (n Node) Spec() string { return filepath.Join(n.Lib, "spec.json") }

// Throwaway returns the empty file by which a node that ends with a process is known, also if its journal is lost.
func (n Node) Throwaway() string { return filepath.Join(n.Lib, "throwaway") }

// Status returns the file with the node's state as of its last start or end.
func (n Node) Status() string { return filepath.Join(n.Lib, "status.json") }

// Delta returns the folder that takes the node's writes.
func (n Node) Delta() string { return filepath.Join(n.Lib, "delta") }

// Log returns the file with the newest output of the node's command.
func (n Node) Log() string { return filepath.Join(n.Lib, "log") }

// OldLog returns the file with the output before that.
func (n Node) OldLog() string { return filepath.Join(n.Lib, "log.1") }

// LogPipe returns the pipe that the node's command writes to.
func (n Node) LogPipe() string { return filepath.Join(n.Run, "log") }

// Journal returns the journal of live steps.
func (n Node) Journal() string { return filepath.Join(n.Run, "journal") }

// PIDFile returns the file with the pid of the node's process 1.
func (n Node) PIDFile() string { return filepath.Join(n.Run, "pid") }

// NetNS returns the file that pins the network namespace, if a link must outlive process 1.
func (n Node) NetNS() string { return filepath.Join(n.Run, "netns") }

// Devices returns the JSON file that lists the host's devices that the node has.
func (n Node) Devices() string { return filepath.Join(n.Run, "devices") }

// Health returns the file with the results of its health checks.
func (n Node) Health() string { return filepath.Join(n.Run, "health") }

// Root returns the mount point of the root, in the runtime's own mount namespace only.
func (n Node) Root() string { return filepath.Join(n.Run, "root") }

// Stage returns the folder of staged sources, in that namespace only.
func (n Node) Stage() string { return filepath.Join(n.Run, "stage") }

// TTY returns the socket that takes the terminal of berth run -t.
func (n Node) TTY() string { return filepath.Join(n.Run, "tty") }

// RuntimeLog returns the file with the runtime's own messages.
func (n Node) RuntimeLog() string { return filepath.Join(n.Run, "runtime.log") }
