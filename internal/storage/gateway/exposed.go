package gateway

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"

	"berth/internal/spec/vnode"
)

// Exposed says how the host's users can get the rights of the files that a node leaves in the source of a mount; "" if they
// cannot. Through an idmapped mount the node's root can write set-user-id programs of the host's root, and file
// capabilities that count in the host's user namespace: the kernel stores them for the root of the mount's map. Neither has
// an effect on a mount with nosuid, or for users who cannot reach the files.
//
// The answer is for now and for this path: the same files may be reached by another path.
func Exposed(m vnode.Mount, userNS bool) (string, error) {
	if !writesAsRoot(m, userNS) {
		return "", nil
	}
	path, err := filepath.EvalSymlinks(m.Source)
	if err != nil {
		return "", err
	}
	all, err := mountinfo.GetMounts(nil)
	if err != nil {
		return "", fmt.Errorf("read the host's mounts: %w", err)
	}
	return exposed(path, all)
}

// writesAsRoot reports whether the node's root acts as this host's root on the files of a mount.
func writesAsRoot(m vnode.Mount, userNS bool) bool {
	return !m.Remote() && !m.ReadOnly && (!userNS || m.Map != vnode.Identity)
}

func exposed(path string, all []*mountinfo.Info) (string, error) {
	if info, err := os.Lstat(path); err != nil || info.Mode().Type() == fs.ModeSocket { // a socket cannot be run
		return "", err
	}
	at := suidMount(path, all)
	if at == "" {
		return "", nil
	}
	// The source itself does not count: the node's root may change its mode.
	for dir := path; dir != "/"; {
		dir = filepath.Dir(dir)
		info, err := os.Stat(dir)
		if err != nil {
			return "", err
		}
		// The group's bits are also the mask of an access control list: without x there, no entry lets anybody in.
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid == 0 && st.Mode&0o011 == 0 {
			return "", nil
		}
	}
	return fmt.Sprintf("%s is not mounted nosuid, and others than root come to %s", at, filepath.Dir(path)), nil
}

// suidMount returns the first mount that honours set-user-id bits: the one that path is on, or one beneath it; "" if none.
func suidMount(path string, all []*mountinfo.Info) string {
	var on *mountinfo.Info
	var beneath []*mountinfo.Info
	for _, m := range all {
		switch {
		case m.Mountpoint == "/" || m.Mountpoint == path || strings.HasPrefix(path, m.Mountpoint+"/"):
			if on == nil || len(m.Mountpoint) >= len(on.Mountpoint) { // of several mounts at one place, the last hides the others
				on = m
			}
		case strings.HasPrefix(m.Mountpoint, path+"/"):
			beneath = append(beneath, m)
		}
	}
	for _, m := range append([]*mountinfo.Info{on}, beneath...) {
		if m != nil && !slices.Contains(strings.Split(m.Options, ","), "nosuid") {
			return m.Mountpoint
		}
	}
	return ""
}
