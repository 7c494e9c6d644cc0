// Package device gives a node devices of the host. It finds what a spec names, says whether a node may have it, makes it
// appear in and vanish from a running node, and recognises a disk that was unplugged and came back.
//
// Package mounts stages the device nodes at a node's start; package cgroup sets what the node's group allows.
package device

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/host/block"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// Kinds returns the step kinds of this package, for reading journals.
func Kinds() step.Kinds {
	return step.Kinds{
		"device.node":   func() step.Step { return &Node{} },
		"device.record": func() step.Step { return &Record{} },
	}
}

// Resolved is a device that a node may have. Its number is valid until the host reboots or the device is unplugged, so it
// is looked up at each start of the node.
type Resolved struct {
	Path   string   `json:"path"`             // inside the node
	Type   string   `json:"type"`             // "b" (block) or "c" (character)
	Major  uint32   `json:"major"`            //
	Minor  uint32   `json:"minor"`            //
	Access string   `json:"access"`           // letters of r, w and m, in this order
	Source string   `json:"source"`           // its node on the host, links resolved: what /dev/disk/by-id/… stands for
	ID     Identity `json:"id,omitzero"`      // identifies it when its number changes
	Unsafe string   `json:"unsafe,omitempty"` // why no node should have it, if the spec gives it all the same
}

// Number is the device's number as the kernel writes it: "8:16".
func (r Resolved) Number() string { return fmt.Sprintf("%d:%d", r.Major, r.Minor) }

// Rule returns the rule by which a group allows the device, as the kernel writes it: "b 8:16 rw".
func (r Resolved) Rule() string { return r.Type + " " + r.Number() + " " + r.Access }

// Resolve finds the devices of one entry of a spec, which is valid in itself: one device, or all that match a pattern, at
// least one. proc and sys are the roots of procfs and sysfs.
//
// Errors: refuse.NotFound if there is no such device, refuse.Busy if the host uses it (a mounted disk, swap),
// refuse.Invalid if it is no device or one that no node may have.
func Resolve(proc, sys string, d vnode.Device) ([]Resolved, error) {
	if !d.Pattern() {
		r, err := resolve(proc, sys, d)
		return []Resolved{r}, err
	}
	paths, err := filepath.Glob(d.Path)
	if err != nil {
		return nil, refuse.Invalidf("device %s: %w", d.Path, err)
	}
	paths = slices.DeleteFunc(paths, func(p string) bool { // folders and other files, which no pattern means
		fi, err := os.Stat(p)
		return err != nil || fi.Mode()&os.ModeDevice == 0
	})
	if len(paths) == 0 {
		return nil, refuse.NotFoundf("no device matches %s", d.Path)
	}
	var all []Resolved
	for _, p := range paths {
		r, err := resolve(proc, sys, vnode.Device{Path: p, Access: d.Access})
		if err != nil {
			return nil, fmt.Errorf("%w; it matches %s", err, d.Path)
		}
		all = append(all, r)
	}
	return all, nil
}

func resolve(proc, sys string, d vnode.Device) (Resolved, error) {
	r, err := find(d)
	if err != nil {
		return Resolved{}, err
	}
	if r.Path == "" {
		r.Path = d.Path
	}
	if !strings.HasPrefix(r.Path, "/dev/") {
		return Resolved{}, refuse.Invalidf("device %s would appear at %s: it must appear below /dev, say where with as", d.Path, r.Path)
	}
	no, err := r.check(proc, sys, d)
	if err != nil {
		return Resolved{}, err
	}
	if no != nil && (!d.Unsafe || no.why == own) {
		return Resolved{}, no.refusal
	}
	if no != nil {
		r.Unsafe = no.why
	}
	r.ID, _ = Identify(sys, r.Type, r.Major, r.Minor)
	return r, nil
}

// objection is why no node should have a device.
type objection struct {
	why     string
	refusal error
}

