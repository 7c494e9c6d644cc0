package lab

import (
	"fmt"
	"testing"
	"time"
)

// hotDisk returns QEMU's options for a disk that can be unplugged: it has its own port, and its backend survives the removal
// of the device.
func (m *VM) hotDisk(i int) []string {
	id := fmt.Sprintf("disk%d", i)
	return []string{
		"-blockdev", "driver=qcow2,node-name=" + id + ",cache.no-flush=on,file.driver=file,file.cache.no-flush=on,file.filename=" + m.file(id),
		"-device", fmt.Sprintf("pcie-root-port,id=hot%d,chassis=%d", i, 100+i),
		"-device", fmt.Sprintf("%s,id=plug-%s,bus=hot%d,drive=%s,serial=%s", m.want.Disks[i].device(), id, i, id, id),
	}
}

func (d Disk) device() string {
	if d.NVMe {
		return "nvme"
	}
	return "virtio-blk-pci"
}

// Unplug asks the guest to release a hot disk, given by its index in Machine.Disks. The guest takes a moment.
func (m *VM) Unplug(t testing.TB, disk int) {
	t.Helper()
	if _, err := m.qmp.call("device_del", map[string]any{"id": fmt.Sprintf("plug-disk%d", disk)}); err != nil {
		t.Fatal(err)
	}
}

// Plug plugs in an unplugged disk again. It waits until QEMU has removed the old device.
func (m *VM) Plug(t testing.TB, disk int) {
	t.Helper()
	id := fmt.Sprintf("disk%d", disk)
	device := map[string]any{
		"driver": m.want.Disks[disk].device(), "id": "plug-" + id, "bus": fmt.Sprintf("hot%d", disk), "drive": id, "serial": id,
	}
	// QEMU may still use the drive for a moment after the device is no longer listed.
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		_, err := m.qmp.call("device_add", device)
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not let %s go: %v", m.Name, id, err)
		}
	}
}
