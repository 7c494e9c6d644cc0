package lab

import (
	"fmt"
	"testing"
	"time"
)

// hotDisk is QEMU's options for a disk that can be unplugged: behind a port of its own, and with a backend that stays
// when its device goes.
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

// Unplug asks the machine to let a hot disk go, by its place in the wish. The guest takes a moment.
func (m *VM) Unplug(t testing.TB, disk int) {
	t.Helper()
	if _, err := m.qmp.call("device_del", map[string]any{"id": fmt.Sprintf("plug-disk%d", disk)}); err != nil {
		t.Fatal(err)
	}
}

// Plug plugs a disk in again that the guest has let go; QEMU may take a moment to see that it has.
func (m *VM) Plug(t testing.TB, disk int) {
	t.Helper()
	id := fmt.Sprintf("disk%d", disk)
	device := map[string]any{
		"driver": m.want.Disks[disk].device(), "id": "plug-" + id, "bus": fmt.Sprintf("hot%d", disk), "drive": id, "serial": id,
	}
	// That the device is not listed any more does not mean that it has let go of the drive: that takes QEMU another moment.
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
