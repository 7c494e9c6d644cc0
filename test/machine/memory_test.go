package machine

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/test/testkit"
)

// TestMemory: a guest gives memory back to the host, gets no more than it booted with, and what goes on in it when it has no more is its
// own affair.
func TestMemory(t *testing.T) {
	needs(t)
	file := spec(t, "m6", "")
	text, err := os.ReadFile(file)
	testkit.Must(t, err)
	text = []byte(strings.Replace(string(text), "memory: 256MiB", "memory: 512MiB", 1))
	text = []byte(strings.Replace(string(text), "max: 600MiB", "max: 768MiB", 1))
	testkit.Must(t, os.WriteFile(file, text, 0o600))
	must(t, "apply", "-f", file)
	inside := func(script string) string { t.Helper(); return must(t, "exec", "m6", "--", "sh", "-c", script) }
	const mib = 1 << 20

	// Files in memory: the guest's own, and held until they are removed.
	inside("mkdir /in && mount -t tmpfs -o size=300m files /in && dd if=/dev/zero of=/in/full bs=1M count=256 2>/dev/null")
	full := used(t, "m6")
	if full < 256*mib {
		t.Errorf("with 256 MiB of files the machine uses %d MiB", full/mib)
	}
	inside("rm /in/full")
	freed := time.Now()
	testkit.Eventually(t, "what the guest has freed is back with the host", func() bool { return used(t, "m6") < full-150*mib })
	if out := must(t, "set", "m6", "machine.memory=256MiB"); !strings.Contains(out, "256MiB") || !strings.Contains(out, "balloon") {
		t.Errorf("set says %q", out)
	}
	testkit.Eventually(t, "what the balloon has taken is back with the host", func() bool { return used(t, "m6") < full-200*mib })
	took := time.Since(freed)
	t.Logf("%s after 256 MiB were freed and the balloon took 256 MiB, the group has %d MiB less", took.Round(time.Millisecond), (full-used(t, "m6"))/mib)
	if testkit.Measures() && took > 10*time.Second {
		t.Errorf("the host has 200 MiB more after %s, want 10s", took)
	}
	if out := inside("grep MemTotal /proc/meminfo | tr -dc 0-9"); number(t, out) > 256*1024 {
		t.Errorf("the guest has %s KiB", out)
	}
	if out := must(t, "show", "m6"); !shows(out, "machine.memory", "256MiB") {
		t.Errorf("show says:\n%s", out)
	}
	// What needs more meets the guest's own killer: the machine goes on.
	if out := inside("echo 1 >/proc/sys/vm/overcommit_memory; dd if=/dev/zero of=/dev/null bs=400M count=1 2>/dev/null; echo ended $?"); out != "ended 137\n" {
		t.Errorf("a program that needs more than the guest has: %q", out)
	}
	if _, code := berth(t, "", "set", "m6", "machine.memory=1GiB", "memory.max=2GiB"); code != 3 {
		t.Errorf("more memory than the machine booted with: exit code %d", code)
	}
	if out, code := berth(t, "", "set", "m6", "machine.memory=128MiB", "machine.memory=640MiB"); code != 2 {
		t.Errorf("more than memory.max holds: exit code %d: %s", code, out)
	}
	for _, none := range []string{"max", "0"} {
		if out, code := berth(t, "", "set", "m6", "machine.memory="+none); code != 2 {
			t.Errorf("memory %s: exit code %d: %s", none, code, out)
		}
	}
	// A machine that is paused says nothing, and has lost nothing.
	must(t, "pause", "m6")
	if out := strings.Join(strings.Fields(must(t, "show", "m6")), " "); !strings.Contains(out, "it was not read: it is paused") || strings.Contains(out, "DOES NOT HOLD") {
		t.Errorf("of a paused machine show says:\n%s", out)
	}
	for _, memory := range []string{"256MiB", "128MiB"} {
		if out, code := berth(t, "", "set", "m6", "machine.memory="+memory); code != 5 {
			t.Errorf("memory %s of a paused machine: exit code %d: %s", memory, code, out)
		}
	}
	must(t, "unpause", "m6")
	must(t, "apply", "-f", file)
	if out := must(t, "ls", "--json"); !strings.Contains(out, `"m6"`) {
		t.Errorf("ls says %s", out)
	}
	if out := must(t, "show", "m6"); !shows(out, "machine.memory", "512MiB") {
		t.Errorf("after apply, show says:\n%s", out)
	}
	larger := strings.NewReplacer("memory: 512MiB", "memory: 600MiB", "max: 768MiB", "max: 900MiB").Replace(string(text))
	testkit.Must(t, os.WriteFile(file, []byte(larger), 0o600))
	if _, code := berth(t, "", "apply", "-f", file); code != 5 {
		t.Errorf("apply of more than it booted with: exit code %d, want that it needs a restart", code)
	}
	// What the guest gives back is not in the way of a lower limit.
	inside("dd if=/dev/zero of=/full bs=1M count=200 2>/dev/null; rm /full")
	must(t, "set", "m6", "machine.memory=256MiB", "memory.max=512MiB", "restart=always")
	endsUnderSet(t, inside)
	bombed(t)
}

