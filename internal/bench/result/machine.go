package result

import (
	"path/filepath"
	"strings"
)

// Machine is the machine of a report. Fields that could not be found out are empty.
type Machine struct {
	Kernel   string `json:"kernel"`
	CPU      string `json:"cpu"`
	Cores    int    `json:"cores"`                  // that this process may use
	Governor string `json:"cpu_governor,omitempty"` // of the first CPU
	Disk
}

// Disk is the disk below a file or device that is measured. Fields that could not be found out are empty.
type Disk struct {
	Device     string `json:"device,omitempty"`        // the disk, the kernel's name: vda
	Model      string `json:"device_model,omitempty"`  // as the disk says
	Rotational string `json:"rotational,omitempty"`    // the kernel's word: "1" for a turning disk, and for many virtual ones (see Turns)
	WriteCache string `json:"write_cache,omitempty"`   // "write back" or "write through"
	Scheduler  string `json:"scheduler,omitempty"`     // the disk's I/O scheduler
	FileSystem string `json:"filesystem,omitempty"`    // its type; of a file only
	Mount      string `json:"mount,omitempty"`         // where it is mounted
	MountOpts  string `json:"mount_options,omitempty"` // of the mount and of the file system
}

// Target is what fio reads and writes.
type Target struct {
	Kind      string `json:"kind"`       // "file" or "device"
	Path      string `json:"path"`       // the same in every arm
	Size      int64  `json:"size_bytes"` // fio stays within it
	Written   bool   `json:"written"`    // all of it was written before the first trial
	DirectIO  int64  `json:"direct_io_unit_bytes,omitempty"`
	ReadsOnly bool   `json:"reads_only,omitempty"` // a device without --destroy-data: no row writes
}

// Folder is the folder of a file that was measured, "" for a device.
func (t Target) Folder() string {
	if t.Kind != "file" {
		return ""
	}
	return filepath.Dir(t.Path)
}

// Turns says whether the disk is known to be a turning one. The kernel's word alone does not do: it calls virtual disks and loop
// devices rotational too, whatever they lie on, unless their driver says otherwise (Linux, block/blk-settings.c).
func (m Disk) Turns() bool {
	real := strings.HasPrefix(m.Device, "sd") || strings.HasPrefix(m.Device, "hd")
	model := strings.ToUpper(m.Model)
	for _, virtual := range []string{"QEMU", "VIRTUAL", "VBOX", "VMWARE"} {
		real = real && !strings.Contains(model, virtual)
	}
	return real && m.Rotational == "1"
}

// Emulation says what emulates the CPU, "" where a CPU runs the instructions itself (in a virtual machine too). QEMU's
// emulator calls its CPUs by its own name (target/i386/cpu.c), unless it was told to pretend.
func Emulation(cpu string) string {
	if strings.Contains(cpu, "QEMU TCG") || strings.Contains(cpu, "QEMU Virtual CPU") {
		return "QEMU, " + cpu
	}
	return ""
}

// Emulation says what emulates the machine's CPU, "" where nothing does.
func (m Machine) Emulation() string { return Emulation(m.CPU) }
