package lab

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"berth/test/lab/wire"
	"berth/test/testkit"
)

// Run runs a command in the machine for at most two minutes and accepts any exit code.
func (m *VM) Run(t testing.TB, args ...string) Result {
	t.Helper()
	return m.RunFor(t, defaultTimeout, args...)
}

// RunFor is Run with another time limit.
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

// awaiting is a function for scripts, which wait for an event with "while awaiting; do CONDITION && exit; done; exit 1". It
// succeeds every tenth of a second, until the script has run for twice testkit.Bound: emulation is slow. Then it says so.
func awaiting() string {
	bound := int(2 * testkit.Bound().Seconds())
	return fmt.Sprintf("awaiting() { [ $SECONDS -lt %d ] && sleep 0.1 && return; echo 'did not happen within %d s' >&2; return 1; }\n", bound, bound)
}

// scriptTime is how long a script may take that uses awaiting.
func scriptTime() time.Duration { return 3 * testkit.Bound() }

// Await waits in the machine until a bash script succeeds. If it does not, the test fails with what another script prints.
func (m *VM) Await(t testing.TB, what, script, tell string) {
	t.Helper()
	r := m.RunFor(t, scriptTime(), "bash", "-c", awaiting()+"while awaiting; do ( "+script+" ) && exit; done; "+tell+"; exit 1")
	if r.Code != 0 {
		t.Fatalf("%s: did not happen within %s:\n%s%s", what, 2*testkit.Bound(), r.Out, r.Err)
	}
}

// Try runs a bash script, which may use the function awaiting and may fail. It ends with the first command that fails, and says which it was.
func (m *VM) Try(t testing.TB, script string) Result {
	t.Helper()
	return m.RunFor(t, scriptTime(), "bash", "-Eec", "trap 'echo \"failed: $BASH_COMMAND\" >&2' ERR\n"+awaiting()+script)
}

// OK runs a bash script, which must succeed, and returns its output without the final newline. The script may use the function
// awaiting.
func (m *VM) OK(t testing.TB, script string) string {
	t.Helper()
	r := m.Try(t, script)
	if r.Code != 0 {
		// The last line comes first, because a long text may be cut off.
		t.Fatalf("%s: exit code %d: %s\nof\n%s\n%s%s", m.Name, r.Code, last(r.Err, r.Out), script, r.Out, r.Err)
	}
	return strings.TrimSuffix(r.Out, "\n")
}

// last returns the last line of the first text that has one.
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

// CopyFile is Copy for programs that are not tests.
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

// Kill ends the machine like a power cut. Data that were not flushed may be lost.
func (m *VM) Kill() { m.off() }

// Boot starts a machine that is off, with its former disks.
func (m *VM) Boot(t testing.TB) {
	t.Helper()
	if err := m.power(); err != nil {
		t.Fatal(err)
	}
	if err := m.await(); err != nil {
		t.Fatal(err)
	}
}

// Reboot shuts the machine down cleanly and starts it again.
func (m *VM) Reboot(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), defaultTimeout)
	defer cancel()
	// The answer may be lost at the shutdown. The code below detects a machine that does not reboot.
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

// UnplugCable removes an adapter's carrier.
func (m *VM) UnplugCable(t testing.TB, nic int) {
	t.Helper()
	m.setLink(t, nic, false)
}

// PlugCable restores an adapter's carrier.
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

// Snapshot saves the machine's memory, disks and devices. Take it before virtual functions exist, because they pass no frames
// after a restore. No command may be running. A machine with an NVMe disk has no snapshots.
func (m *VM) Snapshot(t testing.TB, name string) {
	t.Helper()
	if err := m.qmp.monitor("savevm " + name); err != nil {
		t.Fatal(err)
	}
}

// Restore resets the machine, which may be off, to a snapshot in about a second, and sets its clock. It starts a new QEMU
// process: in the old one the guest's time stamp counter would not go back with its timers (QEMU's cpu_get_ticks never goes
// back), and the guest would see time jump and its CPUs stall.
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

// Script runs a bash script for programs that are not tests. It accepts any exit code.
func (m *VM) Script(ctx context.Context, script string) (Result, error) {
	return m.do(ctx, []string{"bash", "-c", script})
}
