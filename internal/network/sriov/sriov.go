// Package sriov gives nodes virtual functions of the host's network adapters: it lists and enables them, now and at each boot (berth vf),
// reads and writes the settings that the adapter keeps for each, records which node has which, moves them into nodes and brings them home.
//
// Callers hold the host-wide lock where the documentation says so.
package sriov

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"berth/internal/sys/file"
	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
)

// Sys is the folder of sysfs.
const Sys = "/sys"

// PF is a physical function: an adapter that can be divided.
type PF struct {
	Name    string      `json:"name"`
	PCI     string      `json:"pci"` // address, as 0000:01:00.0
	Driver  string      `json:"driver"`
	NUMA    int         `json:"numa"` // NUMA node of its slot; -1: the host has none, or does not report it
	MAC     mac.Address `json:"mac"`
	MTU     int         `json:"mtu"` // bytes
	Up      bool        `json:"up"`
	Carrier bool        `json:"carrier"`
	Speed   int         `json:"speed,omitempty"` // Mbit/s; 0: unknown, for example without a carrier
	Total   int         `json:"total_vfs"`       // the most virtual functions that it can have
	VFs     []VF        `json:"vfs"`             // the virtual functions that it has
}

// VF is a virtual function.
type VF struct {
	Index  int    `json:"index"` // of its PF, from 0
	PCI    string `json:"pci"`
	Driver string `json:"driver,omitempty"`
	Link   string `json:"link,omitempty"`  // its name among the host's links; "" if it is elsewhere or has no driver
	Owner  string `json:"owner,omitempty"` // the node and interface that have it: NODE/IFNAME
	Admin  *Admin `json:"admin,omitempty"` // the settings that the PF keeps for it; nil if they were not read
}

// List reads the adapters with SR-IOV that are links of the host, by name. It does not fill in Owner and Admin of their
// VFs: see Leases.Name and ReadAdmins.
func List(sys string) ([]PF, error) {
	links, err := os.ReadDir(filepath.Join(sys, "class/net"))
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var all []PF
	for _, l := range links {
		pf, err := read(sys, l.Name())
		if errors.Is(err, errNoSRIOV) || errors.Is(err, fs.ErrNotExist) { // or the link was removed meanwhile
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, pf)
	}
	return all, nil
}

// Find reads one adapter. A missing link is refused as NotFound, a link without SR-IOV as Cannot.
func Find(sys, name string) (PF, error) {
	if name == "" || name != filepath.Base(name) {
		return PF{}, refuse.NotFoundf("%q is not the name of a link", name)
	}
	if _, err := os.Lstat(filepath.Join(sys, "class/net", name)); err != nil {
		return PF{}, refuse.NotFoundf("no link %s on this host; adapters with SR-IOV: %s", name, names(sys))
	}
	pf, err := read(sys, name)
	if errors.Is(err, errNoSRIOV) {
		return PF{}, refuse.Cannotf("use one that has it ("+names(sys)+"), or another mode",
			"link %s has no SR-IOV: its device has no sriov_totalvfs above 0", name)
	}
	return pf, err
}

func names(sys string) string {
	all, err := List(sys)
	if err != nil || len(all) == 0 {
		return "none"
	}
	list := make([]string, len(all))
	for i, pf := range all {
		list[i] = pf.Name
	}
	return strings.Join(list, ", ")
}

// Links returns the names of the links on the host of an adapter and its virtual functions.
func (pf *PF) Links() []string {
	links := []string{pf.Name}
	for _, vf := range pf.VFs {
		if vf.Link != "" {
			links = append(links, vf.Link)
		}
	}
	return links
}

var errNoSRIOV = errors.New("no SR-IOV")

func read(sys, name string) (PF, error) {
	link := filepath.Join(sys, "class/net", name)
	dev := filepath.Join(link, "device")
	total := number(dev, "sriov_totalvfs", 0)
	if total == 0 {
		return PF{}, errNoSRIOV
	}
	pci, err := filepath.EvalSymlinks(dev)
	if err != nil {
		return PF{}, fmt.Errorf("find the device of %s: %w", name, err)
	}
	flags, _ := strconv.ParseUint(text(link, "flags"), 0, 32)
	var own mac.Address
	_ = own.UnmarshalText([]byte(text(link, "address"))) // a link without one has none
	pf := PF{
		Name: name, PCI: filepath.Base(pci), Driver: driverOf(dev), NUMA: number(dev, "numa_node", -1),
		MAC: own, MTU: number(link, "mtu", 0), Up: flags&1 != 0, Carrier: text(link, "carrier") == "1",
		Speed: max(number(link, "speed", 0), 0), Total: total, VFs: []VF{},
	}
	functions, err := filepath.Glob(filepath.Join(dev, "virtfn*"))
	if err != nil {
		return PF{}, fmt.Errorf("list virtual functions of %s: %w", name, err)
	}
	for _, f := range functions {
		i, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(f), "virtfn"))
		to, linkErr := os.Readlink(f)
		if err != nil || linkErr != nil {
			continue // it is being removed
		}
		address := filepath.Base(to)
		at := Device(sys, address)
		pf.VFs = append(pf.VFs, VF{Index: i, PCI: address, Driver: driverOf(at), Link: linkOf(at)})
	}
	slices.SortFunc(pf.VFs, func(a, b VF) int { return a.Index - b.Index })
	return pf, nil
}

// Of returns the adapter of a virtual function, and the function's entry in it. The error wraps fs.ErrNotExist if the
// function does not exist now.
func Of(sys, pci string) (PF, VF, error) {
	links, err := os.ReadDir(filepath.Join(Device(sys, pci), "physfn/net"))
	if err != nil {
		return PF{}, VF{}, fmt.Errorf("find the adapter of virtual function %s: %w", pci, err)
	}
	for _, l := range links {
		pf, err := read(sys, l.Name())
		if err != nil {
			continue
		}
		if i := slices.IndexFunc(pf.VFs, func(v VF) bool { return v.PCI == pci }); i >= 0 {
			return pf, pf.VFs[i], nil
		}
	}
	return PF{}, VF{}, fmt.Errorf("find the adapter of virtual function %s: it is no link of the host: %w", pci, fs.ErrNotExist)
}

// Adapter returns the name of the adapter that a PCI device is a virtual function of: its link's name, else its PCI
// address. It returns "" if there is no such adapter, for example for a function that a virtual machine got from its
// host.
func Adapter(sys, pci string) string {
	physfn := filepath.Join(Device(sys, pci), "physfn")
	at, err := filepath.EvalSymlinks(physfn)
	if err != nil {
		return ""
	}
	return cmp.Or(linkOf(physfn), filepath.Base(at))
}

// Device returns the sysfs folder of a PCI device.
func Device(sys, pci string) string { return filepath.Join(sys, "bus/pci/devices", pci) }

// linkOf returns the name of a device's link in this network namespace.
func linkOf(device string) string {
	links, err := os.ReadDir(filepath.Join(device, "net"))
	if err != nil || len(links) == 0 {
		return ""
	}
	return links[0].Name()
}

// driverOf returns the driver that is bound to a device, given its sysfs folder; "" if there is none.
func driverOf(dir string) string {
	to, err := os.Readlink(filepath.Join(dir, "driver"))
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}

func text(dir, name string) string { return file.Text(filepath.Join(dir, name)) }

func number(dir, name string, otherwise int) int {
	n, err := strconv.Atoi(text(dir, name))
	if err != nil {
		return otherwise
	}
	return n
}
