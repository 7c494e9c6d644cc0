package plan

import (
	"slices"

	"berth/internal/host/membership"
	"berth/internal/spec/vnode"
	"berth/internal/storage/packed"
	"berth/internal/sys/refuse"
)

// Supported refuses a name that no node can have on cgroup v1 (exit 2), and the parts of a spec that this version of Berth does not implement
// yet (exit 3).
func Supported(n *vnode.Node) error {
	if n.Name == "tasks" { // all other such files, of v1 and v2, have a dot or '_' in their names, which no name of a node has
		return refuse.Invalidf("%q cannot be the name of a node: cgroup v1 has a file of this name in each group, where the node's would be", n.Name)
	}
	for _, c := range []struct {
		asked  bool
		what   string
		remedy string
	}{
		{n.IsMachine() && n.Machine.Accel == vnode.KVM, "machine.accel: kvm", "say machine: {accel: auto}: its CPUs are emulated"},
		{n.IsMachine() && slices.ContainsFunc(n.Network, notInMachines), "interfaces of machines of mode macvlan, phys or sriov, or with dhcp", "say mode: bridge with an address, or mode: nat"},
		{n.Image.Kind == vnode.FileImage && packed.KindOf(n.Image.Ref) == "", "image file: of an archive", "berth image import it, and use oci:"},
	} {
		if c.asked {
			return notYet(n, c.what, c.remedy)
		}
	}
	if i := slices.IndexFunc(n.Mounts, func(m vnode.Mount) bool { return m.Remote() }); n.IsMachine() && i >= 0 {
		return refuse.Cannotf("mount it on the host and give the machine that folder (gateway: bind)",
			"node %s: mount %s: a machine gets no mount from a file server: its guest would tell the server which user it is", n.Name, n.Mounts[i].Target)
	}
	return nil
}

// onSite refuses a limit on a shared file system on a host that belongs to no site: the file servers would not hear of it.
func onSite(n *vnode.Node, a *membership.Agent) error {
	for _, io := range n.IO {
		if io.Filesystem != "" && a == nil {
			return refuse.Cannotf("start berthd here and on the file servers (docs/sync.md), or limit a disk of this host with device or path",
				"node %s: io %s: this host belongs to no site, so no file server of %s learns of the limit", n.Name, io.Name, io.Filesystem)
		}
	}
	return nil
}

func notYet(n *vnode.Node, what, remedy string) error {
	return refuse.Cannotf(remedy, "node %s: this version of Berth does not do %s yet", n.Name, what)
}

// notInMachines tells of an interface that this version of Berth gives no machine.
func notInMachines(w vnode.Network) bool {
	return w.DHCP || !slices.Contains([]vnode.Mode{vnode.None, vnode.Bridge, vnode.NAT}, w.Mode)
}
