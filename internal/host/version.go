package host

import "fmt"

// Version is a kernel version. Distributions backport features, so prefer a probe to a comparison of versions.
type Version struct {
	Major int `json:"major"`
	Minor int `json:"minor"`
	Patch int `json:"patch"`
}

// ParseVersion reads the version from a release like "6.1.0-28-amd64" or "6.12-rc3".
func ParseVersion(release string) (Version, error) {
	var v Version
	n, _ := fmt.Sscanf(release, "%d.%d.%d", &v.Major, &v.Minor, &v.Patch)
	if n < 2 || v.Major < 0 || v.Minor < 0 || v.Patch < 0 {
		return Version{}, fmt.Errorf("parse the kernel release %q: it does not begin with a version", release)
	}
	return v, nil
}

// AtLeast reports whether v is major.minor or newer.
func (v Version) AtLeast(major, minor int) bool {
	return v.Major > major || v.Major == major && v.Minor >= minor
}
