package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// disks checks each disk of the host: what can limit it, and what can share it by weight.
func (d *doctor) disks() []Check {
	entries, err := os.ReadDir(d.at("/sys/block"))
	if err != nil {
		return []Check{{Name: "disks", State: Broken, Found: err.Error(), Why: "block I/O limits act on disks"}}
	}
	checks := []Check{d.buffered()}
	for _, e := range entries {
		if d.isDisk(e.Name()) {
			checks = append(checks, d.diskRates(e.Name()), d.diskWeights(e.Name()))
		}
	}
	return checks
}

// isDisk reports whether a block device is a disk: not in memory, not removable, and not empty as an unused loop device.
func (d *doctor) isDisk(name string) bool {
	for _, prefix := range []string{"ram", "zram", "sr", "fd"} {
		if strings.HasPrefix(name, prefix) {
			return false
		}
	}
	size := d.text("/sys/block/" + name + "/size")
	return size != "" && size != "0"
}

func (d *doctor) diskRates(name string) Check {
	throttle, state, remedy := d.throttle()
	c := Check{Name: "disk " + name, State: state, Found: throttle, Remedy: remedy, Why: "honours io rates of a spec"}
	if state != OK {
		c.Wanted = "a throttle"
	}
	if kind, below := d.stacked(name); kind != "" {
		c.Found += fmt.Sprintf(", on this %s itself", kind)
		if len(below) > 0 { // the bios that it sends on keep the cgroup, so the disks below count them too
			c.Found += "; a rate on " + strings.Join(below, ", ") + " counts what gets there of it"
		}
	}
	return c
}

// diskWeights checks for an engine that shares a disk by weight: BFQ or io.cost. Both act on requests, so only on disks
// with their own queue; dm and md pass bios down to the disks below.
func (d *doctor) diskWeights(name string) Check {
	c := Check{Name: "weights " + name, State: OK, Wanted: "BFQ or io.cost", Why: "shares the disk out by weight (io weight of a spec)"}
	chosen, all := d.schedulers(name)
	if kind, below := d.stacked(name); kind != "" && chosen == "" {
		return d.stackedWeights(c, name, kind, below)
	}
	if chosen == "" {
		c.State, c.Found = Lacks, "no scheduler (NVMe multipath, or a device without requests)"
		if strings.HasPrefix(name, "nvme") {
			c.Remedy = "# put nvme_core.multipath=N on the kernel's command line, reboot"
		}
		return c
	}
	number, cost := d.text("/sys/block/"+name+"/dev"), d.costFile()
	c.Found = "scheduler " + chosen
	on := cost != "" && d.costOn(cost, number)
	if on {
		c.Found += ", io.cost is on"
	}
	if chosen == "bfq" || on {
		return c
	}
	c.State = Off
	if strings.Contains(" "+all+" ", " bfq ") {
		c.Found += ", BFQ can be chosen"
		c.Remedy = fmt.Sprintf("# engine: bfq in a spec's io entry, or\necho bfq > /sys/block/%s/queue/scheduler", name)
	}
	if cost != "" && number != "" {
		c.Found += ", io.cost can be switched on"
		if c.Remedy == "" {
			c.Remedy = fmt.Sprintf("# engine: iocost in a spec's io entry, with the model that this measures:\nberth doctor --calibrate /dev/%s", name)
		}
	}
	if c.Remedy == "" {
		c.State, c.Remedy = d.built.absent("IOSCHED_BFQ"), "modprobe bfq"
		if c.State == Lacks && d.built != nil {
			c.Remedy = "# boot a kernel with CONFIG_IOSCHED_BFQ or CONFIG_BLK_CGROUP_IOCOST"
		}
	}
	return c
}

// stackedWeights checks weights on a device that is made of others. Only LVM volumes directly on disks are proved to pass
// I/O down under the cgroup of the node.
func (d *doctor) stackedWeights(c Check, name, kind string, below []string) Check {
	c.Found = kind + ": no queue of its own"
	straight := strings.HasPrefix(d.text("/sys/block/"+name+"/dm/uuid"), "LVM-") && len(below) > 0
	for _, b := range below {
		straight = straight && !strings.HasPrefix(b, "dm-") && !strings.HasPrefix(b, "md")
	}
	if straight {
		c.Found += ", weights act on " + strings.Join(below, ", ")
		return c
	}
	c.State = Lacks
	c.Found += ", and weights are not proved to reach what it lies on"
	return c
}

