package host

import (
	"fmt"
	"slices"
	"strings"
)

// machines checks what virtual machines with their own virtual function need. Nodes need none of it.
func (d *doctor) machines() []Check {
	return []Check{d.cpuVirtualization(), d.iommuForMachines()}
}

// cpuInfo returns a value of the first processor in /proc/cpuinfo.
func (d *doctor) cpuInfo(key string) string {
	for line := range strings.Lines(d.text("/proc/cpuinfo")) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func (d *doctor) cpuVirtualization() Check {
	c := Check{Name: "CPU virtualization", State: OK, Wanted: "vmx or svm", Why: "virtual machines need it; nodes do not"}
	flags := strings.Fields(d.cpuInfo("flags"))
	switch {
	case slices.Contains(flags, "vmx"):
		c.Found = "vmx (Intel VT-x)"
	case slices.Contains(flags, "svm"):
		c.Found = "svm (AMD-V)"
	case len(flags) == 0:
		c.State, c.Found = Lacks, "this CPU has no flags for it"
	default:
		c.State, c.Found = Lacks, "neither vmx nor svm"
		c.Remedy = "# switch VT-x or AMD-V on in the firmware\n# in a virtual machine: nested virtualization, in its host"
	}
	return c
}

// iommu is the state of the host's IOMMU.
type iommu struct {
	groups    int
	translate bool     // the host's devices use it too: each buffer is mapped first
	asked     []string // its options on the kernel's command line
}

func (d *doctor) iommu() iommu {
	var m iommu
	for f := range strings.FieldsSeq(d.text("/proc/cmdline")) {
		key, _, _ := strings.Cut(f, "=")
		if slices.Contains([]string{"intel_iommu", "amd_iommu", "iommu", "iommu.passthrough", "iommu.strict"}, key) {
			m.asked = append(m.asked, f)
		}
	}
	groups := d.glob("/sys/kernel/iommu_groups/*")
	m.groups = len(groups)
	for _, g := range groups {
		m.translate = m.translate || strings.HasPrefix(d.text(g+"/type"), "DMA") // else identity: iommu=pt
	}
	return m
}

func (m iommu) String() string {
	asked := "nothing on the command line"
	if len(m.asked) > 0 {
		asked = strings.Join(m.asked, " ")
	}
	switch {
	case m.groups == 0:
		return "off; " + asked
	case m.translate:
		return fmt.Sprintf("on, %d groups, for the host's devices too; %s", m.groups, asked)
	}
	return fmt.Sprintf("on, %d groups; %s", m.groups, asked)
}

// iommuForMachines checks the IOMMU for virtual functions of virtual machines, which must not reach the host's memory.
func (d *doctor) iommuForMachines() Check {
	m := d.iommu()
	c := Check{
		Name: "IOMMU for VMs", State: OK, Found: m.String(), Wanted: "on",
		Why: "a virtual function given to a virtual machine needs it; nodes do not",
	}
	if m.groups > 0 {
		return c
	}
	c.State = Off
	built := func(option string) bool { return d.built == nil || d.built[option] == "y" }
	switch d.cpuInfo("vendor_id") {
	case "GenuineIntel":
		c.Remedy = "# switch VT-d on in the firmware, add intel_iommu=on iommu=pt to the kernel's\n# command line, reboot"
		if !built("INTEL_IOMMU") {
			c.State, c.Remedy = Lacks, "# boot a kernel with CONFIG_INTEL_IOMMU=y"
		}
	case "AuthenticAMD", "HygonGenuine":
		c.Remedy = "# switch the IOMMU on in the firmware, add iommu=pt to the kernel's command line,\n# reboot"
		if !built("AMD_IOMMU") {
			c.State, c.Remedy = Lacks, "# boot a kernel with CONFIG_AMD_IOMMU=y"
		}
	default:
		c.State = Lacks
	}
	return c
}
