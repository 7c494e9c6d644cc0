package block

import "fmt"

// OfNumber returns the disk with a device number. asked is the path that once led to the disk, and may no longer do so.
func OfNumber(sys string, major, minor uint32, asked string) (Disk, error) {
	d, err := byNumber(sys, major, minor)
	if err != nil {
		return Disk{}, fmt.Errorf("find the disk of %s: %w", asked, err)
	}
	return d.disk(sys, asked)
}
