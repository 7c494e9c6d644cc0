package vnode

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// leastMachinePIDs is the least limit of processes and threads of an emulator, beside its CPUs: QEMU reads disks by up to 64 threads
// (THREAD_POOL_MAX_THREADS_DEFAULT in its include/block/thread-pool.h), and ends where it gets no more of them; the monitor has some.
const leastMachinePIDs = 128

// mountPIDs is how many processes and threads one of a machine's mounts may need: virtiofsd has two and some five (its pool is off).
const mountPIDs = 16

// leastDisk is the least size of a disk for the writes to a machine's root: a file system fits.
const leastDisk Bytes = 32 << 20

// mostCPUs is the most CPUs of a machine.
const mostCPUs = 64

// IsMachine reports whether the node is a virtual machine.
func (n *Node) IsMachine() bool { return n.Kind == MachineKind }

// AsMachine is what a node of kind machine is made of, nil for another.
func (n *Node) AsMachine() *Machine {
	if !n.IsMachine() {
		return nil
	}
	m := n.Machine
	return &m
}

// InMachine says what a key of the spec means for a machine.
type InMachine struct {
	Same bool   // what it means for a container
	Why  string // why it is refused
}

// MachineKeys says of each key of a spec what it means for a machine. A key stands for those below it, unless they are there too.
func MachineKeys() map[string]InMachine {
	same := InMachine{Same: true}
	guests := func(what string) InMachine { return InMachine{Why: "the guest's own kernel has " + what} }
	all := map[string]InMachine{
		"hugepages":      {Why: "a guest's memory is not of huge pages"},
		"rlimits":        guests("resource limits of its own"),
		"sysctls":        guests("parameters of its own; machine.cmdline takes some of them, as sysctl.NAME=VALUE"),
		"tmpfs":          guests("file systems in memory of its own"),
		"users":          guests("users of its own"),
		"user_namespace": {Why: "a machine always has ids of its own on the host"},
	}
	for key := range strings.FieldsSeq(`name image hostname kind machine class command user env env_from workdir labels stop health restart autostart
		cpu memory pids oom_score_adj network delta scratch devices mounts io no_new_privileges`) {
		all[key] = same
	}
	return all
}

// OfMachine returns what MachineKeys says of a key, which may be one below those that are listed.
func OfMachine(key string) (m InMachine, known bool) {
	all := MachineKeys()
	for {
		if m, known = all[key]; known {
			return m, true
		}
		i := strings.LastIndexByte(key, '.')
		if i < 0 {
			return m, false
		}
		key = key[:i]
	}
}

// asksFor returns the keys of a node's spec that are set, the top ones only.
func (n *Node) asksFor() (keys []string) {
	v := reflect.ValueOf(n).Elem()
	for i := range v.NumField() {
		if !v.Field(i).IsZero() {
			keys = append(keys, FieldKey(v.Type().Field(i)))
		}
	}
	return keys
}

// checkMachine checks what is of machines only, and refuses what a machine cannot have.
func checkMachine(r *report, n *Node) {
	if !n.IsMachine() {
		if n.Machine != (Machine{}) {
			r.badIf([]string{"kind"}, "machine", "is for kind: machine")
		}
		return
	}
	for _, key := range n.asksFor() {
		if m, _ := OfMachine(key); !m.Same {
			r.bad(key, "not for a machine: %s", m.Why)
		}
	}
	m := &n.Machine
	if m.Kernel == "" {
		r.bad("machine.kernel", "missing: the path of a Linux kernel, for example /boot/vmlinuz-6.12.43-amd64")
	} else {
		checkPath(r, "machine.kernel", m.Kernel)
	}
	switch {
	case m.Memory < leastMachineMemory:
		r.bad("machine.memory", "%s is too small: at least 128MiB", m.Memory)
	case m.Memory > mostMachineMemory:
		r.bad("machine.memory", "%s is too large: at most 1TiB", m.Memory)
	case m.Memory%(1<<20) != 0:
		r.bad("machine.memory", "%s is not a whole number of MiB", m.Memory)
	}
	if len(m.Cmdline) > longestCmdline {
		r.bad("machine.cmdline", "longer than %d bytes", longestCmdline)
	}
	if slices.Contains(strings.Fields(m.Cmdline), "--") {
		r.bad("machine.cmdline", "no -- is allowed: the kernel gives what follows to its first process, and the emulator adds words of its own")
	}
	if own := Overhead + Bytes(len(n.Mounts))*MountOverhead; n.Memory.Max > 0 && n.Memory.Max < m.Memory+own {
		r.badIf([]string{"machine.memory", "mounts"}, "memory.max", "%s is too small for this machine: the guest has %s and the emulator, with the daemons of mounts, may need %s, together %s",
			n.Memory.Max, m.Memory, own, m.Memory+own)
	}
	if least := leastMachinePIDs + min(m.CPUs, mostCPUs) + len(n.Mounts)*mountPIDs; n.PIDs > 0 && n.PIDs < least {
		r.bad("pids", "%d is too small for a machine, whose emulator and mounts have threads: at least %d", n.PIDs, least)
	}
	for i, at := range n.Mounts {
		if OwnView(at.Target) {
			r.bad(fmt.Sprintf("mounts[%d].target", i), "%q is not for a machine: the guest's own kernel tells of its memory, CPUs and load", at.Target)
		}
	}
	if n.Image.Kind != FileImage {
		r.badIf([]string{"image"}, "image", "%s: a machine's image is one file: file:PATH, as berth image pack writes it", n.Image)
	}
	switch memory := n.Delta.In == InMemory; {
	case memory && n.Delta.Size > m.Memory:
		r.badIf([]string{"machine.memory"}, "delta.size", "%s is more than the machine's memory, %s", n.Delta.Size, m.Memory)
	case !memory && n.Delta.Size == 0:
		r.bad("delta", "what a machine writes to its root goes to a disk of its own, which has a size: say delta: {size: 4GiB}, or delta: {in: memory}")
	case !memory && n.Delta.Size < leastDisk:
		r.bad("delta.size", "%s is too small for a disk: at least %s", n.Delta.Size, leastDisk)
	}
}

// longestCmdline is the most bytes of machine.cmdline: an x86 kernel takes 2048 in all.
const longestCmdline = 1024
