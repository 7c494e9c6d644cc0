package device

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"berth/internal/sys/file"
)

// Identity identifies a device when its number changes: a disk that is unplugged may come back with another number, and its
// old number may be another disk's by then. The zero value is a device that only its number identifies.
type Identity struct {
	// ID is the lasting identifier: "wwid …", "serial …", "uuid …" of a mapped device or an array, "file …" of a loop
	// device, or "at …" of a character device, its place in the device tree. "" if there is none.
	ID   string `json:"id,omitempty"`
	Seq  uint64 `json:"seq,omitempty"`  // a disk's number since boot, never reused (diskseq, Linux 5.15)
	Part int    `json:"part,omitempty"` // number of the partition; 0: the whole disk
}

// Identify returns the identity of the device that has a number now. ok is false if there is no such device, or if it is a
// loop device without a file.
func Identify(sys, kind string, major, minor uint32) (id Identity, ok bool) {
	dir, err := filepath.EvalSymlinks(numberDir(sys, kind, major, minor))
	if err != nil {
		return Identity{}, false
	}
	if kind != "b" {
		rel, err := filepath.Rel(sys, dir)
		return Identity{ID: "at " + rel}, err == nil
	}
	part := 0
	if n, err := strconv.Atoi(attribute(dir, "partition")); err == nil {
		part, dir = n, filepath.Dir(dir)
	}
	id, ok = identifyDisk(dir)
	id.Part = part
	return id, ok
}

// identifyDisk reads a disk's identity from its folder in sysfs.
func identifyDisk(dir string) (id Identity, ok bool) {
	id.Seq, _ = strconv.ParseUint(attribute(dir, "diskseq"), 10, 64) // 0 where the kernel has none
	for _, a := range [][2]string{
		{"uuid ", "dm/uuid"},
		{"uuid ", "md/uuid"},
		{"file ", "loop/backing_file"},
		{"wwid ", "wwid"},
		{"wwid ", "device/wwid"},
		{"serial ", "serial"},
		{"serial ", "device/serial"},
	} {
		if text := attribute(dir, a[1]); text != "" {
			id.ID = a[0] + text
			return id, true
		}
	}
	// A loop device stays when its file is detached, and may get another file.
	return id, !strings.HasPrefix(filepath.Base(dir), "loop")
}

// Same reports whether two identities are of the same device.
func (i Identity) Same(o Identity) bool {
	return i.Part == o.Part && (i.Seq != 0 && i.Seq == o.Seq || i.ID != "" && i.ID == o.ID)
}

// Where returns the current number of the device with identity i, which had the given number when last seen. ok is false if
// the device is gone. Several disks may have the identity (two paths to one disk, adapters that make up serial numbers):
// then only the one with the old number counts.
func (i Identity) Where(sys, kind string, major, minor uint32) (number [2]uint32, ok bool) {
	number = [2]uint32{major, minor}
	now, there := Identify(sys, kind, major, minor)
	switch {
	case i == Identity{}:
		_, err := os.Stat(numberDir(sys, kind, major, minor))
		return number, kind != "b" || err == nil // a character device may not be in sysfs
	case there && i.Same(now):
		return number, true
	case kind != "b":
		at, _ := strings.CutPrefix(i.ID, "at ")
		return readNumber(filepath.Join(sys, at, "dev"))
	}
	dirs, _ := filepath.Glob(filepath.Join(sys, "block/*")) // the pattern is valid
	var found [][2]uint32
	for _, dir := range dirs {
		disk, there := identifyDisk(dir)
		if disk.Part = i.Part; !there || !i.Same(disk) {
			continue
		}
		if n, ok := i.partOf(dir); ok {
			found = append(found, n)
		}
	}
	if len(found) != 1 {
		return number, false
	}
	return found[0], true
}

// partOf returns the number of the disk, or of its partition i.Part.
func (i Identity) partOf(disk string) (number [2]uint32, ok bool) {
	if i.Part == 0 {
		return readNumber(filepath.Join(disk, "dev"))
	}
	parts, _ := filepath.Glob(filepath.Join(disk, "*/partition"))
	for _, p := range parts {
		dir := filepath.Dir(p)
		if attribute(dir, "partition") == strconv.Itoa(i.Part) {
			return readNumber(filepath.Join(dir, "dev"))
		}
	}
	return number, false
}

func numberDir(sys, kind string, major, minor uint32) string {
	folder := "char"
	if kind == "b" {
		folder = "block"
	}
	return filepath.Join(sys, "dev", folder, fmt.Sprintf("%d:%d", major, minor))
}

// attribute reads a file of sysfs, "" if it cannot be read.
func attribute(dir, name string) string { return file.Text(filepath.Join(dir, name)) }

func readNumber(path string) (number [2]uint32, ok bool) {
	n, _ := fmt.Sscanf(file.Text(path), "%d:%d", &number[0], &number[1])
	return number, n == 2
}
