package lab_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"berth/test/lab"
	"berth/test/sample"
)

// TestNFSSuite runs the conformance suite of gateways on NFS, in a machine that has the nodes and the server, the kernel's or
// NFS-Ganesha: the suite must see the server's files.
func TestNFSSuite(t *testing.T) {
	t.Parallel()
	suite := filepath.Join(t.TempDir(), "suite")
	build := exec.Command("go", "test", "-c", "-trimpath", "-tags", "nfslab", "-o", suite, "berth/internal/storage/gateway")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	m := lab.Start(t, lab.Options{Machines: []lab.Machine{{CPUs: 2, Memory: 1024, Disks: []lab.Disk{{Size: 512 << 20}, {Size: 8 << 20}}}}}).VM(0)
	m.Copy(t, suite, "/root/suite")
	m.OK(t, `mkfs.ext4 -q -O quota,project -E quotatype=prjquota /dev/vdb; mkfs.ext4 -q /dev/vdc; mkdir -p /srv /small; mount -o prjquota /dev/vdb /srv; mount /dev/vdc /small; chmod 711 /srv /small
ip link add nfs0 type bridge; ip addr add 192.0.2.1/24 dev nfs0; ip link set nfs0 up
printf '[nfsd]\ngrace-time=10\nlease-time=10\nthreads=8\n' >/etc/nfs.conf
for dir in /srv /small; do echo "$dir 192.0.2.0/24(rw,async,no_root_squash,no_subtree_check,insecure)"; done >/etc/exports`)
	m.Write(t, "/etc/ganesha/ganesha.conf", `NFS_CORE_PARAM { Protocols = 4; NFS_Port = 2049; Enable_NLM = false; Enable_RQUOTA = false; }
NFSv4 { RecoveryBackend = fs; Grace_Period = 10; Lease_Lifetime = 10; Only_Numeric_Owners = true; }
NFS_KRB5 { Active_krb5 = false; }
EXPORT { Export_Id = 1; Path = /srv; Pseudo = /srv; Access_Type = RW; Squash = none; SecType = sys; Protocols = 4; FSAL { Name = VFS; } }
EXPORT { Export_Id = 2; Path = /small; Pseudo = /small; Access_Type = RW; Squash = none; SecType = sys; Protocols = 4; FSAL { Name = VFS; } }
`)
	kept, _ := strconv.Atoi(os.Getenv("BERTH_GATEWAY_KEPT")) // how many files are written and read back; 0: few
	for _, service := range sample.Some(sample.Of(t), 1, "nfs-server", "nfs-ganesha") {
		t.Run(service, func(t *testing.T) {
			m.OK(t, "systemctl stop nfs-server nfs-ganesha; systemctl start "+service+"; while awaiting; do ss -ltn | grep -q :2049 && exit; done; journalctl -u "+service+"; exit 1")
			r := m.RunFor(t, 12*time.Minute+time.Duration(kept)*200*time.Millisecond, "bash", "-c", "cd /root; NFS_SERVICE="+service+" NFS_KEPT="+strconv.Itoa(kept)+" ./suite -test.v -test.run '^TestNFSSuite$' 2>&1")
			t.Log(r.Out)
			if r.Code != 0 {
				t.Errorf("the suite: exit code %d; the kernel: %s", r.Code, m.OK(t, "dmesg | tail -20; journalctl -n 20 -u "+service))
			}
		})
	}
}
