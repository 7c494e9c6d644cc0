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

// accel returns QEMU's accelerator: KVM if a guest boots with it, else emulation. The existence of /dev/kvm is not enough: on
// some hosts a stock kernel hangs with it. The answer is cached until this host reboots.
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

// bootsWithKVM reports whether the guest's kernel reaches the first program of its initial RAM disk within 10 s.
func bootsWithKVM(ctx context.Context, b boot) bool {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, _ := exec.CommandContext(ctx, "qemu-system-x86_64",
		"-accel", "kvm", "-machine", "q35", "-cpu", "host", "-m", "512", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", b.kernel, "-initrd", b.initrd, "-append", "console=ttyS0 quiet panic=-1 lab.probe", "-serial", "stdio").CombinedOutput()
	return strings.Contains(string(out), "lab: a guest boots")
}
