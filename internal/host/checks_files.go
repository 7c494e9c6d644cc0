package host

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"

	"berth/internal/sys/refuse"
)

// files checks what images and deltas need.
func (d *doctor) files() []Check {
	return slices.Concat([]Check{d.overlay(), d.idmap()}, d.idmaps(), []Check{d.projectQuota(), d.space(), d.folders()}, d.scratch())
}

func (d *doctor) overlay() Check {
	c := Check{Name: "overlay", State: OK, Found: "in the kernel", Mandatory: true, Why: "a node's root is its image with its delta over it"}
	for line := range strings.Lines(d.text("/proc/filesystems")) {
		if f := strings.Fields(line); f[len(f)-1] == "overlay" {
			return c
		}
	}
	c.Found = "not in /proc/filesystems"
	c.State, c.Remedy = d.built.module("OVERLAY_FS", "overlay")
	return c
}

func (d *doctor) idmap() Check {
	fs := d.fileSystem(d.Lib)
	c := Check{
		Name: "id-mapped mounts", State: OK, Found: fs.name(), Mandatory: true,
		Why: "layers are shared by nodes that have different ids, without a copy",
	}
	var refused *refuse.Error
	switch {
	case d.Idmap == nil:
	case errors.Is(d.Idmap, ErrNotTried):
		c.State, c.Found = Broken, "not tried"
	case errors.As(d.Idmap, &refused):
		c.State, c.Found, c.Wanted = Lacks, refused.What, "ext4, XFS (5.12), btrfs (5.15), tmpfs (6.3)"
		c.Remedy = "berth --root DIR …   # DIR on such a file system"
	default:
		c.State, c.Found = Broken, d.Idmap.Error()
	}
	return c
}

// projectQuota checks whether the size of a delta on disk can be limited.
func (d *doctor) projectQuota() Check {
	fs := d.fileSystem(d.Lib)
	c := Check{
		Name: "project quotas", State: Off, Found: fs.name() + ", none", Wanted: "prjquota",
		Why: "honours delta.size on disk (delta in memory needs none)",
	}
	for _, on := range []string{"prjquota", "pquota"} {
		if slices.Contains(strings.Split(fs.VFSOptions, ","), on) {
			c.State, c.Found, c.Wanted = OK, fs.name()+", "+on, ""
			return c
		}
	}
	switch {
	case fs.FSType == "xfs" && d.built != nil && d.built["XFS_QUOTA"] != "y":
		c.State, c.Found, c.Remedy = Lacks, "xfs; the kernel has no quotas for it", "# boot a kernel with CONFIG_XFS_QUOTA=y"
	case fs.FSType == "xfs" && fs.Mountpoint == "/":
		c.Remedy = "# add rootflags=prjquota to the kernel's command line, reboot"
	case fs.FSType == "xfs":
		c.Remedy = fmt.Sprintf("umount %s\nmount -o prjquota %s %s   # and in /etc/fstab", fs.Mountpoint, fs.Source, fs.Mountpoint)
	case fs.FSType == "ext4" && d.built != nil && d.built["QUOTA"] != "y":
		c.State, c.Found, c.Remedy = Lacks, "ext4; the kernel has no quotas", "# boot a kernel with CONFIG_QUOTA=y"
	case fs.FSType == "ext4" && fs.Mountpoint == "/":
		c.Remedy = fmt.Sprintf("# from a rescue system: tune2fs -O project -Q prjquota %s\n# then boot with rootflags=prjquota", fs.Source)
	case fs.FSType == "ext4":
		c.Remedy = fmt.Sprintf("umount %s\ntune2fs -O project -Q prjquota %s\nmount -o prjquota %s %s   # and in /etc/fstab",
			fs.Mountpoint, fs.Source, fs.Source, fs.Mountpoint)
	default:
		c.State, c.Wanted = Lacks, "XFS or ext4 with prjquota"
	}
	return c
}

// fsInfo is one mounted file system.
type fsInfo struct{ mountinfo.Info }

func (f fsInfo) name() string {
	if f.FSType == "" {
		return "an unknown file system"
	}
	return f.FSType + " at " + f.Mountpoint
}

// fileSystem finds the file system that holds path: the last mount whose mount point is path or above it.
func (d *doctor) fileSystem(path string) fsInfo {
	mounts, err := mountinfo.GetMountsFromReader(strings.NewReader(d.text("/proc/self/mountinfo")), mountinfo.ParentsFilter(path))
	if err != nil || len(mounts) == 0 {
		return fsInfo{}
	}
	best := mounts[0]
	for _, m := range mounts[1:] {
		if len(m.Mountpoint) >= len(best.Mountpoint) { // equal length: a later mount covers an earlier one
			best = m
		}
	}
	return fsInfo{*best}
}

// runtimes checks the OCI runtimes: at least one must work.
func (d *doctor) runtimes() []Check {
	some := Check{
		Name: "OCI runtime", State: Lacks, Found: "none works", Wanted: "runc or crun", Mandatory: true,
		Why: "it makes the containers that nodes are", Remedy: d.pkg.get("runc crun"),
	}
	var checks []Check
	var fastest time.Duration
	for _, r := range d.Runtimes {
		c := d.runtime(r)
		checks = append(checks, c)
		if r.Path == "" || r.Err != nil {
			continue
		}
		if some.State != OK || r.Start < fastest {
			fastest = r.Start
			some.State, some.Wanted, some.Remedy = OK, "", ""
			some.Found = fmt.Sprintf("%s is the fastest here", r.Name)
		}
	}
	return append([]Check{some}, checks...)
}

func (d *doctor) runtime(r Runtime) Check {
	c := Check{
		Name: r.Name, State: OK, Found: fmt.Sprintf("%s, starts in %.0f ms", r.Version, float64(r.Start)/float64(time.Millisecond)),
		Why: "one working runtime is enough; Berth takes the fastest",
	}
	switch {
	case r.Path == "":
		c.State, c.Found, c.Remedy = Lacks, "not installed", d.pkg.get(r.Name)
	case r.Err != nil:
		c.State, c.Found = Broken, fmt.Sprintf("%s at %s: %v", r.Version, r.Path, r.Err)
	case len(r.Escapes) > 0:
		c.State, c.Found = Broken, r.Version+" has known container escapes: "+strings.Join(r.Escapes, ", ")
		c.Wanted, c.Why = "a version without them", "a process in a node may get out of it"
		c.Remedy = d.pkg.get(r.Name) + "   # if it has a newer one"
	}
	return c
}