// check returns why no node should have the device; nil if there is no reason.
func (r Resolved) check(proc, sys string, d vnode.Device) (*objection, error) {
	name, err := r.name(proc, sys)
	if refuse.KindOf(err) == refuse.NotFound {
		return &objection{"no driver has its number", err}, nil
	}
	if err != nil {
		return nil, err
	}
	if why, never := forbidden(name); never && r.Type == "c" {
		return &objection{why, refuse.Invalidf("device %s (%s) cannot be given to a node: %s%s", d.Path, name, why, remedy(why))}, nil
	}
	if r.fake(sys, name) {
		return &objection{
			"its number is that of /dev/" + name,
			refuse.Invalidf("%s is a device node with the number of /dev/%s, another device; name that one", r.Source, name),
		}, nil
	}
	for _, number := range r.disks(sys) {
		if by, used := block.InUse(proc, sys, number[0], number[1]); used {
			return &objection{"the host uses it: " + by, refuse.Busyf("device %s (%s) is used by the host: %s", d.Path, r.Source, by)}, nil
		}
	}
	return nil, nil
}

// remedy says how to give the device all the same, where that is possible.
func remedy(why string) string {
	if why == own {
		return ""
	}
	return " (unsafe: true gives it all the same)"
}

// fake reports whether the device node has the number of a device with another name. A mapped device may be called by the
// name that its creator gave it. A device that is not in sysfs is believed.
func (r Resolved) fake(sys, name string) bool {
	base := filepath.Base(r.Source)
	if _, err := os.Stat(r.dir(sys)); err != nil || base == filepath.Base(name) {
		return false
	}
	return attribute(r.dir(sys), "dm/name") != base
}

// find follows the links of a path to a device node.
func find(d vnode.Device) (Resolved, error) {
	real, err := filepath.EvalSymlinks(d.Path)
	var st unix.Stat_t
	if err == nil {
		err = unix.Lstat(real, &st)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return Resolved{}, refuse.NotFoundf("there is no device %s", d.Path)
	}
	if err != nil {
		return Resolved{}, fmt.Errorf("find device %s: %w", d.Path, err)
	}
	r := Resolved{Path: d.As, Source: real, Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev), Access: access(d.Access)}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFBLK:
		r.Type = "b"
	case unix.S_IFCHR:
		r.Type = "c"
	default:
		return Resolved{}, refuse.Invalidf("%s is not a device node: use mounts for files and folders", d.Path)
	}
	return r, nil
}

// access sorts the letters as the kernel does; the default is rw.
func access(asked string) string {
	if asked == "" {
		asked = "rw"
	}
	return strings.Map(func(c rune) rune {
		if strings.ContainsRune(asked, c) {
			return c
		}
		return -1
	}, "rwm")
}

// name returns the kernel's name of the device: its path below /dev, whatever path the spec used. It proves that a driver has the
// number. Some drivers (NVIDIA's) keep their character devices out of sysfs; for them it is the driver's name in /proc/devices.
func (r Resolved) name(proc, sys string) (string, error) {
	text, err := os.ReadFile(filepath.Join(r.dir(sys), "uevent"))
	if name := devName(string(text)); name != "" {
		return name, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read what device %s is: %w", r.Source, err)
	}
	if r.Type == "c" {
		name, err := driver(proc, r.Major)
		if err != nil || name != "" {
			return name, err
		}
	}
	return "", refuse.NotFoundf("nothing is behind device node %s (%s %s): no driver has this number", r.Source, r.Type, r.Number())
}

// dir is the device's folder in sysfs.
func (r Resolved) dir(sys string) string { return numberDir(sys, r.Type, r.Major, r.Minor) }

// driver returns the name of the driver with this major number of character devices; "" if there is none.
func driver(proc string, major uint32) (string, error) {
	f, err := os.Open(filepath.Join(proc, "devices"))
	if err != nil {
		return "", fmt.Errorf("read the drivers: %w", err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var number uint32
		var name string
		if lines.Text() == "Block devices:" { // character devices come first
			break
		}
		if n, _ := fmt.Sscan(lines.Text(), &number, &name); n == 2 && number == major {
			return name, nil
		}
	}
	return "", nil
}

// disks returns the numbers of the block devices that can be reached through this one: itself, or the disk behind a SCSI
// command device (/dev/sg*, /dev/bsg/*).
func (r Resolved) disks(sys string) [][2]uint32 {
	if r.Type == "b" {
		return [][2]uint32{{r.Major, r.Minor}}
	}
	var all [][2]uint32
	files, _ := filepath.Glob(filepath.Join(r.dir(sys), "device/block/*/dev")) // no folder: no disk
	for _, file := range files {
		if n, ok := readNumber(file); ok { // else it was unplugged meanwhile
			all = append(all, n)
		}
	}
	return all
}
