package vnode

import (
	"fmt"
	"slices"
	"strings"
)

// The keys of berth set that add a device to a node and remove one: devices+=/dev/sdb:/dev/data:r, devices-=/dev/sdb.
const (
	AddDevice  = "devices+"
	TakeDevice = "devices-"
)

// unsafeWord at the end of a device's text sets Device.Unsafe.
const unsafeWord = "unsafe"

// Pattern reports whether the path is a pattern, which stands for all devices that match it.
func (d Device) Pattern() bool { return strings.ContainsAny(d.Path, "*?") }

// String returns the device in the form of berth set: PATH[:AS][:ACCESS][:unsafe].
func (d Device) String() string {
	parts := []string{d.Path, d.As, d.Access, ""}
	if d.Unsafe {
		parts[3] = unsafeWord
	}
	return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), ":")
}

// ParseDevice reads a device in the form of berth set and berth run: PATH[:AS][:ACCESS][:unsafe]. It reads from the
// end, because paths may have colons too (/dev/disk/by-path/pci-0000:00:1f.2-ata-1). The caller validates the result.
func ParseDevice(text string) (Device, error) {
	var d Device
	rest, last, found := cutLast(text)
	if found && last == unsafeWord {
		d.Unsafe = true
		text = rest
		rest, last, found = cutLast(text)
	}
	if found && last != "" && strings.Trim(last, "rwm") == "" {
		d.Access = last
		text = rest
	}
	d.Path = text
	if i := strings.LastIndex(text, ":/"); i > 0 {
		d.Path, d.As = text[:i], text[i+1:]
	}
	if !strings.HasPrefix(d.Path, "/") {
		return Device{}, fmt.Errorf("%q is not allowed: PATH[:PATH INSIDE][:ACCESS][:%s], for example /dev/sdb:/dev/data:r", text, unsafeWord)
	}
	return d, nil
}

func cutLast(s string) (before, after string, found bool) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// changeDevices adds a device, or removes one by its path.
func changeDevices(n *Node, key, value string) error {
	if key == AddDevice {
		d, err := ParseDevice(value)
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		if i := n.device(d.Path); i >= 0 {
			return fmt.Errorf("%s: node %s has %s already; take it away first: %s=%s", key, n.Name, n.Devices[i], TakeDevice, d.Path)
		}
		n.Devices = append(slices.Clip(n.Devices), d)
		return nil
	}
	i := n.device(value)
	if i < 0 {
		has := "none"
		if len(n.Devices) > 0 {
			has = strings.Join(n.devicePaths(), ", ")
		}
		return fmt.Errorf("%s: %q is not among the devices of node %s: %s", key, value, n.Name, has)
	}
	n.Devices = slices.Delete(slices.Clone(n.Devices), i, i+1)
	if len(n.Devices) == 0 {
		n.Devices = nil
	}
	return nil
}

func (n *Node) device(path string) int {
	return slices.IndexFunc(n.Devices, func(d Device) bool { return d.Path == path })
}

func (n *Node) devicePaths() []string {
	var all []string
	for _, d := range n.Devices {
		all = append(all, d.Path)
	}
	return all
}
