package image

import (
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
)

// maxPath is PATH_MAX without the closing zero byte.
const maxPath = unix.PathMax - 1

// maxLinks is the most symbolic links on the way to one file, as in the kernel (MAXSYMLINKS).
const maxLinks = 40

// cleanName returns an entry's name relative to the layer: "." or "a/b". Slashes before it are ignored, as tar does; ".." is refused.
func cleanName(name string) (string, error) {
	switch {
	case name == "":
		return "", refuse.Invalidf("it has no name")
	case len(name) > maxPath:
		return "", longName(len(name))
	case strings.ContainsRune(name, 0):
		return "", refuse.Invalidf("the name holds a zero byte")
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", refuse.Invalidf("names that climb (..) are refused")
		}
	}
	return path.Clean(strings.TrimLeft(name, "/")), nil
}

func longName(n int) error {
	return refuse.Invalidf("its name of %d bytes is longer than %d bytes, the longest that a file can have", n, maxPath)
}

// inside returns a name below the archive's top, whose memory it does not share: "/./a/../../b" is b.
func inside(name string) string { return path.Clean("/" + name)[1:] }

// rootFolders returns the top-level names that mark a tar as a plain root.
func rootFolders() []string { return []string{"bin", "sbin", "usr", "etc", "lib"} }

// Names by which layers mark what they remove (OCI image specification, layer.md).
const (
	whiteoutPrefix = ".wh."
	whiteoutMeta   = ".wh..wh." // prefix of other AUFS names: ignored
	whiteoutOpaque = ".wh..wh..opq"
)
