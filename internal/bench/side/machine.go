package side

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"berth/internal/bench/result"
	"berth/internal/host/block"
)

// Computer describes the machine without its disks.
func Computer() (result.Machine, error) {
	m := result.Machine{
		CPU:      cpuModel("/proc/cpuinfo"),
		Cores:    runtime.NumCPU(),
		Governor: Word("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return result.Machine{}, fmt.Errorf("ask for the kernel's version: %w", err)
	}
	m.Kernel = unix.ByteSliceToString(u.Release[:])
	return m, nil
}

// DiskOf describes the disk under a target.
func DiskOf(t result.Target) (d result.Disk, err error) {
	find := block.Resolve
	if t.Kind == "file" {
		find = block.Under
		if err := readMount(&d, filepath.Dir(t.Path)); err != nil {
			return result.Disk{}, err
		}
	}
	if dev, err := find("/sys", t.Path); err == nil { // btrfs and others have no one disk: measured all the same
		readDevice(&d, filepath.Join("/sys/block", dev.Name), dev.Name)
	}
	return d, nil
}

func readDevice(m *result.Disk, dir, name string) {
	m.Device = name
	m.Model = Word(filepath.Join(dir, "device/model"))
	m.Rotational = Word(filepath.Join(dir, "queue/rotational"))
	m.WriteCache = Word(filepath.Join(dir, "queue/write_cache"))
	m.Scheduler = Word(filepath.Join(dir, "queue/scheduler"))
	if _, rest, ok := strings.Cut(m.Scheduler, "["); ok { // none [mq-deadline] bfq
		m.Scheduler, _, _ = strings.Cut(rest, "]")
	}
}

func readMount(m *result.Disk, dir string) error {
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

// Word returns the trimmed content of a file of the kernel's, "" where there is none.
func Word(path string) string {
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
