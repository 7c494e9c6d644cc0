package block

import "fmt"

// OfNumber returns the disk with a number, which asked led to once; that it does so no more is what it is for.
func OfNumber(sys string, major, minor uint32, asked string) (Disk, error) {
	d, err := byNumber(sys, major, minor)
	if err != nil {
		return Disk{}, fmt.Errorf("find the disk of %s: %w", asked, err)
	}
	return d.disk(sys, asked)
}
