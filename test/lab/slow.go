package lab

import (
	"context"
	"fmt"
	"testing"
)

// Slow makes a disk of the machine's, by its place in the wish, as slow as said, from now on: so many bytes and
// requests a second in all, 0 for no bound. It is the emulator's own throttle: the guest sees a disk that is no faster.
func (m *VM) Slow(t testing.TB, disk int, bytes, requests int64) {
	t.Helper()
	if err := m.SlowDisk(disk, bytes, requests); err != nil {
		t.Fatal(err)
	}
}

// SlowDisk is Slow for a program that is no test.
func (m *VM) SlowDisk(disk int, bytes, requests int64) error {
	return m.qmp.monitor(fmt.Sprintf("block_set_io_throttle disk%d %d 0 0 %d 0 0", disk, bytes, requests))
}

// BuildTool builds a static program of this source tree as file out.
func BuildTool(ctx context.Context, out, pkg string) error {
	module, err := moduleDir(ctx)
	if err != nil {
		return err
	}
	return buildGo(ctx, module, out, pkg)
}
