package image

import (
	"archive/tar"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
)

// maxPath is PATH_MAX without the closing zero byte.
const maxPath = unix.PathMax - 1

// cleanName returns an entry's name relative to the layer: "." or "a/b". It refuses absolute names and "..".
func cleanName(name string) (string, error) {
	switch {
	case name == "":
		return "", refuse.Invalidf("it has no name")
	case strings.HasPrefix(name, "/"):
		return "", refuse.Invalidf("absolute names are refused")
	case len(name) > maxPath:
		return "", refuse.Invalidf("the name is longer than %d bytes", maxPath)
	case strings.ContainsRune(name, 0):
		return "", refuse.Invalidf("the name holds a zero byte")
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", refuse.Invalidf("names that climb (..) are refused")
		}
	}
	return path.Clean(name), nil
}

// isSparse reports whether a tar entry is a sparse file, in any of GNU tar's formats.
func isSparse(h *tar.Header) bool {
	if h.Typeflag == tar.TypeGNUSparse {
		return true
	}
	for record := range h.PAXRecords {
		if strings.HasPrefix(record, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// rootFolders returns the top-level names that mark a tar as a plain root.
func rootFolders() []string { return []string{"bin", "sbin", "usr", "etc", "lib"} }

// Names by which layers mark what they remove (OCI image specification, layer.md).
const (
	whiteoutPrefix = ".wh."
	whiteoutMeta   = ".wh..wh." // prefix of other AUFS names: ignored
	whiteoutOpaque = ".wh..wh..opq"
)
