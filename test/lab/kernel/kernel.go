// Package kernel takes a kernel and its modules out of the lab's image, for the machines that tests of other packages boot.
package kernel

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"berth/internal/runner/machine"
)

// Lack is what this host lacks to boot a machine: the reason for a skip.
type Lack string

func (l Lack) Error() string { return string(l) }

// modules are those that a guest of Berth's needs, and those that they need.
const modules = `
	drivers/virtio/virtio_mmio drivers/virtio/virtio_balloon drivers/misc/pvpanic/pvpanic drivers/misc/pvpanic/pvpanic-mmio drivers/block/virtio_blk drivers/char/hw_random/virtio-rng
	drivers/net/virtio_net drivers/net/net_failover net/core/failover crypto/crc32c_generic lib/libcrc32c lib/crc16
	fs/mbcache fs/jbd2/jbd2 fs/ext4/ext4 fs/erofs/erofs fs/squashfs/squashfs fs/overlayfs/overlay fs/fuse/fuse fs/fuse/virtiofs
`

// Into writes the kernel and its modules into a folder, and returns the kernel's file. The caller is a test of a package beside test/lab. The
// error is a Lack where there is no emulator, or no image yet.
func Into(dir string) (string, error) {
	if _, err := exec.LookPath(machine.Program); err != nil {
		return "", Lack("needs the emulator " + machine.Program)
	}
	out, err := exec.Command("../lab/image/build", "--where").Output()
	if err != nil {
		return "", fmt.Errorf("find the lab's image: %w", err)
	}
	image := strings.TrimSpace(string(out))
	text, err := os.ReadFile(filepath.Join(image, "vmlinuz"))
	if err != nil {
		return "", Lack("needs the kernel of the lab's image: test/lab/image/build makes it")
	}
	kernel := filepath.Join(dir, "boot/vmlinuz")
	if err := errors.Join(os.MkdirAll(filepath.Dir(kernel), 0o755), os.WriteFile(kernel, text, 0o600)); err != nil {
		return "", err
	}
	release, err := machine.KernelRelease(kernel)
	if err != nil {
		return "", err
	}
	names := []string{"modules.dep"}
	for m := range strings.FieldsSeq(modules) {
		names = append(names, "kernel/"+m+".ko")
	}
	var script strings.Builder
	for _, name := range names {
		to := filepath.Join(dir, "lib/modules", release, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return "", err
		}
		fmt.Fprintf(&script, "dump /usr/lib/modules/%s/%s %s\n", release, name, to)
	}
	cmd := exec.Command("debugfs", "-f", "/dev/stdin", filepath.Join(image, "root.ext4"))
	cmd.Stdin = strings.NewReader(script.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("take the kernel's modules: %w: %s", err, out)
	}
	return kernel, nil
}
