package scratch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/spec/vnode"
	"berth/internal/sys/fault"
	"berth/internal/sys/file"
	"berth/internal/sys/refuse"
)

// The tags of Berth's logical volumes. lvcreate writes them together with the volume itself.
const (
	tagBerth = "berth"
	tagPool  = "berth.pool="
	tagNode  = "berth.node="
)

// checkGroup refuses a pool whose volume group or thin pool is not there.
func checkGroup(ctx context.Context, p Pool) error {
	groups, err := report(ctx, "vgs", "vg_name")
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(groups, func(r row) bool { return r["vg_name"] == p.VG }) {
		return refuse.NotFoundf("there is no LVM volume group %s on this host; vgs lists them", p.VG)
	}
	if p.Thin == "" {
		return nil
	}
	all, err := report(ctx, "lvs", "lv_name,segtype", p.VG)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(r row) bool { return r["lv_name"] == p.Thin })
	if i < 0 {
		return refuse.NotFoundf("there is no logical volume %s/%s; lvcreate --type thin-pool makes a thin pool", p.VG, p.Thin)
	}
	if kind := all[i]["segtype"]; kind != "thin-pool" {
		return refuse.Invalidf("logical volume %s/%s is %s, not a thin pool", p.VG, p.Thin, kind)
	}
	return nil
}

// logical lists the logical volumes of the pool: those with its tag. A volume group that is not there has none.
func (p Pool) logical(ctx context.Context) ([]row, error) {
	all, err := report(ctx, "lvs", "vg_name,lv_name,lv_uuid,lv_size,lv_tags,lv_device_open")
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(r row) bool {
		tags := strings.Split(r["lv_tags"], ",")
		return r["vg_name"] != p.VG || !slices.Contains(tags, tagBerth) || !slices.Contains(tags, tagPool+p.ID) || vnode.CheckName(r.node()) != nil
	}), nil
}

// node returns the node in a logical volume's tags.
func (r row) node() string {
	for tag := range strings.SplitSeq(r["lv_tags"], ",") {
		if name, ok := strings.CutPrefix(tag, tagNode); ok {
			return name
		}
	}
	return ""
}

// find finds the logical volume of a name; nil if there is none.
func (p Pool) find(ctx context.Context, name string) (row, error) {
	all, err := p.logical(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		if r["lv_name"] == name {
			return r, nil
		}
	}
	return nil, nil
}

// thinSize returns the size of a thin pool and what is free, in bytes, as the kernel has them, which takes a fraction of the time
// of a call of LVM; known is false if the kernel has no such pool now.
func (p Pool) thinSize(ctx context.Context) (whole, free int64, known bool) {
	path, err := program("dmsetup", lvmPackage)
	if err != nil {
		return 0, 0, false
	}
	device := strings.TrimPrefix(mapped(p.VG, p.Thin), "/dev/mapper/")
	for _, name := range []string{device + "-tpool", device} { // the second while the pool has no volumes
		out, err := output(exec.CommandContext(ctx, path, "status", "--noflush", name), nil)
		if err != nil {
			continue
		}
		// 0 SECTORS thin-pool TRANSACTION USED/ALL USED/ALL …: metadata, then data (Documentation/admin-guide/device-mapper/thin-provisioning.rst)
		var zero, transaction, usedMeta, allMeta, used, all int64
		n, _ := fmt.Sscanf(string(out), "%d %d thin-pool %d %d/%d %d/%d", &zero, &whole, &transaction, &usedMeta, &allMeta, &used, &all)
		if n == 7 && all > 0 {
			whole *= 512
			return whole, int64(float64(whole) * float64(all-used) / float64(all)), true
		}
	}
	return 0, 0, false
}

