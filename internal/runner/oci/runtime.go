package oci

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"berth/internal/sys/fork"
	"berth/internal/sys/refuse"
)

// The names of the runtimes.
const (
	crun = "crun"
	runc = "runc"
)

// defaultPath is where programs are looked up, on the host and in nodes that do not say otherwise.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Runtime is an OCI runtime on this host.
type Runtime struct {
	Name    string `json:"name"`              // "runc" or "crun"
	Path    string `json:"path"`              // absolute
	Version string `json:"version,omitempty"` // as it reports itself: 1.1.5+ds1
}

func (r Runtime) String() string { return strings.TrimSpace(r.Name + " " + r.Version) }

// runtimeNames returns the runtimes that Berth can use.
func runtimeNames() []string { return []string{crun, runc} }

// find returns the installed runtimes with their versions. It runs each of them once. It refuses (Cannot) if there is none.
func find(ctx context.Context) ([]Runtime, error) {
	found := paths()
	for i, r := range found {
		out, err := fork.Output(exec.CommandContext(ctx, r.Path, "--version"))
		if err != nil {
			return nil, fmt.Errorf("ask %s for its version: %w", r.Path, err)
		}
		found[i].Version = versionIn(string(out))
	}
	if len(found) == 0 {
		return nil, refuse.Cannotf("install one: apt-get install runc crun", "no OCI runtime on this host (looked for %s in %s)",
			strings.Join(runtimeNames(), " and "), defaultPath)
	}
	return found, nil
}

// paths finds the runtimes in the standard folders. It does not use the caller's PATH, because they run as root.
func paths() []Runtime {
	var found []Runtime
	for _, name := range runtimeNames() {
		for _, dir := range filepath.SplitList(defaultPath) {
			p := filepath.Join(dir, name)
			if fi, err := os.Stat(p); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
				found = append(found, Runtime{Name: name, Path: p})
				break
			}
		}
	}
	return found
}

// versionIn finds the version in the first line of --version: "runc version 1.1.5+ds1", "crun version 1.8.1".
func versionIn(out string) string {
	line, _, _ := strings.Cut(out, "\n")
	_, v, _ := strings.Cut(line, "version ")
	return strings.TrimSpace(v)
}
