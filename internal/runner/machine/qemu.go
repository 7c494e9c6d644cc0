package machine

import (
	"fmt"
	"strings"

	"berth/internal/runner/machine/wire"
)

// The descriptors that QEMU gets, beside standard input, output and error.
const (
	qmpFD = 3 + iota
	agentFD
	consoleFD
	firstFileFD // the image, the drives, the taps, the lines to the daemons of shares
)

// words are what the kernel is told: to be quiet on the console, and to end the machine where it would hang. The guest has no
// firmware: t lets its reset be a triple fault, on which QEMU ends (-no-reboot). The kernel believes the time stamp counter and how
// fast it runs: a clock to measure it by is not there, and one that lags on a busy host would make it distrust the counter.
func (l *Launch) words() string {
	own := fmt.Sprintf("console=ttyS0 quiet loglevel=3 reboot=t panic=-1 tsc=reliable tsc_early_khz=%d", tscKHz())
	return strings.TrimSpace(own + " " + l.Machine.Cmdline)
}

// arguments returns QEMU's command line, with these drives. It opens nothing by name but its own files below /usr and what it boots
// from.
func (l *Launch) arguments(drives []drive) []string {
	fd := firstFileFD
	next := func() int { fd++; return fd - 1 }
	// A guest's memory that daemons of shares map is a file in memory, and they know no devices older than virtio 1.0.
	memory, object := "", []string(nil)
	if len(l.Machine.Shares) > 0 {
		memory, object = ",memory-backend=ram", []string{"-global", "virtio-mmio.force-legacy=false", "-object", fmt.Sprintf("memory-backend-memfd,id=ram,size=%dM,share=on", l.Machine.Memory>>20)}
	}
	args := append(object,
		"-name", "guest="+l.Node+",debug-threads=on",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-S",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-machine", "microvm,mem-merge=off,dump-guest-core=off"+memory, "-accel", "tcg,tb-size=128,thread=multi", "-cpu", "max",
		"-smp", fmt.Sprint(l.Machine.CPUs), "-m", fmt.Sprintf("%dM", l.Machine.Memory>>20),
		"-nic", "none",
		"-kernel", "/boot/kernel", "-initrd", "/boot/initrd", "-append", l.words(),
		"-device", "pvpanic", // the guest's kernel says by it that it panics
		"-object", "rng-builtin,id=rng", "-device", "virtio-rng-device,rng=rng",
		"-device", "virtio-balloon-device,free-page-reporting=on", // what the guest does not use any more goes back to the host
		"-chardev", fmt.Sprintf("socket,id=qmp,fd=%d", qmpFD), "-mon", "chardev=qmp,mode=control",
		"-chardev", fmt.Sprintf("socket,id=console,fd=%d", consoleFD), "-serial", "chardev:console",
		"-device", "virtio-serial-device,max_ports=2",
		"-chardev", fmt.Sprintf("socket,id=agent,fd=%d", agentFD), "-device", "virtserialport,chardev=agent,nr=1,name=berth.agent",
		"-add-fd", fmt.Sprintf("fd=%d,set=1", next()),
		"-blockdev", "driver=file,node-name=image-file,filename=/dev/fdset/1,read-only=on,locking=off",
		"-blockdev", "driver=raw,node-name=image,file=image-file,read-only=on",
		"-device", "virtio-blk-device,drive=image,serial="+wire.ImageSerial,
	)
	for i, d := range drives {
		args = append(args, d.arguments(i+2, next)...)
	}
	for i, a := range l.Machine.Adapters {
		args = append(args, "-netdev", fmt.Sprintf("tap,id=net%d,fd=%d", i, next()), "-device", fmt.Sprintf("virtio-net-device,netdev=net%d,mac=%s", i, a.MAC))
	}
	for i := range l.Machine.Shares {
		args = append(args, "-chardev", fmt.Sprintf("socket,id=share%d,fd=%d", i, next()), "-device", fmt.Sprintf("vhost-user-fs-device,chardev=share%d,tag=%s", i, shareTag(i)))
	}
	return args
}
