package bench

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"berth/internal/block"
)

// Machine is where a report was measured. What could not be found out is empty.
type Machine struct {
	Kernel   string `json:"kernel"`
	CPU      string `json:"cpu"`
	Cores    int    `json:"cores"`                  // that this process may use
	Governor string `json:"cpu_governor,omitempty"` // of the first CPU
	Disk
}

// Disk is what a file or a device that is measured lies on. What could not be found out is empty.
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

// Computer describes the machine without its disks.
func Computer() (Machine, error) {
	m := Machine{
		CPU:      cpuModel("/proc/cpuinfo"),
		Cores:    runtime.NumCPU(),
		Governor: word("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return Machine{}, fmt.Errorf("ask for the kernel's version: %w", err)
	}
	m.Kernel = unix.ByteSliceToString(u.Release[:])
	return m, nil
}

// machine describes the machine and the disk under the target.
func machine(t Target) (Machine, error) {
	m, err := Computer()
	if err != nil {
		return Machine{}, err
	}
	m.Disk, err = diskOf(t)
	return m, err
}

// diskOf describes the disk under a target.
func diskOf(t Target) (d Disk, err error) {
	find := block.Resolve
	if t.Kind == "file" {
		find = block.Under
		if err := d.readMount(filepath.Dir(t.Path)); err != nil {
			return Disk{}, err
		}
	}
	if dev, err := find("/sys", t.Path); err == nil { // btrfs and others have no one disk: measured all the same
		d.readDevice(filepath.Join("/sys/block", dev.Name), dev.Name)
	}
	return d, nil
}

func (m *Disk) readDevice(dir, name string) {
	m.Device = name
	m.Model = word(filepath.Join(dir, "device/model"))
	m.Rotational = word(filepath.Join(dir, "queue/rotational"))
	m.WriteCache = word(filepath.Join(dir, "queue/write_cache"))
	m.Scheduler = word(filepath.Join(dir, "queue/scheduler"))
	if _, rest, ok := strings.Cut(m.Scheduler, "["); ok { // none [mq-deadline] bfq
		m.Scheduler, _, _ = strings.Cut(rest, "]")
	}
}

func (m *Disk) readMount(dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.ParentsFilter(dir))
	if err != nil {
		return fmt.Errorf("read the mounts: %w", err)
	}
	for _, i := range mounts {
		if len(i.Mountpoint) >= len(m.Mount) { // the deepest; of those on one place the last, which covers the others
			m.Mount, m.FileSystem, m.MountOpts = i.Mountpoint, i.FSType, i.Options
			if i.VFSOptions != "" {
				m.MountOpts += "," + i.VFSOptions
			}
		}
	}
	return nil
}

// word returns the trimmed content of a file of the kernel's, "" where there is none.
func word(path string) string {
	b, _ := os.ReadFile(path)
	return strings.TrimSpace(string(b))
}

func cpuModel(cpuinfo string) string {
	f, err := os.Open(cpuinfo)
	if err != nil {
		return ""
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if key, v, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
