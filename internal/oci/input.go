package oci

import (
	"path"
	"slices"
	"strings"

	"berth/internal/refuse"
)

// Init is the kind of a node's process 1.
type Init string

// The kinds of process 1.
const (
	Command Init = ""        // an ordinary program, no init
	Systemd Init = "systemd" // systemd
	Busybox Init = "busybox" // busybox init
	SysV    Init = "sysv"    // sysvinit and compatible inits
)

// Access says how a node sees its cgroup at /sys/fs/cgroup.
type Access string

// How a node sees its cgroup.
const (
	ReadOnly  Access = "ro"   // it reads its limits and use
	ReadWrite Access = "rw"   // it may make groups below its own, if they are delegated to it (an init on v2)
	NotAtAll  Access = "none" // an empty folder
)

// Input describes a node for Config.
type Input struct {
	Hostname string
	Init     Init
	Args     []string // the command; Args[0] is looked up in the PATH of Env
	Env      []string // NAME=value; Config adds PATH if it is missing
	Cwd      string   // "" is /
	User     User
	Terminal bool

	Rootfs   string // absolute path of the root, as the runtime sees it
	ReadOnly bool   // the root is read-only

	IDBase, IDSize uint32 // the node's id range on the host; size 0: no user namespace

	Mounts      []Mount // after the standard ones, in this order
	Devices     []Device
	RLimits     map[string]uint64 // limit in lower case (nofile) to its value, soft and hard
	OOMScoreAdj int               // -1000..1000, not 0: crun 1.8 takes 0 as unset, and the node would inherit the caller's
	CgroupsPath string            // absolute, relative to each hierarchy's mount
	Cgroup      Access            // "" is ReadOnly
	Mask        []string          // files and folders that read as empty, in addition to the standard ones ([ThermalPaths])
}

// User is the user that a command runs as, in the node's own ids.
type User struct {
	UID        uint32   `json:"uid"`
	GID        uint32   `json:"gid"`
	Additional []uint32 `json:"additional,omitempty"`
}

// Mount is one mount inside the node, in the terms of mount(8).
type Mount struct {
	Source  string   `json:"source"`
	Target  string   `json:"target"` // absolute path inside
	Type    string   `json:"type,omitempty"`
	Options []string `json:"options,omitempty"`
}

// Device is a device node that was made for the node beforehand, with its final owner and mode, and is bound in.
type Device struct {
	Target string `json:"target"` // path inside
	Source string `json:"source"` // the device node made beforehand
	Block  bool   `json:"block,omitempty"`
	Major  int64  `json:"major"`
	Minor  int64  `json:"minor"`
	Access string `json:"access"` // of r, w, m
}

// check refuses input that must not reach a runtime.
func (in *Input) check() error {
	switch {
	case in.Hostname == "" || len(in.Hostname) > 64:
		return refuse.Invalidf("host name %q: must have 1 to 64 bytes", in.Hostname)
	case len(in.Args) == 0 || in.Args[0] == "":
		return refuse.Invalidf("node %s: no command", in.Hostname)
	case !path.IsAbs(in.Rootfs):
		return refuse.Invalidf("root %q: must be an absolute path", in.Rootfs)
	case !path.IsAbs(in.CgroupsPath) || path.Clean(in.CgroupsPath) == "/":
		return refuse.Invalidf("cgroup path %q: must be an absolute path below a hierarchy's root", in.CgroupsPath)
	case in.Cwd != "" && !path.IsAbs(in.Cwd):
		return refuse.Invalidf("working directory %q: must be an absolute path", in.Cwd)
	}
	for _, m := range in.Mounts {
		if err := checkTarget(m.Target); err != nil {
			return err
		}
	}
	for _, d := range in.Devices {
		if err := checkTarget(d.Target); err != nil {
			return err
		}
		if d.Access == "" || strings.Trim(d.Access, "rwm") != "" {
			return refuse.Invalidf("device %s: access %q: allowed are r, w and m", d.Target, d.Access)
		}
	}
	return nil
}

// checkTarget refuses mounts over folders on which the node's isolation depends. For example, with a mount over /proc a
// node could give the runtime forged files where the runtime writes its security settings (CVE-2019-16884).
func checkTarget(target string) error {
	if !path.IsAbs(target) || path.Clean(target) != target {
		return refuse.Invalidf("mount target %q: must be an absolute path without . and ..", target)
	}
	if slices.Contains([]string{"/", "/dev", "/dev/pts"}, target) {
		return refuse.Invalidf("mount target %s: it is the node's own", target)
	}
	for _, p := range []string{"/proc", "/sys"} {
		if target == p || strings.HasPrefix(target, p+"/") {
			return refuse.Invalidf("mount target %s: nothing can be mounted on or below %s", target, p)
		}
	}
	return nil
}
