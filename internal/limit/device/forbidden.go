package device

import (
	"path"
	"strings"
)

// rule says why no node may have certain devices.
type rule struct {
	why   string
	names string // as the kernel names them below /dev, separated by spaces; * and ? as in path.Match
}

// own is the reason for devices that no node may have, not even with unsafe: true.
const own = "every node has its own"

// rules are the character devices that would open the host to a node, whatever the node's ids and capabilities, and those
// that every node has of its own. Any other device is the user's decision: the spec names it.
func rules() []rule {
	const (
		memory   = "it reads and writes the host's memory"
		log      = "it shows the host's kernel log"
		terminal = "it is a terminal of the host, and who writes to it can type for others"
		input    = "it sees or makes what is typed on the host"
		makes    = "it makes or changes devices of the whole host"
		disks    = "it sends commands to the disks behind it past every check; name the block device"
		firmware = "it changes the host's firmware or settings that outlive a reboot"
		machine  = "it can stop or reset the host"
	)
	return []rule{
		{own, "null zero full random urandom tty ptmx pts/*"},
		{memory, "mem kmem port oldmem crash cpu/*/msr xen/* mei* snapshot"},
		{log, "kmsg mcelog"},
		{terminal, "console tty[0-9]* vcs* pts ptm ttyprintk"},
		{input, "input/* uinput uhid vhci psaux"},
		{makes, "loop-control mapper/control btrfs-control zfs cuse zram-control autofs rfkill ublk-control"},
		{disks, "nvme[0-9]* ng[0-9]* nvme-fabrics megaraid_sas_ioctl_node mpt[0-9]ctl mptctl aac* hpsa*"},
		{firmware, "nvram mtd* ipmi* cpu/microcode isst_interface"},
		{machine, "watchdog* cpu_dma_latency apm_bios"},
	}
}

// forbidden returns why no node may have the character device that the kernel calls name; never is false if one may.
func forbidden(name string) (why string, never bool) {
	for _, r := range rules() {
		for pattern := range strings.FieldsSeq(r.names) {
			if ok, err := path.Match(pattern, name); err == nil && ok {
				return r.why, true
			}
		}
	}
	return "", false
}