// buffered checks whether the kernel charges writes through the page cache to the node: on cgroup v2, on file systems with
// SB_I_CGROUPWB. Otherwise they count as the kernel's own, and no limit of the node applies to them.
func (d *doctor) buffered() Check {
	c := Check{
		Name: "buffered writes", State: Off, Wanted: "cgroup v2 with io and memory",
		Why:    "writes through the page cache are the node's, for its rates and weights; direct ones always are",
		Remedy: "# boot with systemd.unified_cgroup_hierarchy=1 on the kernel's command line",
	}
	if cg := d.facts.Cgroups; cg.Has("blkio") != "" || cg.Has("io") != "v2" || cg.Has("memory") != "v2" {
		c.Found = "not the node's: cgroup v1 has block I/O or memory"
		return c
	}
	c.State, c.Remedy = OK, ""
	var tell, not []string
	for _, m := range d.diskMounts() {
		switch m.FSType {
		case "ext4", "xfs", "btrfs", "f2fs":
			tell = append(tell, m.FSType+" at "+m.Mountpoint)
		default:
			not = append(not, m.FSType+" at "+m.Mountpoint)
		}
	}
	c.Found = "the node's"
	if len(tell) > 0 {
		c.Found += " on " + strings.Join(tell, ", ")
	}
	if len(not) > 0 {
		c.Found += "; not on " + strings.Join(not, ", ")
	}
	return c
}

// diskMounts returns one mount of each block device.
func (d *doctor) diskMounts() []*mountinfo.Info {
	f, err := os.Open(filepath.Join(d.Proc, "self/mountinfo"))
	if err != nil {
		return nil
	}
	defer f.Close()
	seen := map[string]bool{}
	mounts, err := mountinfo.GetMountsFromReader(f, func(m *mountinfo.Info) (skip, stop bool) {
		skip = !strings.HasPrefix(m.Source, "/dev/") || seen[m.Source] || m.FSType == "devtmpfs"
		seen[m.Source] = seen[m.Source] || !skip
		return skip, false
	})
	if err != nil {
		return nil
	}
	return mounts
}

// schedulers returns the I/O scheduler in use (the one in brackets) and all that are available. A device that takes bios,
// such as dm and md, has none.
func (d *doctor) schedulers(disk string) (chosen, all string) {
	text := d.text("/sys/block/" + disk + "/queue/scheduler")
	for f := range strings.FieldsSeq(text) {
		if name, ok := strings.CutPrefix(f, "["); ok {
			chosen = strings.TrimSuffix(name, "]")
		}
	}
	return chosen, strings.NewReplacer("[", "", "]", "").Replace(text)
}

// stacked returns the kind of a device that is made of others, and the devices below it; "" for a disk.
func (d *doctor) stacked(name string) (kind string, below []string) {
	switch {
	case strings.HasPrefix(name, "dm-"):
		kind = "device-mapper volume"
	case strings.HasPrefix(name, "md"):
		kind = "md array"
	default:
		return "", nil
	}
	slaves, _ := os.ReadDir(d.at("/sys/block/" + name + "/slaves")) // empty if unreadable
	for _, s := range slaves {
		below = append(below, s.Name())
	}
	return kind, below
}

// costFile returns the file that switches io.cost on; "" if the kernel lacks it or v2 does not control the disks.
func (d *doctor) costFile() string {
	if v2 := d.CostTree(d.facts.Cgroups); v2 != "" {
		return filepath.Join(v2, "io.cost.qos")
	}
	return ""
}

// CostTree returns the mount of the v2 tree if it has io.cost and v1 does not control the disks; else "".
func (h Host) CostTree(cg Cgroups) string {
	if cg.Has("blkio") == "" && cg.Has("io") == "v2" && h.exists(filepath.Join(cg.V2, "io.cost.qos")) {
		return cg.V2
	}
	return ""
}

// costOn reports whether io.cost is on for the disk number: file has a line "259:0 enable=1 …".
func (d *doctor) costOn(file, number string) bool {
	for line := range strings.Lines(d.text(file)) {
		f := strings.Fields(line)
		if len(f) > 1 && f[0] == number && f[1] == "enable=1" {
			return true
		}
	}
	return false
}

// throttle says what can throttle a disk. The root group of v2 has no io.max, so throttle looks in the groups below it.
func (d *doctor) throttle() (what string, state State, remedy string) {
	cg := d.facts.Cgroups
	const kernel = "# boot a kernel with CONFIG_BLK_DEV_THROTTLING=y"
	switch {
	case cg.V1["blkio"] != "":
		if d.exists(filepath.Join(cg.V1["blkio"], "blkio.throttle.read_bps_device")) {
			return "blkio.throttle", OK, ""
		}
		return "no throttle", Lacks, kernel
	case cg.Has("io") == "v2":
		below, _ := filepath.Glob(filepath.Join(d.at(cg.V2), "*", "io.max")) // the pattern is constant
		if len(below) > 0 || d.built["BLK_DEV_THROTTLING"] == "y" {
			return "io.max", OK, ""
		}
		if d.built == nil {
			return "io.max (unproved)", OK, ""
		}
		return "no throttle", Lacks, kernel
	}
	return "no throttle", Off, "# see cgroup blkio/io above"
}
