// Package device finds the device of the host that a spec names and says whether a node may have it.
//
// It changes nothing: the node's own device node is staged by package mounts and let through by its cgroup.
package device

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/block"
	"berth/internal/refuse"
	"berth/internal/vnode"
)

// Resolved is a device that a node may have. Its number holds until the host reboots or the device is unplugged, so
// it is found anew at each start of the node.
type Resolved struct {
	Path   string `json:"path"`   // inside the node
	Type   string `json:"type"`   // "b" (block) or "c" (character)
	Major  uint32 `json:"major"`  //
	Minor  uint32 `json:"minor"`  //
	Access string `json:"access"` // letters of r, w and m, in this order
	Source string `json:"source"` // its node on the host, links resolved: what /dev/disk/by-id/… stands for
}

// Number is the device's number as the kernel writes it: "8:16".
func (r Resolved) Number() string { return fmt.Sprintf("%d:%d", r.Major, r.Minor) }

// Resolve finds the device of a spec that is valid in itself. proc and sys are the roots of procfs and sysfs.
//
// Errors: refuse.NotFound if there is no such device, refuse.Busy if the host uses it (a mounted disk, swap),
// refuse.Invalid if it is no device or one that no node may have, refuse.Cannot for a pattern.
func Resolve(proc, sys string, d vnode.Device) (Resolved, error) {
	if strings.ContainsAny(d.Path, "*?") {
		return Resolved{}, refuse.Cannotf("name each device by its own path", "device %s is a pattern, which comes with a later version", d.Path)
	}
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
	name, err := r.name(proc, sys)
	if err != nil {
		return Resolved{}, err
	}
	if why, never := forbidden(name); never && r.Type == "c" {
		return Resolved{}, refuse.Invalidf("device %s (%s) cannot be given to a node: %s", d.Path, name, why)
	}
	for _, number := range r.disks(sys) {
		if by, used := block.InUse(proc, sys, number[0], number[1]); used {
			return Resolved{}, refuse.Busyf("device %s (%s) is used by the host: %s", d.Path, r.Source, by)
		}
	}
	return r, nil
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

// access puts the letters in the cgroup's order; the default is to read and write.
func access(asked string) string {
	if asked == "" {
		asked = "rw"
	}
	var ordered strings.Builder
	for _, c := range "rwm" {
		if strings.ContainsRune(asked, c) {
			ordered.WriteString(string(c))
		}
	}
	return ordered.String()
}

// name is the kernel's name of the device: its path below /dev, whatever path the spec called it by. It proves that a
// driver is behind the number. Some drivers (NVIDIA's) keep their character devices out of sysfs: then it is the
// driver's name in /proc/devices.
func (r Resolved) name(proc, sys string) (string, error) {
	text, err := os.ReadFile(filepath.Join(r.dir(sys), "uevent"))
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "DEVNAME="); ok {
			return name, nil
		}
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
func (r Resolved) dir(sys string) string {
	kind := "char"
	if r.Type == "b" {
		kind = "block"
	}
	return filepath.Join(sys, "dev", kind, r.Number())
}

// driver returns the name of the driver of character devices of this major number, "" if there is none.
func driver(proc string, major uint32) (string, error) {
	f, err := os.Open(filepath.Join(proc, "devices"))
	if err != nil {
		return "", fmt.Errorf("read the drivers: %w", err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var number uint32
		var name string
		if lines.Text() == "Block devices:" { // the second part
			break
		}
		if n, _ := fmt.Sscan(lines.Text(), &number, &name); n == 2 && number == major {
			return name, nil
		}
	}
	return "", nil
}

// disks returns the numbers of the block devices that one reaches through this one: itself, or the disk behind a
// SCSI command device (/dev/sg*, /dev/bsg/*).
func (r Resolved) disks(sys string) [][2]uint32 {
	if r.Type == "b" {
		return [][2]uint32{{r.Major, r.Minor}}
	}
	var all [][2]uint32
	files, _ := filepath.Glob(filepath.Join(r.dir(sys), "device/block/*/dev")) // no folder: no disk
	for _, file := range files {
		var n [2]uint32
		text, err := os.ReadFile(file)
		if err != nil {
			continue // unplugged meanwhile
		}
		if k, _ := fmt.Sscanf(string(text), "%d:%d", &n[0], &n[1]); k == 2 {
			all = append(all, n)
		}
	}
	return all
}
