package lab

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// emulated runs each virtual CPU as a thread.
const emulated = "tcg,thread=multi"

// accel returns what to run guests with: KVM where a guest is seen to boot with it, else emulation. A /dev/kvm proves
// nothing: on some hosts it is there and a stock kernel hangs in it. What was seen is kept until this host boots again.
func accel(ctx context.Context, cache string, b boot) (string, error) {
	if _, err := os.Stat("/dev/kvm"); err != nil {
		return emulated, nil //nolint:nilerr // without it there is one answer
	}
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	seen := filepath.Join(cache, "accel-"+strings.TrimSpace(string(id)))
	if said, err := os.ReadFile(seen); err == nil {
		return string(said), nil
	}
	found := emulated
	if bootsWithKVM(ctx, b) {
		found = "kvm"
	}
	return found, os.WriteFile(seen, []byte(found), 0o600)
}

// bootsWithKVM boots the guest's kernel as far as the first program of its initial RAM disk.
func bootsWithKVM(ctx context.Context, b boot) bool {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, _ := exec.CommandContext(ctx, "qemu-system-x86_64",
		"-accel", "kvm", "-machine", "q35", "-cpu", "host", "-m", "512", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", b.kernel, "-initrd", b.initrd, "-append", "console=ttyS0 quiet panic=-1 lab.probe", "-serial", "stdio").CombinedOutput()
	return strings.Contains(string(out), "lab: a guest boots")
}
