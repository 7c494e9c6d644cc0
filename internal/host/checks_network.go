package host

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// network checks the kinds of link, their shaping, and settings of the host that change or filter them.
func (d *doctor) network() []Check {
	const rx = "honours rate.rx of modes macvlan, phys and sriov"
	checks := []Check{
		d.link("veth", "VETH", "carries mode bridge"),
		d.link("bridge", "BRIDGE", "carries mode bridge"),
		d.link("macvlan", "MACVLAN", "carries mode macvlan"),
		judge(Check{Name: "TBF", Why: "honours network rates"}, d.Shaping["tbf"], d.built, "NET_SCH_TBF", "sch_tbf"),
		judge(Check{Name: "ifb", Why: rx}, d.Shaping["ifb"], d.built, "IFB", "ifb"),
		judge(Check{Name: "u32, mirred", Why: rx}, d.Shaping["mirred"], d.built, "NET_ACT_MIRRED", "act_mirred"),
		judge(Check{Name: "HTB", Why: "shares a link out by classes; Berth's own rates need TBF alone"},
			d.Shaping["htb"], d.built, "NET_SCH_HTB", "sch_htb"),
		d.bridgeFilter(), d.macPolicy(),
	}
	checks = append(checks, d.nat()...)
	return append(checks, d.adapters()...)
}

func (d *doctor) link(kind, option, why string) Check {
	return judge(Check{Name: kind, Why: why}, d.Links[kind], d.built, option, kind)
}

// judge fills in a check from the error of a probe. The probe made the kernel load the module, if it exists.
func judge(c Check, err error, built kconfig, option, module string) Check {
	switch {
	case err == nil:
		c.State, c.Found = OK, "works"
	case errors.Is(err, ErrNotTried) || errors.Is(err, unix.EPERM):
		c.State, c.Found = Broken, "not tried: needs root"
	case errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOENT): // no such kind of link; no such discipline
		c.Found = err.Error()
		c.State, c.Remedy = built.module(option, module)
	default:
		c.State, c.Found = Broken, err.Error()
	}
	return c
}

// bridgeFilter looks for br_netfilter, which sends the traffic of bridges through the host's packet filter.
func (d *doctor) bridgeFilter() Check {
	c := Check{Name: "bridge filter", State: OK, Found: "br_netfilter is not loaded", Why: "what nodes of mode bridge send each other goes through the host's FORWARD rules, which may drop it"}
	const dir = "/proc/sys/net/bridge/"
	var on, remedy []string
	for _, f := range []string{"bridge-nf-call-iptables", "bridge-nf-call-ip6tables", "bridge-nf-call-arptables"} {
		switch d.text(dir + f) {
		case "":
			continue
		case "0":
			c.Found = "off"
		default:
			on = append(on, f)
			remedy = append(remedy, "sysctl -w net.bridge."+f+"=0")
		}
	}
	if len(on) > 0 {
		c.State, c.Found, c.Wanted = Off, "on: "+strings.Join(on, " "), "off, or rules that let the nodes' traffic pass"
		c.Remedy = strings.Join(remedy, "\n")
	}
	return c
}

// macPolicy looks for settings that change the MACs of the host's links: .link files of udev (systemd.link(5)) and
// settings of NetworkManager (NetworkManager.conf(5)).
func (d *doctor) macPolicy() Check {
	c := Check{
		Name: "MAC policy", State: OK, Found: "nothing sets one", Wanted: "MACs that stay",
		Why: "a virtual function must keep the MAC that its node was given",
	}
	var found, bad []string
	for _, s := range d.macSettings() {
		found = append(found, s.String())
		if s.value == "random" || s.value == "stable" { // stable: a different MAC for each connection profile
			bad = append(bad, s.String())
		}
	}
	if len(found) > 0 {
		c.Found = strings.Join(found, "; ")
	}
	if len(bad) > 0 {
		c.State, c.Found = Off, strings.Join(bad, "; ")
		c.Remedy = "# in these files: MACAddressPolicy=none, or cloned-mac-address=permanent"
	}
	return c
}

// macSetting is one line of a configuration file.
type macSetting struct{ file, key, value string }

func (s macSetting) String() string { return fmt.Sprintf("%s=%s (%s)", s.key, s.value, s.file) }

func (d *doctor) macSettings() []macSetting {
	var all []macSetting
	seen := map[string]bool{}
	for _, dir := range []string{"/etc/systemd/network", "/run/systemd/network", "/usr/lib/systemd/network"} {
		for _, f := range d.glob(dir + "/*.link") {
			if name := filepath.Base(f); !seen[name] { // a file in /etc replaces one of the same name in /usr
				seen[name] = true
				all = append(all, d.settings(f, "MACAddressPolicy")...)
			}
		}
	}
	for _, dir := range []string{"/etc/NetworkManager", "/run/NetworkManager", "/usr/lib/NetworkManager"} {
		files := append(d.glob(dir+"/NetworkManager.conf"), d.glob(dir+"/conf.d/*.conf")...)
		for _, f := range files {
			all = append(all, d.settings(f, "ethernet.cloned-mac-address")...)
		}
	}
	return all
}

// settings returns the lines KEY=VALUE of a file.
func (d *doctor) settings(file, key string) (all []macSetting) {
	for line := range strings.Lines(d.text(file)) {
		k, v, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok && strings.TrimSpace(k) == key {
			all = append(all, macSetting{file, key, strings.TrimSpace(v)})
		}
	}
	return all
}

// adapter is a link of the host whose card supports SR-IOV, as sysfs shows it.
type adapter struct {
	name, driver string
	up           bool
	total, made  int
	drivers      []string // of each virtual function, "" for none
	links, upVFs int      // of its virtual functions that are on the host
}

