package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestLab tests the functions of the lab that other tests rely on.
func TestLab(t *testing.T) {
	t.Parallel()
	l := Start(t, Options{Machines: []Machine{{
		CPUs: 1, Memory: 768, NICs: []NIC{{}}, Disks: []Disk{{Size: 64 << 20}},
	}}})
	m := l.VM(0)

	t.Run("commands", func(t *testing.T) {
		r := m.Run(t, "sh", "-c", "echo out; echo err >&2; exit 3")
		if r.Out != "out\n" || r.Err != "err\n" || r.Code != 3 {
			t.Errorf("got %+v", r)
		}
		if r := m.Run(t, "sh", "-c", "kill -9 $$"); r.Code != 137 {
			t.Errorf("a command killed by signal 9: %+v", r)
		}
		m.OK(t, "sleep 100 & true") // a process left in the background does not delay the answer
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := m.do(ctx, []string{"sleep", "100"}); err == nil || !strings.Contains(err.Error(), "killed after") {
			t.Errorf("a command that takes too long: %v", err)
		}
		m.OK(t, "pkill sleep; test $(systemctl is-system-running --wait) = running || systemctl --failed >&2")
	})

	t.Run("hardware", func(t *testing.T) {
		if got := m.OK(t, "basename $(readlink /sys/class/net/e*/device/driver); cat /sys/class/net/e*/device/sriov_totalvfs"); got != "igb\n7" {
			t.Errorf("the adapter: %q", got)
		}
		const carrier = "ip link set dev $(ls /sys/class/net | grep -v lo) up; while awaiting; do [ $(cat /sys/class/net/e*/carrier) = %d ] && exit; done; exit 1"
		m.OK(t, strings.Replace(carrier, "%d", "1", 1))
		m.UnplugCable(t, 0)
		m.OK(t, strings.Replace(carrier, "%d", "0", 1))
		m.PlugCable(t, 0)
		m.OK(t, strings.Replace(carrier, "%d", "1", 1))
		if got := m.OK(t, "lsblk -dnbo SIZE /dev/vdb"); strings.TrimSpace(got) != "67108864" {
			t.Errorf("the disk: %q", got)
		}
	})

	t.Run("snapshot", func(t *testing.T) {
		local := filepath.Join(t.TempDir(), "program")
		if err := os.WriteFile(local, []byte(strings.Repeat("x", 3<<20)), 0o755); err != nil {
			t.Fatal(err)
		}
		m.Copy(t, local, "/srv/a/program")
		if got := m.OK(t, "stat -c '%s %a' /srv/a/program"); got != "3145728 755" {
			t.Errorf("the copy: %q", got)
		}
		m.Snapshot(t, "clean")
		m.OK(t, "rm -r /srv/a; sleep 3")
		began := time.Now()
		m.Restore(t, "clean")
		t.Logf("restored in %.2f s", time.Since(began).Seconds())
		m.OK(t, fmt.Sprintf("test -s /srv/a/program; d=$(( $(date +%%s) - %d )); test $d -ge -2 -a $d -le 2", time.Now().Unix()))
	})

	t.Run("power", func(t *testing.T) {
		m.OK(t, "echo kept >/srv/kept; sync")
		m.Kill()
		if _, err := m.ping(t.Context()); err == nil {
			t.Error("a machine that is off answers")
		}
		began := time.Now()
		m.Boot(t)
		t.Logf("booted in %.1f s", time.Since(began).Seconds())
		before := m.bootID
		m.OK(t, "grep kept /srv/kept")
		m.Reboot(t)
		if m.bootID == before {
			t.Error("the boot id after a reboot is the one before")
		}
		began = time.Now()
		if r, err := m.do(t.Context(), []string{"sh", "-c", "echo b >/proc/sysrq-trigger; sleep 60"}); err == nil {
			t.Errorf("a machine that ended answers: %+v", r)
		}
		if d := time.Since(began); d > time.Minute { // as long as the command would run
			t.Errorf("that a machine ended was seen after %v", d)
		}
	})
}

// TestTwoMachines joins two machines by a cable.
func TestTwoMachines(t *testing.T) {
	t.Parallel()
	small := Machine{CPUs: 1, Memory: 512, NICs: []NIC{{Segment: "a"}}}
	l := Start(t, Options{Machines: []Machine{small, small}})
	for i := range 2 {
		l.VM(i).OK(t, fmt.Sprintf("n=$(basename $(ls -d /sys/class/net/e*)); ip addr add 192.0.2.%d/24 dev $n; ip link set $n up", i+1))
	}
	ping := "while awaiting; do busybox ping -c1 -W1 192.0.2.2 >/dev/null && exit; done; exit 1"
	l.VM(0).OK(t, ping)
	if got := l.VM(0).OK(t, "ip neigh show 192.0.2.2"); !strings.Contains(got, "52:54:00:77:02:01") {
		t.Errorf("the neighbour: %q", got)
	}
	l.VM(1).UnplugCable(t, 0)
	l.VM(0).OK(t, "! busybox ping -c1 -W1 192.0.2.2 >/dev/null")
	l.VM(1).PlugCable(t, 0)
	l.VM(0).OK(t, ping)
}
