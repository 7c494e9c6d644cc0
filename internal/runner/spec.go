package runner

import (
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/host/group"
	"berth/internal/spec/vnode"
	"berth/internal/storage/mounts"
	"berth/internal/sys/refuse"
)

// Spec describes a node for a runner.
type Spec struct {
	Node     string // its name
	Hostname string

	Init     Init
	Args     []string // the command; Args[0] is looked up in the PATH of Env
	Env      []string // NAME=value; the runner adds PATH if it is missing
	EnvFrom  string   // a file with more of them, which are secret: no journal and no file outside of memory gets them
	Cwd      string   // "" is /
	User     User
	Terminal bool
	Stop     unix.Signal // asks the first process to end

	Content   mounts.Plan // its root, and what is staged for Mounts and Devices; its ids
	ReadOnly  bool        // the root is read-only
	NewPrivs  bool        // set-user-id programs have an effect also where there is no init
	KeepPrivs bool        // set-user-id programs have no effect, whatever process 1 is
	Mounts    []Mount     // after the standard ones, in this order
	Devices   []Device    // besides the standard ones
	Mask      []string    // files and folders that read as empty, in addition to the standard ones

	RLimits     map[string]uint64 // limit in lower case (nofile) to its value, soft and hard
	OOMScoreAdj int               // -1000..1000; 0 counts as 1: a runtime may take 0 as unset, and the node would inherit the caller's
	IOIdle      bool              // its I/O requests wait until no other process has any
	Groups      Groups
	Cgroup      Access // "" is ReadOnly

	Machine *Machine // what the machine is made of; nil: the node is a container

	Dir     string // existing folder of the node's live part; the runner makes its own files in it
	State   string // folder that the runners of a family share; made if it is missing
	PIDFile string // gets the id of the first process, for those who change its namespaces
	Log     string // gets the runner's own messages
}

// Machine is a machine's own part of a spec.
type Machine struct {
	CPUs    int
	Memory  int64  // of the guest, in bytes
	Kernel  string // the kernel's file on the host
	Cmdline string // words for the kernel, after Berth's own

	Delta    string // the file, with ext4 on it, that takes the writes to its root; "": its memory
	Disks    []Disk
	Adapters []Adapter
	Shares   []mounts.Stage // folders of the host that the guest mounts at their Target; At is the runner's to choose
}

// Disk is a disk of a machine's guest beside those of its root.
type Disk struct {
	Path     string // the file or device on the host
	Number   string // of a device, as the kernel writes it: "8:16"; "": whatever is at Path
	ReadOnly bool
	FS       string // its file system, which the guest mounts at Target; "": Target is its device node
	Target   string // in the guest
}

// Adapter is an interface of a machine's guest.
type Adapter struct {
	Tap     string // the tap, in the network namespace of the node's first process, that it is on; the runner makes it
	Name    string // in the guest
	MAC     string
	MTU     int      // bytes
	Address []string // with prefix lengths
	Gateway string
	Routes  [][2]string // prefix, gateway
}

// Init is the kind of a node's process 1.
type Init string

// The kinds of process 1.
const (
	NoInit  Init = ""        // an ordinary program
	Systemd Init = "systemd" // systemd
	Busybox Init = "busybox" // busybox init
	SysV    Init = "sysv"    // sysvinit and compatible inits
)

// StopSignal returns the signal that asks a process 1 of this kind to end.
func (i Init) StopSignal() unix.Signal {
	switch i {
	case Systemd:
		return unix.Signal(34 + 3) // SIGRTMIN+3: halt.target, systemd(1)
	case Busybox:
		return unix.SIGUSR2 // poweroff; SIGTERM would reboot: busybox init
	case SysV:
		// As Ctrl-Alt-Del: sysvinit's action ctrlaltdel, which Debian's inittab leads to shutdown (init(8)); openrc-init and runit (with Debian's
		// /etc/runit/ctrlaltdel) boot again by it, too, in order. SIGPWR would start a script that Debian does not have.
		return unix.SIGINT
	}
	return unix.SIGTERM
}

// Access says how a node sees its cgroup at /sys/fs/cgroup.
type Access string

// How a node sees its cgroup.
const (
	ReadOnly  Access = "ro"   // it reads its limits and use
	ReadWrite Access = "rw"   // it may make groups below its own, if they are delegated to it (an init on v2)
	NotAtAll  Access = "none" // an empty folder
)

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

// Check refuses a spec that no runner may see.
func (s *Spec) Check() error {
	switch {
	case s.Hostname == "" || len(s.Hostname) > 64:
		return refuse.Invalidf("host name %q: must have 1 to 64 bytes", s.Hostname)
	case len(s.Args) == 0 || s.Args[0] == "":
		return refuse.Invalidf("node %s: no command", s.Hostname)
	case !path.IsAbs(s.Content.Root.At):
		return refuse.Invalidf("root %q: must be an absolute path", s.Content.Root.At)
	case s.Groups.Path == "" || path.IsAbs(s.Groups.Path) || path.Clean(s.Groups.Path) != s.Groups.Path || strings.HasPrefix(s.Groups.Path, "."):
		return refuse.Invalidf("cgroup path %q: must be a path below a hierarchy's root", s.Groups.Path)
	case s.Cwd != "" && !path.IsAbs(s.Cwd):
		return refuse.Invalidf("working directory %q: must be an absolute path", s.Cwd)
	}
	for _, m := range s.Mounts {
		if vnode.OwnView(m.Target) {
			continue
		}
		if err := checkTarget(m.Target); err != nil {
			return err
		}
	}
	for _, d := range s.Devices {
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

// Groups are a node's cgroups. They exist before the runner begins.
type Groups struct {
	Path string       // of the group, relative to the mount of every hierarchy; without a leading slash
	Host host.Cgroups // where the hierarchies are mounted
}

// Entry returns how a process begins in the groups of all hierarchies.
func (g Groups) Entry() group.Entry { return group.EntryTo(g.Host, g.Path) }
