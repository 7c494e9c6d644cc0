package lab_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"berth/test/lab"
)

// TestNFSSuite runs the conformance suite of gateways on NFS 4.2, in a machine that has the nodes and the kernel's server: the suite
// must see the server's files.
func TestNFSSuite(t *testing.T) {
	t.Parallel()
	suite := filepath.Join(t.TempDir(), "suite")
	build := exec.Command("go", "test", "-c", "-trimpath", "-tags", "nfslab", "-o", suite, "berth/internal/gateway")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	m := lab.Start(t, lab.Options{Machines: []lab.Machine{{CPUs: 2, Memory: 1024, Disks: []lab.Disk{{Size: 512 << 20}}}}}).VM(0)
	m.Copy(t, suite, "/root/suite")
	m.OK(t, `mkfs.ext4 -q /dev/vdb; mkdir -p /srv; mount /dev/vdb /srv; chmod 711 /srv
ip link add nfs0 type bridge; ip addr add 192.0.2.1/24 dev nfs0; ip link set nfs0 up
printf '[nfsd]\ngrace-time=10\nlease-time=10\nthreads=8\n' >/etc/nfs.conf
echo '/srv 192.0.2.0/24(rw,async,no_root_squash,no_subtree_check,insecure)' >/etc/exports
systemctl start nfs-server`)
	r := m.RunFor(t, 8*time.Minute, "bash", "-c", "cd /root; ./suite -test.v -test.run '^TestNFSSuite$' 2>&1")
	t.Log(r.Out)
	if r.Code != 0 {
		t.Errorf("the suite: exit code %d; the kernel: %s", r.Code, m.OK(t, "dmesg | tail -20"))
	}
}