// endsUnderSet: a machine that ends while the guest is asked for memory is started again as its spec says.
func endsUnderSet(t *testing.T, inside func(script string) string) {
	t.Helper()
	inside("dd if=/dev/zero of=/full bs=1M count=100 2>/dev/null; echo 1 >/lives") // which it cannot give away
	monitor := monitorOf(t, "m6")
	asks := bench.Command("set", "m6", "machine.memory=128MiB")
	testkit.Must(t, asks.Start())
	testkit.Eventually(t, "the guest is asked", func() bool {
		live, _ := os.ReadFile(filepath.Join(bench.Root, "run/nodes/m6/journal"))
		return strings.Contains(string(live), `"to":134217728`)
	})
	testkit.Must(t, unix.Kill(monitor, unix.SIGKILL))
	if err := asks.Wait(); err == nil {
		t.Error("set of a machine that ends meanwhile succeeds")
	}
	testkit.Eventually(t, "the machine runs again", func() bool {
		out, _, code := bench.Try("exec", "m6", "--", "sh", "-c", "test -e /lives || echo anew")
		return code == 0 && out == "anew\n"
	})
	if out := must(t, "show", "m6"); !shows(out, "machine.memory", "256MiB") {
		t.Errorf("after it, show says:\n%s", out)
	}
}

// bombed: a fork bomb in the guest is the guest's. The host has no process more, and can look at the machine and end it.
func bombed(t *testing.T) {
	t.Helper()
	threads := func() int { return strings.Count(ofGroup(t, "m6", "tasks", "cgroup.threads"), "\n") }
	before, small := threads(), used(t, "m6")
	bomb := bench.Command("exec", "m6", "--", "sh", "-c", "echo 'while :; do sh /bomb & done' >/bomb; sh /bomb")
	testkit.Must(t, bomb.Start())
	testkit.Eventually(t, "hundreds of processes fill the guest's memory", func() bool { return used(t, "m6") > small+64<<20 })
	if out := must(t, "ls"); !strings.Contains(out, "running") {
		t.Errorf("with a fork bomb in the machine, ls says:\n%s", out)
	}
	must(t, "show", "m6")
	if n := threads(); n > before+64 { // that many QEMU may have for I/O: they come and go
		t.Errorf("with a fork bomb in the machine, its group has %d threads, and had %d", n, before)
	}
	must(t, "rm", "--force", "m6")
	_ = bomb.Wait()
}

// used returns the memory that the group of a machine uses, as its limit counts it, in bytes.
func used(t *testing.T, node string) int64 {
	t.Helper()
	return number(t, ofGroup(t, node, "memory.usage_in_bytes", "memory.current"))
}

// ofGroup reads a file of the group by which the memory of a machine is limited, by its names in cgroup v1 and v2.
func ofGroup(t *testing.T, node, v1, v2 string) string {
	t.Helper()
	cg, err := host.ReadMounted()
	testkit.Must(t, err)
	at, file, prefix := cg.V1["memory"], v1, "memory:"
	if at == "" {
		at, file, prefix = cg.V2, v2, "0::"
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(monitorOf(t, node)) + "/cgroup")
	testkit.Must(t, err)
	for line := range strings.Lines(string(text)) {
		if _, path, ok := strings.Cut(line, prefix); ok {
			b, err := os.ReadFile(filepath.Join(at, strings.TrimSpace(path), file))
			testkit.Must(t, err)
			return string(b)
		}
	}
	t.Fatal("the monitor is in no group of memory")
	return ""
}

func number(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	testkit.Must(t, err)
	return n
}
