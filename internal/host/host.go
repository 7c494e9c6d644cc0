// Package host reads what this host is and has (its facts), and checks what nodes need of it (berth doctor). It changes nothing,
// and its paths are below roots that tests replace by a tree.
//
// A check is a function in a file checks_*.go that the list of its area names (kernel, limits, files …); doctor.go lists the
// areas. What has to be tried is in tried*.go, and the kernel's options are in kconfig.go.
package host

import (
	"os"
	"path/filepath"
	"strings"

	"berth/internal/sys/file"
)

// Host says where the host's own files are. Tests hand it archived trees instead.
type Host struct {
	Proc string // /proc
	Sys  string // /sys
	Etc  string // /etc
	Boot string // /boot: the kernel's configuration, where /proc/config.gz is not built in
	Run  string // /run: configuration that lasts until the next boot
	Usr  string // /usr: configuration by packages
}

// New returns the host this process runs on.
func New() Host {
	return Host{Proc: "/proc", Sys: "/sys", Etc: "/etc", Boot: "/boot", Run: "/run", Usr: "/usr"}
}

// at maps a path of the host, for example a mount point under /sys, to its place in the tree.
func (h Host) at(path string) string {
	for _, dir := range []struct{ real, tree string }{
		{"/proc", h.Proc}, {"/sys", h.Sys}, {"/etc", h.Etc}, {"/boot", h.Boot}, {"/run", h.Run}, {"/usr", h.Usr},
	} {
		if rest, ok := strings.CutPrefix(path, dir.real+"/"); ok {
			return filepath.Join(dir.tree, rest)
		}
	}
	return path
}

// text returns the content of a small file of the host without the white space around it, "" if it cannot be read.
func (h Host) text(path string) string {
	return file.Text(h.at(path))
}

// exists reports whether a path of the host is there.
func (h Host) exists(path string) bool {
	_, err := os.Lstat(h.at(path))
	return err == nil
}

// glob returns the paths of the host that match a pattern, as the host names them. The pattern is a constant one.
func (h Host) glob(pattern string) []string {
	found, _ := filepath.Glob(h.at(pattern)) // the only error is that of a bad pattern
	tree := strings.TrimSuffix(h.at(pattern), strings.TrimPrefix(pattern, "/"+firstElement(pattern)))
	for i, f := range found {
		found[i] = "/" + firstElement(pattern) + strings.TrimPrefix(f, tree)
	}
	return found
}

// firstElement returns "sys" of "/sys/block".
func firstElement(path string) string {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return first
}
