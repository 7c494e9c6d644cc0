package block

import (
	"berth/internal/host"
	"berth/internal/spec/vnode"
)

// Find finds the disk of a limit: that of its device, or the one that its folder lies on.
func Find(sys string, io vnode.IO) (Disk, error) {
	if io.Device != "" {
		return Resolve(sys, io.Device)
	}
	return Under(sys, io.Path)
}

// LookFor fills in which weights the disk can honour, if the limit asks for a weight or an engine.
func (d *Disk) LookFor(io vnode.IO, cg host.Cgroups, loans Loans) error {
	if io.Weight == 0 && io.Engine == "" {
		return nil
	}
	o := Offers{Loans: loans}
	if cg.Has("blkio") == "" && cg.Has("io") == "v2" {
		o.V2 = cg.V2
	}
	return d.Look(o)
}
