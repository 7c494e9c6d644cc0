package plan

import (
	"cmp"
	"slices"
	"strings"

	"berth/internal/network/link"
	"berth/internal/runner"
	"berth/internal/spec/vnode"
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

// mostDevices is how many disks and interfaces a machine may have: QEMU's microvm has 24 places for virtio devices (microvm_devices_init
// in hw/i386/microvm.c), of which the image, the line to the guest, its random numbers and its balloon take four.
const mostDevices = 20

// checkDisks refuses what no machine can have as a disk.
func (f *Facts) checkDisks(n *vnode.Node) error {
	if all := len(n.Scratch) + len(f.Devices) + len(n.Network) + 1; n.IsMachine() && all > mostDevices {
		return refuse.Cannotf("name fewer devices", "node %s: %d disks and interfaces are too many for a machine: at most %d", n.Name, all, mostDevices)
	}
	for _, d := range f.Devices {
		if n.IsMachine() && d.Type != "b" {
			return refuse.Cannotf("leave it out", "node %s: device %s is no disk: this version of Berth gives a machine disks alone", n.Name, d.Source)
		}
	}
	return nil
}
