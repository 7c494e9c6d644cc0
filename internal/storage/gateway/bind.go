package gateway

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"

	"berth/internal/spec/vnode"
	"berth/internal/storage/mounts"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// Bind shows a folder, file or socket of the host as it is, with the mounts beneath it at the node's start.
//
// Through an idmapped mount the node's ids are the same ids on the host's disk: the node's root can leave files there that belong
// to the host's root, with set-user-id bits and file capabilities. Inside the node they are harmless (nosuid, nodev). On the
// host, the source belongs below a folder that only root can enter, or on a file system mounted nosuid (see Exposed).
type Bind struct{}

// Look resolves the source's links once. Plan and the mount itself use the result, so a link put there later makes the
// start fail.
func (Bind) Look(_ context.Context, m vnode.Mount, to Node) (Source, error) {
	path, err := filepath.EvalSymlinks(m.Source)
	var info fs.FileInfo
	if err == nil {
		info, err = os.Lstat(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return Source{}, refuse.NotFoundf("there is no %s on this host, the source of mount %s", m.Source, m.Target)
	}
	if err != nil {
		return Source{}, fmt.Errorf("find the source of mount %s: %w", m.Target, err)
	}
	if kind := info.Mode().Type(); kind != 0 && kind != fs.ModeDir && kind != fs.ModeSocket {
		return Source{}, refuse.Invalidf("%s is no folder, file or socket: use devices for a device", titled(m.Source, path))
	}
	if why := forbidden(path, to.Layout); why != "" {
		return Source{}, refuse.Invalidf("%s cannot be mounted in a node: %s", titled(m.Source, path), why)
	}
	fstype, err := checkMounts(m.Source, path)
	if err != nil {
		return Source{}, err
	}
	if m.NosuidSource {
		if err := refuseExposed(m, to); err != nil {
			return Source{}, err
		}
	}
	if idmapped(m, to) {
		if err := mounts.CanIdmap(path, true); err != nil {
			return Source{}, fmt.Errorf("mount %s: %w", m.Target, err)
		}
	}
	return Source{Path: path, FSType: fstype, NoDir: !info.IsDir()}, nil
}

// Plan stages the source with its flags and id map; the runtime then only binds it. It has no steps.
func (Bind) Plan(m vnode.Mount, s Source, to Node, at string) (Way, error) {
	return Way{
		Stage: &mounts.Stage{At: at, Source: s.Path, Idmap: idmapped(m, to), ReadOnly: m.ReadOnly, Recursive: true, Target: m.Target},
		Mount: &Mount{Source: at, Target: m.Target, Type: "bind", Options: []string{"rbind", "rprivate"}},
	}, nil
}

// Kinds returns none: bind has no steps.
func (Bind) Kinds() step.Kinds { return nil }

// Deviations returns none.
func (Bind) Deviations() []Deviation { return nil }

// refuseExposed refuses a mount whose source is exposed.
func refuseExposed(m vnode.Mount, to Node) error {
	why, err := Exposed(m, to.UserNS)
	if err != nil {
		return fmt.Errorf("look at the source of mount %s: %w", m.Target, err)
	}
	if why == "" {
		return nil
	}
	return refuse.Cannotf(
		"close a folder above it to all but root (mode 0700), mount its file system nosuid, or use read_only: true or map: identity",
		"mount %s asks for nosuid_source, and the host's users can run what the node leaves in %s with its set-user-id bits and capabilities: %s",
		m.Target, m.Source, why)
}

func idmapped(m vnode.Mount, to Node) bool { return to.UserNS && m.Map != vnode.Identity }

// forbidden says why no node may have a path, "" if it may.
func forbidden(path string, l layout.Layout) string {
	if path == "/" {
		return "it is the host's whole root"
	}
	for _, top := range []string{"/proc", "/sys", "/dev"} {
		if path == top || strings.HasPrefix(path, top+"/") {
			return top + " is the host's own; every node has one of its own (devices go by devices)"
		}
	}
	standard := layout.New("")
	for _, own := range []string{l.Lib, l.Run, standard.Lib, standard.Run} {
		if within(path, own) || within(own, path) {
			return own + " is Berth's own, with other nodes' writes in it"
		}
	}
	return ""
}

// within reports whether path is dir or lies in it. It compares names and inodes, because a bind mount or a link gives a
// folder a second name.
func within(path, dir string) bool {
	top, err := os.Stat(dir)
	for p := path; ; p = filepath.Dir(p) {
		if p == dir {
			return true
		}
		if here, herr := os.Stat(p); err == nil && herr == nil && os.SameFile(top, here) {
			return true
		}
		if p == "/" {
			return false
		}
	}
}

// kernelFS returns the file systems that give access to the host's kernel and store nothing: through them a node would see
// the host's processes or change its settings. It does not matter where they are mounted.
func kernelFS() []string {
	return []string{
		"proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "securityfs", "selinuxfs", "debugfs", "tracefs",
		"configfs", "bpf", "efivarfs", "pstore", "binfmt_misc", "fusectl", "rpc_pipefs", "nfsd", "nsfs", "resctrl",
	}
}

// checkMounts refuses a source that lies on a file system of kernelFS or has one beneath it. It returns the type of the
// file system that the source lies on.
func checkMounts(asked, path string) (fstype string, err error) {
	all, err := mountinfo.GetMounts(nil)
	if err != nil {
		return "", fmt.Errorf("read the host's mounts: %w", err)
	}
	longest := ""
	for _, m := range all {
		beneath := strings.HasPrefix(m.Mountpoint, path+"/")
		above := m.Mountpoint == "/" || m.Mountpoint == path || strings.HasPrefix(path, m.Mountpoint+"/")
		if above && len(m.Mountpoint) >= len(longest) { // of several mounts at one place, the last hides the others
			longest, fstype = m.Mountpoint, m.FSType
		}
		if beneath && slices.Contains(kernelFS(), m.FSType) {
			return "", refuse.Invalidf("%s cannot be mounted in a node: the host's %s is mounted beneath it, at %s", titled(asked, path), m.FSType, m.Mountpoint)
		}
	}
	if slices.Contains(kernelFS(), fstype) {
		return "", refuse.Invalidf("%s cannot be mounted in a node: it lies on the host's %s", titled(asked, path), fstype)
	}
	return fstype, nil
}

// titled returns the name of a source as its user gave it, and the path that it stands for.
func titled(asked, path string) string {
	if asked == path {
		return path
	}
	return fmt.Sprintf("%s (that is, %s)", asked, path)
}
