package lab

import (
	"context"
	"fmt"
	"testing"
)

// Slow limits a disk, given by its index in Machine.Disks, to a number of bytes and of requests per second, reads and writes
// together; 0 is no limit. QEMU's throttle enforces it, so the guest sees a slow disk.
func (m *VM) Slow(t testing.TB, disk int, bytes, requests int64) {
	t.Helper()
	if err := m.SlowDisk(disk, bytes, requests); err != nil {
		t.Fatal(err)
	}
}

// SlowDisk is Slow for programs that are not tests.
func (m *VM) SlowDisk(disk int, bytes, requests int64) error {
	return m.qmp.monitor(fmt.Sprintf("block_set_io_throttle disk%d %d 0 0 %d 0 0", disk, bytes, requests))
}

// BuildTool builds pkg of this source tree as a static program in file out.
func BuildTool(ctx context.Context, out, pkg string) error {
	module, err := moduleDir(ctx)
	if err != nil {
		return err
	}
	return buildGo(ctx, module, out, pkg)
}
