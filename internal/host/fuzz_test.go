package host_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"berth/internal/host"
)

// FuzzDoctor puts random text into the files that checks parse. Each check must still be complete.
func FuzzDoctor(f *testing.F) {
	f.Add("flags : vmx\n", "igb 1 0\nigbvf 1 0\n", "DRIVER=igbvf\n", "0x1003\n", "MACAddressPolicy=random\n", "[none] bfq")
	f.Add("intel_iommu=on iommu", "\n\n", "DRIVER=", "0x", "=", "none")
	f.Add("1 2 3 4 /mnt 6 - hugetlbfs h rw", " ", "", "-1", "\x00", "[")
	dir := f.TempDir()
	files := map[string]int{
		"cpuinfo": 0, "cmdline": 0, "self/mountinfo": 0, "modules": 1, "class/net/e0/device/uevent": 2, "class/net/e0/device/virtfn0/uevent": 2,
		"class/net/e0/flags": 3, "class/net/e0/device/sriov_totalvfs": 3, "class/net/e0/device/sriov_numvfs": 3,
		"systemd/network/x.link": 4, "NetworkManager/NetworkManager.conf": 4, "block/sda/queue/scheduler": 5, "block/sda/size": 3, "block/md0/size": 3,
	}
	for name := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			f.Fatal(err)
		}
	}
	h := host.Host{Proc: dir, Sys: dir, Etc: dir, Boot: dir, Run: dir, Usr: dir}
	f.Fuzz(func(t *testing.T, a, b, c, d, e, g string) {
		for name, i := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte([]string{a, b, c, d, e, g}[i]), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		checks := host.Doctor(h, worked())
		for _, c := range checks {
			if c.Area == "" || c.Name == "" || c.Found == "" || c.Why == "" || c.State == "" {
				t.Errorf("incomplete check: %+v", c)
			}
		}
		if err := host.Text(&bytes.Buffer{}, checks); err != nil {
			t.Error(err)
		}
	})
}
