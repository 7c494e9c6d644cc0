package plan

import (
	"cmp"
	"slices"
	"strings"

	"berth/internal/host"
	"berth/internal/host/block"
	"berth/internal/network/link"
	"berth/internal/runner"
	"berth/internal/spec/vnode"
	"berth/internal/storage/gateway"
	"berth/internal/storage/mounts"
	"berth/internal/storage/scratch"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// machine describes a machine's own part of its node to the runner.
func (f *Facts) machine(n *vnode.Node, claims []step.Step) *runner.Machine {
	m := &runner.Machine{CPUs: n.Machine.CPUs, Memory: int64(n.Machine.Memory), Kernel: n.Machine.Kernel, Cmdline: n.Machine.Cmdline}
	for _, a := range link.Adapters(f.linkInput(n, claims)) {
		to := runner.Adapter{Tap: a.Tap, Name: a.Name, MAC: a.MAC.String(), MTU: a.MTU, Address: a.Address, Gateway: a.Gateway}
		for _, r := range a.Routes {
			to.Routes = append(to.Routes, [2]string{r.To, r.Via})
		}
		m.Adapters = append(m.Adapters, to)
	}
	m.Delta, m.Disks = f.disks(n, claims)
	return m
}

// disks returns the disk that takes a machine's writes, "" for its memory, and its other disks: its scratch volumes and devices.
func (f *Facts) disks(n *vnode.Node, claims []step.Step) (delta string, all []runner.Disk) {
	if n.Delta.In != vnode.InMemory {
		delta = f.Layout.Node(n.Name).Delta()
	}
	for _, v := range scratch.Volumes(claims) {
		all = append(all, runner.Disk{Path: v.Path(), Target: v.Target, FS: v.FS})
	}
	for _, d := range f.Devices {
		all = append(all, runner.Disk{Path: d.Source, Number: d.Number(), Target: d.Path, ReadOnly: !strings.Contains(d.Access, "w")})
	}
	// Each comes after those that it lies in.
	slices.SortStableFunc(all, func(a, b runner.Disk) int {
		return cmp.Compare(strings.Count(a.Target, "/"), strings.Count(b.Target, "/"))
	})
	return delta, all
}

// mostDevices is how many disks, interfaces and mounts a machine may have: QEMU's microvm has 24 places for virtio devices (microvm_devices_init
// in hw/i386/microvm.c), of which the image, the line to the guest, its random numbers and its balloon take four.
const mostDevices = 20

// checkDisks refuses what no machine can have as a disk.
func (f *Facts) checkDisks(n *vnode.Node) error {
	if all := len(n.Scratch) + len(f.Devices) + len(n.Network) + len(n.Mounts) + 1; n.IsMachine() && all > mostDevices {
		return refuse.Cannotf("name fewer devices", "node %s: %d disks, interfaces and mounts are too many for a machine: at most %d", n.Name, all, mostDevices)
	}
	for _, d := range f.Devices {
		if n.IsMachine() && d.Type != "b" {
			return refuse.Cannotf("leave it out", "node %s: device %s is no disk: this version of Berth gives a machine disks alone", n.Name, d.Source)
		}
	}
	return nil
}

// stages returns the folders of the mounts of a machine. Gateways give it nothing else.
func stages(ways []gateway.Way) (all []mounts.Stage) {
	for _, w := range ways {
		all = append(all, *w.Stage)
	}
	return all
}

// fromServers reports whether a file system of the kernel's with a name keeps its files on another host: what is read and written there is
// asked of that host from this one's address, whoever asks for it.
func fromServers(fstype string) bool {
	return strings.HasPrefix(fstype, "fuse") || slices.Contains([]string{"nfs", "nfs4", "ceph", "lustre", "cifs", "smb3", "9p", "afs"}, fstype)
}

// checkShares refuses what no machine can have as a mount, and a limit on a shared file system that its mount would go around.
func (f *Facts) checkShares(n *vnode.Node) error {
	shared := slices.IndexFunc(n.IO, func(io vnode.IO) bool { return io.Filesystem != "" })
	for i, m := range n.Mounts {
		if n.IsMachine() && f.Mounts[i].NoDir {
			return refuse.Cannotf("mount the folder that it lies in", "node %s: mount %s: %s is a file or a socket: this version of Berth gives a machine folders alone", n.Name, m.Target, m.Source)
		}
		if n.IsMachine() && shared >= 0 && fromServers(f.Mounts[i].FSType) {
			return refuse.Cannotf("leave the limit out, or give the node the mount as a container, by gateway: nfs or sshfs",
				"node %s: io %s: a limit on a shared file system knows nodes by address, and what a machine does in mount %s comes to the file server (%s) from the host's",
				n.Name, n.IO[shared].Name, m.Target, f.Mounts[i].FSType)
		}
	}
	return nil
}

// CheckWrites refuses limits of writes that a machine could go around. What it writes to a mount goes through the host's page cache, and
// the kernel charges that to the group of who wrote it only where cgroup v2 has both memory and io. A whole disk that the machine may write to
// is none under a mount: nobody mounts it on the host meanwhile. A limit on a partition acts on the whole disk, whose others the host may
// have mounted. disks are those of the limits, by the limits' names; one that is unplugged is in nobody's way.
func CheckWrites(n *vnode.Node, cg host.Cgroups, disks map[string]block.Disk) error {
	if !n.IsMachine() || cg.Has("memory") == "v2" && cg.Has("io") == "v2" {
		return nil
	}
	i := slices.IndexFunc(n.Mounts, func(m vnode.Mount) bool { return !m.ReadOnly })
	if i < 0 {
		return nil
	}
	for _, io := range n.IO {
		own := !disks[io.Name].OfPartition() && slices.ContainsFunc(n.Devices, func(d vnode.Device) bool {
			return d.Path == io.Device && strings.Contains(d.Access, "w")
		})
		if own || io.Filesystem != "" || io.Write == (vnode.IORate{}) {
			continue
		}
		return refuse.Cannotf("say read_only: true for the mount, limit only whole disks among the machine's own devices, with w in their access, or boot the host with systemd.unified_cgroup_hierarchy=1",
			"node %s: io %s: on cgroup v1 a limit of writes does not hold what a machine writes to a mount (%s)", n.Name, io.Name, n.Mounts[i].Target)
	}
	return nil
}
