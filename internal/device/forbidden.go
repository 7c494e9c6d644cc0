package device

import "path"

// rule says why no node may have certain devices.
type rule struct {
	name string // as the kernel names it below /dev; * and ? as in path.Match
	why  string
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
		{"null", own},
		{"zero", own},
		{"full", own},
		{"random", own},
		{"urandom", own},
		{"tty", own},
		{"ptmx", own},
		{"pts/*", own},
		{"mem", memory},
		{"kmem", memory},
		{"port", memory},
		{"oldmem", memory},
		{"crash", memory},
		{"cpu/*/msr", memory},
		{"xen/*", memory},
		{"mei*", memory},
		{"snapshot", memory},
		{"kmsg", log},
		{"mcelog", log},
		{"console", terminal},
		{"tty[0-9]*", terminal},
		{"vcs*", terminal},
		{"pts", terminal},
		{"ptm", terminal},
		{"ttyprintk", terminal},
		{"input/*", input},
		{"uinput", input},
		{"uhid", input},
		{"vhci", input},
		{"psaux", input},
		{"loop-control", makes},
		{"mapper/control", makes},
		{"btrfs-control", makes},
		{"zfs", makes},
		{"cuse", makes},
		{"zram-control", makes},
		{"autofs", makes},
		{"rfkill", makes},
		{"ublk-control", makes},
		{"nvme[0-9]*", disks},
		{"ng[0-9]*", disks},
		{"nvme-fabrics", disks},
		{"megaraid_sas_ioctl_node", disks},
		{"mpt[0-9]ctl", disks},
		{"mptctl", disks},
		{"aac*", disks},
		{"hpsa*", disks},
		{"nvram", firmware},
		{"mtd*", firmware},
		{"ipmi*", firmware},
		{"cpu/microcode", firmware},
		{"isst_interface", firmware},
		{"watchdog*", machine},
		{"cpu_dma_latency", machine},
		{"apm_bios", machine},
	}
}

// forbidden returns why no node may have the character device that the kernel calls name; never is false if one may.
func forbidden(name string) (why string, never bool) {
	for _, r := range rules() {
		if ok, err := path.Match(r.name, name); err == nil && ok {
			return r.why, true
		}
	}
	return "", false
}