// groupSize returns the size of the volume group, or the thin pool, and what is free, in bytes.
func (p Pool) groupSize(ctx context.Context) (whole, free int64, err error) {
	if p.Thin == "" {
		all, err := report(ctx, "vgs", "vg_name,vg_size,vg_free")
		for _, r := range all {
			if r["vg_name"] == p.VG {
				return r.int("vg_size"), r.int("vg_free"), nil
			}
		}
		return 0, 0, cmp.Or(err, p.lost())
	}
	if whole, free, known := p.thinSize(ctx); known {
		return whole, free, nil
	}
	all, err := report(ctx, "lvs", "vg_name,lv_name,lv_size,data_percent")
	for _, r := range all {
		if r["vg_name"] == p.VG && r["lv_name"] == p.Thin {
			whole = r.int("lv_size")
			return whole, int64(float64(whole) * (100 - r.float("data_percent")) / 100), nil
		}
	}
	return 0, 0, cmp.Or(err, p.lost())
}

// lost refuses a pool whose volume group or thin pool is not there.
func (p Pool) lost() error {
	return refuse.Cannotf("attach its disks (vgs and lvs list what is there)", "%s, of scratch pool %s, is not there", p, p.Name)
}

// groupRoom refuses a size that the volume group, or the thin pool, cannot give. A thin pool may promise more than it has, but not in
// one volume, and not once it is full.
func (p Pool) groupRoom(ctx context.Context, size int64) error {
	whole, free, err := p.groupSize(ctx)
	full := p.Thin != "" && free < whole/200 || p.Thin == "" && size > free
	switch {
	case err != nil:
		return err
	case size > whole:
		return refuse.Cannotf("choose a smaller size, or a bigger pool", "a volume of %d MiB is larger than scratch pool %s: %s has %d MiB in all", size>>20, p.Name, p, whole>>20)
	case full:
		return refuse.Cannotf("choose a smaller size, remove what is not needed, or give the volume group another disk (vgextend)",
			"scratch pool %s is full: %s has %d MiB free, and the volume needs %d MiB", p.Name, p, free>>20, size>>20)
	}
	return nil
}

// makeLogical makes a logical volume with the pool's tags, and returns its uuid, as the kernel has it.
func (p Pool) makeLogical(ctx context.Context, held *os.File, name, node string, size int64) (uuid string, err error) {
	path, err := program(lvmProgram, lvmPackage)
	if err != nil {
		return "", err
	}
	args := append([]string{"lvcreate"}, brief...)
	args = append(args, "--name", name, "--addtag", tagBerth, "--addtag", tagPool+p.ID, "--addtag", tagNode+node)
	if p.Thin != "" {
		args = append(args, "--virtualsize", strconv.FormatInt(size, 10)+"b", "--thinpool", p.Thin, p.VG)
	} else {
		args = append(args, "--size", strconv.FormatInt(size, 10)+"b", "--wipesignatures", "y", "--zero", "y", p.VG)
	}
	if _, err := run(held, path, args...); err != nil {
		if had, findErr := p.find(ctx, name); findErr == nil && had != nil {
			return "", refuse.Busyf("there is a logical volume %s/%s already; berth repair removes it if no node has it", p.VG, name)
		}
		if full := p.groupRoom(ctx, size); full != nil {
			return "", full
		}
		return "", fmt.Errorf("make logical volume %s/%s: %w", p.VG, name, err)
	}
	fault.Point("logical volume made")
	uuid, has, err := kernels(mapped(p.VG, name))
	if err == nil && has < size {
		err = fmt.Errorf("lvcreate made it, and the kernel has %d bytes of it, not %d", has, size)
	}
	if err != nil {
		return "", fmt.Errorf("make logical volume %s/%s: %w", p.VG, name, err)
	}
	return uuid, nil
}

// brief are options of the calls of LVM that change something: no copy of the group's metadata is written to /etc/lvm (the
// volumes belong to nodes alone, and the copies of thousands of volumes would push out those that an admin needs), and no
// daemon is asked to watch the volume: the pool's own watch stays.
var brief = []string{"--yes", "--quiet", "--autobackup", "n", "--config", "activation{monitoring=0}"}