// adapters checks the cards with SR-IOV.
func (d *doctor) adapters() []Check {
	all := d.readAdapters()
	if len(all) == 0 {
		return []Check{{
			Name: "SR-IOV", State: Lacks, Found: "no adapter that can be divided", Why: "carries mode sriov; the other modes do without",
			Remedy: "# if a card has it: switch SR-IOV on in the firmware of card and machine",
		}}
	}
	var checks []Check
	for _, a := range all {
		checks = append(checks, a.check())
		if a.made > 0 {
			checks = append(checks, a.checkVFs())
			if c, ok := d.driverOrder(a); ok {
				checks = append(checks, c)
			}
		}
	}
	return append(checks, d.iommuForNodes(all))
}

func (d *doctor) readAdapters() (all []adapter) {
	for _, f := range d.glob("/sys/class/net/*/device/sriov_totalvfs") {
		dev := filepath.Dir(f)
		link := filepath.Dir(dev)
		a := adapter{name: filepath.Base(link), driver: d.uevent(dev), up: d.isUp(link), total: d.count(f), made: d.count(dev + "/sriov_numvfs")}
		if a.total == 0 {
			continue
		}
		for _, vf := range d.glob(dev + "/virtfn*") {
			a.drivers = append(a.drivers, d.uevent(vf))
			for _, l := range d.glob(vf + "/net/*") {
				a.links++
				if d.isUp(l) {
					a.upVFs++
				}
			}
		}
		all = append(all, a)
	}
	return all
}

// uevent returns the driver of a device.
func (d *doctor) uevent(device string) string {
	for line := range strings.Lines(d.text(device + "/uevent")) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "DRIVER="); ok {
			return name
		}
	}
	return ""
}

// isUp reports whether a link has the flag IFF_UP.
func (d *doctor) isUp(link string) bool {
	var flags uint32
	_, err := fmt.Sscanf(d.text(link+"/flags"), "0x%x", &flags)
	return err == nil && flags&unix.IFF_UP != 0
}

func (d *doctor) count(file string) int {
	var n int
	_, _ = fmt.Sscanf(d.text(file), "%d", &n) // 0 if the file cannot be read
	return n
}

func (a adapter) check() Check {
	c := Check{Name: "PF " + a.name, State: OK, Why: "carries mode sriov"}
	updown := "up"
	if !a.up {
		updown = "down"
	}
	c.Found = fmt.Sprintf("%s, %s, %d of %d VFs", orNone(a.driver), updown, a.made, a.total)
	switch {
	case a.driver == "":
		c.State, c.Wanted, c.Remedy = Off, "a driver", "# load the driver of the card"
	case a.made == 0:
		c.State, c.Wanted, c.Remedy = Off, "a VF a node", fmt.Sprintf("berth vf enable %s %d", a.name, a.total)
	case !a.up:
		c.State, c.Wanted, c.Remedy = Off, "up: with many cards VFs pass nothing else", "ip link set "+a.name+" up"
	}
	return c
}

func (a adapter) checkVFs() Check {
	c := Check{Name: "VFs of " + a.name, State: OK, Why: "a VF without a driver is no link that a node could be given"}
	var parts []string
	count := map[string]int{}
	for _, name := range a.drivers {
		count[name]++
	}
	for _, name := range slices.Sorted(maps.Keys(count)) {
		parts = append(parts, fmt.Sprintf("%d with %s", count[name], orNone(name)))
		switch name {
		case "":
			c.State, c.Wanted, c.Remedy = Off, "a driver", "# load the driver of the card's VFs, then: berth repair"
		case "vfio-pci":
			parts[len(parts)-1] += " (for virtual machines)"
		}
	}
	c.Found = fmt.Sprintf("%s; %d on the host, %d of them up", strings.Join(parts, ", "), a.links, a.upVFs)
	return c
}

func orNone(driver string) string { return cmp.Or(driver, "no driver") }

// driverOrder checks which driver was loaded first, if the card and its virtual functions have different ones.
// /proc/modules lists the youngest module first.
func (d *doctor) driverOrder(a adapter) (Check, bool) {
	place := map[string]int{}
	for line := range strings.Lines(d.text("/proc/modules")) {
		if f := strings.Fields(line); len(f) > 0 {
			place[f[0]] = len(place) + 1
		}
	}
	c := Check{
		Name: "drivers " + a.name, State: OK,
		Why: "a VF whose driver is there before its MAC is set may keep a random one; berth vf enable sets MACs first",
	}
	for _, vf := range a.drivers {
		pf := place[a.driver]
		if vf == a.driver || vf == "vfio-pci" || pf == 0 || place[vf] == 0 {
			continue // one driver for both, or built in
		}
		c.Found = fmt.Sprintf("%s, then %s", a.driver, vf)
		if place[vf] > pf {
			c.State, c.Found, c.Wanted = Off, fmt.Sprintf("%s, then %s", vf, a.driver), c.Found
			c.Remedy = fmt.Sprintf("# from the next boot on:\necho 'softdep %s pre: %s' > /etc/modprobe.d/berth-%s.conf", vf, a.driver, vf)
		}
		return c, true
	}
	return Check{}, false
}

// iommuForNodes checks the IOMMU for virtual functions of nodes. The host's kernel drives them, so they do not need it,
// and mapping each buffer costs time.
func (d *doctor) iommuForNodes(all []adapter) Check {
	m := d.iommu()
	c := Check{
		Name: "IOMMU for nodes", State: OK, Found: m.String(), Wanted: "off, or iommu=pt",
		Why: "nodes need none; for the host's devices it costs speed: each buffer is mapped first",
	}
	if m.translate && len(all) > 0 {
		c.State, c.Remedy = Off, "# add iommu=pt to the kernel's command line, reboot"
	}
	return c
}
