package lab_test

import (
	"strings"
	"testing"

	"berth/test/lab"
)

// TestDeltaQuota limits deltas by project quotas, which need a file system mounted for them.
func TestDeltaQuota(t *testing.T) {
	t.Parallel()
	m := start(t, lab.Machine{CPUs: 1, Memory: 768, Disks: []lab.Disk{{Size: 512 << 20}, {Size: 512 << 20}, {Root: true}}})
	m.OK(t, "mkdir /srv/root; mount -o ro /dev/vdd /srv/root; modprobe -a quota_v2 xfs || true")
	for _, fs := range []struct{ name, mkfs, disk, options string }{
		{"ext4", "mkfs.ext4 -q -O quota,project", "/dev/vdb", "prjquota"},
		{"xfs", "mkfs.xfs -q", "/dev/vdc", "prjquota"},
	} {
		t.Run(fs.name, func(t *testing.T) {
			root := "/srv/" + fs.name
			m.OK(t, fs.mkfs+" "+fs.disk+"; mkdir "+root+"; mount -o "+fs.options+" "+fs.disk+" "+root)
			berth := "berth --root " + root + "/berth "
			choose(t, m, root+"/berth/lib")
			t.Cleanup(func() { m.OK(t, "umount "+root) })
			for _, image := range []string{"host", "dir:/srv/root"} {
				m.Write(t, "/root/node.yaml", "name: q1\nimage: "+image+"\ncommand: [sleep, infinity]\ndelta: {size: 20MiB}\n")
				m.OK(t, berth+"apply -f /root/node.yaml")
				fill := berth + "exec q1 -- dd if=/dev/zero of=/var/tmp/fill bs=1M count=%N oflag=direct,append conv=notrunc"
				if image == "host" {
					fill = strings.Replace(fill, "/var/tmp", "/tmp", 1)
				}
				m.OK(t, strings.Replace(fill, "%N", "15", 1))
				r := m.Run(t, "bash", "-c", strings.Replace(fill, "%N", "15", 1))
				if r.Code == 0 || !strings.Contains(r.Err, "No space left") && !strings.Contains(r.Err, "quota exceeded") {
					t.Errorf("image %s: a node wrote more than its delta's size: %+v", image, r)
				}
				if image == "host" { // 20 MiB allow 4096 files
					r := m.Run(t, "bash", "-c", berth+"exec q1 -- sh -c 'rm /tmp/fill; mkdir /tmp/f; cd /tmp/f; seq 5000 | xargs touch'")
					made := number(t, m.OK(t, berth+"exec q1 -- sh -c 'ls /tmp/f | wc -l'"))
					if r.Code == 0 || made > 4096 || made < 3900 {
						t.Errorf("a node made %d files: %+v", made, r)
					}
				}
				m.OK(t, berth+"rm --force q1; test -z \"$(ls "+root+"/berth/lib/nodes)\"")
			}
		})
	}

	t.Run("refused elsewhere", func(t *testing.T) {
		m.Write(t, "/root/node.yaml", "name: q2\nimage: host\ncommand: [sleep, infinity]\ndelta: {size: 20MiB}\n")
		if r := m.Run(t, "berth", "apply", "-f", "/root/node.yaml"); r.Code != 3 || !strings.Contains(r.Err, "prjquota") {
			t.Errorf("a limited delta on a file system without quotas: %+v", r)
		}
	})
}
