package vnode

import "cmp"

// Kind is what a node is.
type Kind string

// The kinds of nodes. The zero value means a container.
const (
	ContainerKind Kind = "container"
	MachineKind   Kind = "machine"
)

// Machine is what a node of kind machine is made of.
type Machine struct {
	CPUs    int    `json:"cpus,omitempty" doc:"virtual CPUs; default 1" range:"1..64"`
	Memory  Bytes  `json:"memory,omitempty" doc:"memory of the guest; default 512MiB. memory.max, if set, must be at least 256MiB more, and 64MiB for each of its mounts"`
	Kernel  string `json:"kernel,omitempty" doc:"the guest's kernel, a file of the host; its modules are in lib/modules/RELEASE or usr/lib/modules/RELEASE beside the file or one folder up"`
	Cmdline string `json:"cmdline,omitempty" doc:"words for the guest's kernel, after Berth's own"`
	Accel   string `json:"accel,omitempty" doc:"how its CPUs run: tcg (emulated), kvm, or auto, which is tcg for now" allowed:"auto|kvm|tcg"`
}

// The accelerators.
const (
	AutoAccel = "auto"
	KVM       = "kvm"
	TCG       = "tcg"
)

// The defaults of a machine.
const (
	defaultCPUs          = 1
	defaultMachineMemory = 512 << 20
	leastMachineMemory   = 128 << 20
	mostMachineMemory    = 1 << 40
)

// Overhead is how many bytes an emulator and its monitor may need beside the guest's memory, where the CPU is emulated.
const Overhead Bytes = 256 << 20

// MountOverhead is how many bytes the daemon of one of a machine's mounts may need, with what the kernel keeps of the files that it has open.
const MountOverhead Bytes = 64 << 20

// setDefaults fills in the defaults of a machine.
func (m *Machine) setDefaults() {
	m.CPUs, m.Memory, m.Accel = cmp.Or(m.CPUs, defaultCPUs), cmp.Or(m.Memory, defaultMachineMemory), cmp.Or(m.Accel, AutoAccel)
}