// kernels returns the uuid and the size of an active logical volume, as the kernel has them.
func kernels(path string) (uuid string, size int64, err error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", 0, fmt.Errorf("find %s: %w", path, err)
	}
	dir := filepath.Join("/sys/dev/block", fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)))
	id, ok := strings.CutPrefix(file.Text(filepath.Join(dir, "dm/uuid")), "LVM-")
	if !ok || st.Mode&unix.S_IFMT != unix.S_IFBLK || len(id) != 64 { // the group's, then the volume's
		return "", 0, fmt.Errorf("%s is no logical volume", path)
	}
	sectors, err := strconv.ParseInt(file.Text(filepath.Join(dir, "size")), 10, 64)
	return id[32:], sectors * 512, err
}

// removeLogical removes a logical volume of the pool, if it is there. LVM is told its uuid: another one of its name, or one
// without the tags, is not touched.
func (p Pool) removeLogical(ctx context.Context, held *os.File, name string) error {
	r, err := p.find(ctx, name)
	if err != nil || r == nil {
		return err
	}
	path, err := program(lvmProgram, lvmPackage)
	if err != nil {
		return err
	}
	if of, err := p.snapshotOf(ctx, name); err != nil || of != "" { // lvremove would take them along
		return cmp.Or(err, refuse.Busyf("logical volume %s/%s of node %s has the snapshot %s, which Berth did not make and which would go with it: remove the snapshot, then repeat",
			p.VG, name, r.node(), of))
	}
	_, failed := run(held, path, append(append([]string{"lvremove"}, brief...), "--select", "lv_uuid="+r["lv_uuid"], p.VG)...)
	fault.Point("logical volume removed")
	left, err := p.find(ctx, name)
	switch {
	case err != nil:
		return errors.Join(failed, err)
	case left == nil:
		return nil
	case left["lv_device_open"] == "open":
		return &refuse.Error{
			Kind: refuse.Busy, What: fmt.Sprintf("logical volume %s/%s of node %s cannot be removed: a program or mount of the host has it open (%v)", p.VG, name, r.node(), failed),
			Remedy: "find who has it (lsof " + mapped(p.VG, name) + ", findmnt), end that, then repeat, or let berth repair finish it", Err: failed,
		}
	case failed == nil:
		return fmt.Errorf("remove logical volume %s/%s: lvremove did not fail, and the volume is still there", p.VG, name)
	}
	return fmt.Errorf("remove logical volume %s/%s: %w; berth repair tries again", p.VG, name, failed)
}

// snapshotOf returns the name of a snapshot that needs the logical volume; "" if there is none. Thin snapshots do not.
func (p Pool) snapshotOf(ctx context.Context, name string) (string, error) {
	all, err := report(ctx, "lvs", "vg_name,lv_name,origin,lv_attr")
	for _, r := range all {
		if r["vg_name"] == p.VG && r["origin"] == name && strings.HasPrefix(strings.ToLower(r["lv_attr"]), "s") {
			return r["lv_name"], nil
		}
	}
	return "", err
}

// mapped returns the device node of a logical volume. Device mapper doubles the hyphens of names.
func mapped(vg, name string) string {
	double := strings.NewReplacer("-", "--")
	return "/dev/mapper/" + double.Replace(vg) + "-" + double.Replace(name)
}

// active reports whether a device node is the active logical volume with this uuid.
func active(path, uuid string) bool {
	is, _, err := kernels(path)
	return err == nil && is == strings.ReplaceAll(uuid, "-", "")
}

// activate makes a logical volume usable, for example after a reboot.
func (p Pool) activate(held *os.File, name string) error {
	path, err := program(lvmProgram, lvmPackage)
	if err != nil {
		return err
	}
	if _, err := run(held, path, "lvchange", "--yes", "--quiet", "--activate", "y", "--ignoreactivationskip", p.VG+"/"+name); err != nil {
		return fmt.Errorf("activate logical volume %s/%s: %w", p.VG, name, err)
	}
	return nil
}
