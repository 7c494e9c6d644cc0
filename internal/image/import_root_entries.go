package image

import (
	"archive/tar"
	"path"
	"strings"

	"berth/internal/sys/refuse"
)

// plainEntry refuses names that mean white-outs.
func plainEntry(h *tar.Header) error {
	if strings.HasPrefix(path.Base(h.Name), whiteoutPrefix) || strings.Contains("/"+h.Name, "/"+whiteoutMeta) {
		return refuse.Invalidf("a name that begins with %s removes files in an image's layer, and a plain root has no layers: rename it", whiteoutPrefix)
	}
	return nil
}

// isStandard reports whether an entry is one of standardDevices, at its usual place and with its number.
func isStandard(name string, h *tar.Header) bool {
	number, ok := standardDevices()[name]
	return ok && h.Typeflag == tar.TypeChar && number == [2]int64{h.Devmajor, h.Devminor}
}

// standardDevices returns the device nodes that every node has (console only with a terminal), with their numbers.
func standardDevices() map[string][2]int64 {
	return map[string][2]int64{
		"dev/null": {1, 3}, "dev/zero": {1, 5}, "dev/full": {1, 7}, "dev/random": {1, 8}, "dev/urandom": {1, 9},
		"dev/tty": {5, 0}, "dev/console": {5, 1}, "dev/ptmx": {5, 2},
	}
}
