package lab

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"berth/test/lab/wire"
)

// Run runs a command in the machine; any exit code will do. It may take two minutes: RunFor allows other times.
func (m *VM) Run(t testing.TB, args ...string) Result {
	t.Helper()
	return m.RunFor(t, defaultTimeout, args...)
}

// RunFor is Run for a command that may take as long as limit.
func (m *VM) RunFor(t testing.TB, limit time.Duration, args ...string) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	r, err := m.do(ctx, args)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// OK runs a script of bash, which must succeed, and returns its output without the last line's end.
func (m *VM) OK(t testing.TB, script string) string {
	t.Helper()
	r := m.Run(t, "bash", "-ec", script)
	if r.Code != 0 {
		// What it said last comes first: a long text may be cut off where it is read.
		t.Fatalf("%s: exit code %d: %s\nof\n%s\n%s%s", m.Name, r.Code, last(r.Err, r.Out), script, r.Out, r.Err)
	}
	return strings.TrimSuffix(r.Out, "\n")
}

// last is the last line of the first text that has one.
func last(texts ...string) string {
	for _, t := range texts {
		if t = strings.TrimSpace(t); t != "" {
			return t[strings.LastIndexByte(t, '\n')+1:]
		}
	}
	return "it said nothing"
}

// Write makes a file in the machine.
func (m *VM) Write(t testing.TB, path, text string) {
	t.Helper()
	m.put(t, path, 0o644, []byte(text))
}

// Copy copies a file of this host into the machine, with its mode.
func (m *VM) Copy(t testing.TB, local, remote string) {
	t.Helper()
	if err := m.CopyFile(context.Background(), local, remote); err != nil {
		t.Fatal(err)
	}
}

// CopyFile is Copy for a program that is no test.
func (m *VM) CopyFile(ctx context.Context, local, remote string) error {
	data, err := os.ReadFile(local)
	if err != nil {
		return err
	}
	st, err := os.Stat(local)
	if err != nil {
		return err
	}
	return m.putFile(ctx, remote, st.Mode().Perm(), data)
}

func (m *VM) put(t testing.TB, path string, mode os.FileMode, data []byte) {
	t.Helper()
	if err := m.putFile(context.Background(), path, mode, data); err != nil {
		t.Fatal(err)
	}
}

func (m *VM) putFile(ctx context.Context, path string, mode os.FileMode, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, defaultTimeout)
	defer cancel()
	_, _, err := m.request(ctx, wire.Request{Do: wire.Put, Path: path, Mode: uint32(mode)}, data)
	return err
}

// Kill ends the machine as a power cut does. What was written and not flushed may be lost.
func (m *VM) Kill() { m.off() }

// Boot switches a machine on that is off, with the disks that it had.
func (m *VM) Boot(t testing.TB) {
	t.Helper()
	if err := m.power(); err != nil {
		t.Fatal(err)
	}
	if err := m.await(); err != nil {
		t.Fatal(err)
	}
}

// Reboot shuts the machine down in good order and switches it on again.
func (m *VM) Reboot(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), defaultTimeout)
	defer cancel()
	// The answer may be lost with the machine. That it does not reboot is seen below.
	r, err := m.do(ctx, []string{"sh", "-c", "sync; systemctl --no-block reboot"})
	if err == nil && r.Code != 0 {
		t.Fatalf("reboot %s: %s", m.Name, r.Err)
	}
	select {
	case <-m.process.done:
	case <-time.After(2 * time.Minute):
		t.Fatal(m.because(fmt.Errorf("it does not shut down")))
	}
	m.off()
	m.Boot(t)
}

// UnplugCable takes an adapter's carrier away.
func (m *VM) UnplugCable(t testing.TB, nic int) {
	t.Helper()
	m.setLink(t, nic, false)
}

// PlugCable gives it back.
func (m *VM) PlugCable(t testing.TB, nic int) {
	t.Helper()
	m.setLink(t, nic, true)
}

func (m *VM) setLink(t testing.TB, nic int, up bool) {
	t.Helper()
	if _, err := m.qmp.call("set_link", map[string]any{"name": fmt.Sprintf("nic%d", nic), "up": up}); err != nil {
		t.Fatal(err)
	}
}

// Snapshot keeps the machine as it is now: memory, disks, devices. Take it before virtual functions exist, they pass
// nothing after a restore. No command may be running. A machine with an NVMe disk cannot be kept.
func (m *VM) Snapshot(t testing.TB, name string) {
	t.Helper()
	if err := m.qmp.monitor("savevm " + name); err != nil {
		t.Fatal(err)
	}
}

// Restore puts the machine back to a snapshot, in about a second; it may be off. Its clock is right afterwards. QEMU is
// started anew: in the same process the guest's time stamp counter would not go back with its timers (cpu_get_ticks of
// QEMU never goes back), and the guest would see time jump and its CPUs stall.
func (m *VM) Restore(t testing.TB, name string) {
	t.Helper()
	m.off()
	err := m.power("-loadvm", name)
	if err == nil {
		err = m.connect()
	}
	ctx, cancel := context.WithTimeout(context.Background(), defaultTimeout)
	defer cancel()
	if err == nil {
		m.bootID, err = m.ping(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Script runs a script of bash, for a program that is no test; any exit code will do.
func (m *VM) Script(ctx context.Context, script string) (Result, error) {
	return m.do(ctx, []string{"bash", "-c", script})
}
