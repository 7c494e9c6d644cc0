package lab_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"berth/internal/image/imagetest"
	"berth/internal/runner/machine"
	"berth/test/built"
	"berth/test/lab"
)

// TestMachines runs a node of kind machine on cgroup v2: an emulator in an emulated machine. Its limits are read back, hold its disk, and
// change while it runs; a container answers it; kill -9 of its emulator leaves nothing. Beside another machine of the lab the guest takes longer to
// boot than it may.
func TestMachines(t *testing.T) {
	m := start(t, lab.Machine{Memory: 2048, Disks: []lab.Disk{{Size: 256 << 20}}})
	emulator(t, m)
	m.Write(t, "/root/c.yaml", "name: c\nimage: host\ncommand: [sleep, infinity]\nnetwork: [{mode: bridge, address: [192.0.2.11/24]}]\n")
	m.Write(t, "/root/m.yaml", `name: m
kind: machine
image: file:/srv/busybox.erofs
command: [sh, -c, "trap 'exit 3' TERM; while :; do sleep 0.5; done"]
machine: {memory: 192MiB, kernel: /boot/vmlinuz}
memory: {max: 700MiB}
cpu: {max: 1.5}
pids: 300
delta: {size: 64MiB}
devices: [{path: /dev/vdb, as: /dev/own}]
io: [{name: own, device: /dev/vdb, read: {rate: 8MB/s}, write: {rate: 4MB/s}}]
network: [{name: eth0, mode: bridge, address: [192.0.2.10/24]}]
stop: {grace: 2m}
`)
	m.OK(t, "berth apply -f /root/c.yaml; berth apply --trust -f /root/m.yaml || { dmesg | tail -n 20; exit 1; }")
	s := show(t, m, "m")
	for _, l := range s.Limits {
		if !l.Holds {
			t.Errorf("%s: asked for %s, the kernel has %s, by %s", l.Key, l.Asked, l.ReadBack, l.HonouredBy)
		}
	}
	group := strings.TrimSpace(m.OK(t, fmt.Sprintf("sed -n 's/^0:://p' /proc/%d/cgroup", s.PID)))
	emulators := fmt.Sprintf("pgrep -P %d", s.PID)
	if at := strings.TrimSpace(m.OK(t, "cat /proc/$("+emulators+")/cgroup")); at != "0::"+group {
		t.Errorf("the emulator is in %s, its monitor in %s", at, group)
	}
	node := "/sys/fs/cgroup" + regexp.MustCompile(`(/m)/.*$`).ReplaceAllString(group, "$1")
	if f := files(t, m, node, "memory.max", "cpu.max", "pids.max", "io.max"); f["memory.max"] != "734003200" || f["cpu.max"] != "150000 100000" ||
		f["pids.max"] != "300" || !strings.Contains(f["io.max"], "rbps=8000000 wbps=4000000") {
		t.Errorf("the kernel has %v", f)
	}
	m.OK(t, "berth exec m -- sh -ec 'uname -r; echo kept >/kept; dd if=/dev/zero of=/dev/own bs=64k count=16 oflag=direct; cat /proc/mounts'")
	if out := m.OK(t, "sed -n 's/.*wbytes=\\([0-9]*\\).*/\\1/p' "+node+"/io.stat"); !strings.Contains("\n"+out+"\n", "\n1048576\n") {
		t.Errorf("the group wrote %q to its disks", out)
	}
	m.OK(t, "berth set m io.own.write.rate=6MB/s memory.max=800MiB; grep wbps=6000000 "+node+"/io.max; berth exec m -- ping -c 2 -W 30 192.0.2.11")

	m.OK(t, "berth stop m; berth ls | grep 'stopped 3'; berth start m; berth exec m -- grep kept /kept")
	m.OK(t, "kill -9 $(pgrep qemu-system-x86)")
	m.Await(t, "the machine has ended", "berth ls | grep 'exited 137'", "berth ls; berth logs m")
	m.OK(t, "berth rm --force m c; test -z \"$(ls /var/lib/berth/nodes)\"; test ! -e "+node+"; ! pgrep qemu-system-x86")
}

// emulator gives a machine of the lab an emulator of its own, this host's, with what that needs, an image and a kernel to boot.
func emulator(t *testing.T, m *lab.VM) {
	t.Helper()
	dir := t.TempDir()
	program, err := exec.LookPath(machine.Program)
	if err != nil {
		t.Fatal(err) // the lab's machines run by it
	}
	libraries, err := exec.Command("ldd", program).Output()
	if err != nil {
		t.Fatal(err)
	}
	all := []string{program, "/usr/share/qemu", "/usr/share/seabios"}
	for _, at := range regexp.MustCompile(`(?m) => (/\S+)`).FindAllStringSubmatch(string(libraries), -1) {
		all = append(all, at[1])
	}
	top := filepath.Join(dir, "usr")
	for _, from := range all {
		to := filepath.Join(top, strings.TrimPrefix(filepath.Dir(from), "/usr"))
		if err := os.MkdirAll(to, 0o755); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("cp", "-rL", from, to).CombinedOutput(); err != nil {
			t.Fatalf("copy %s: %s", from, out)
		}
	}
	if err := built.Guest(context.Background(), dir); err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string]string{"qemu": top, "busybox": imagetest.BusyboxDir(t)} {
		file := filepath.Join(dir, name+".erofs")
		if out, err := exec.Command("mkfs.erofs", "--quiet", "-zlz4", file, from).CombinedOutput(); err != nil {
			t.Fatalf("mkfs.erofs: %v: %s", err, out)
		}
		m.Copy(t, file, "/srv/"+name+".erofs")
	}
	m.Copy(t, filepath.Join(dir, "berth-guest"), "/usr/local/bin/berth-guest")
	image, err := exec.Command("image/build", "--where").Output()
	if err != nil {
		t.Fatal(err)
	}
	m.Copy(t, filepath.Join(strings.TrimSpace(string(image)), "vmlinuz"), "/boot/vmlinuz")
	m.OK(t, `mkdir /run/qemu; mount -o loop /srv/qemu.erofs /run/qemu; mount -t overlay -o lowerdir=/usr:/run/qemu overlay /usr
		qemu-system-x86_64 --version; modprobe tun`)
}
