package host

// scratch checks what the pools of scratch volumes need.
func (d *doctor) scratch() []Check {
	lvm := Check{Name: "LVM", State: OK, Found: "installed", Why: "makes scratch volumes in a volume group (berth pool add --vg); pools of a folder or of memory do without"}
	if d.Tools["lvm"] == "" {
		lvm.State, lvm.Found, lvm.Remedy = Lacks, "no program /usr/sbin/lvm", "apt-get install lvm2"
	}
	ext4 := Check{Name: "mkfs.ext4", State: OK, Found: "installed", Why: "makes the file systems of scratch volumes"}
	if d.Tools["mkfs.ext4"] == "" {
		ext4.State, ext4.Found, ext4.Remedy = Lacks, "no program /usr/sbin/mkfs.ext4", "apt-get install e2fsprogs"
	}
	return []Check{lvm, ext4}
}
