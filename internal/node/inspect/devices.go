package inspect

import (
	"berth/internal/host"
	"berth/internal/limit/devgroup"
	"berth/internal/limit/device"
	"berth/internal/node/plan"
	"berth/internal/spec/vnode"
	"berth/internal/storage/mounts"
	"berth/internal/sys/layout"
)

// Device is a device of a node, as the kernel has it while the node runs.
type Device struct {
	Path       string `json:"path"`                  // inside
	Source     string `json:"source"`                // the device node on the host
	Entry      string `json:"entry"`                 // of the spec
	Number     string `json:"number,omitempty"`      // "b 8:16"; "" if the node does not run
	Access     string `json:"access,omitempty"`      // "rw"
	HonouredBy string `json:"honoured_by,omitempty"` // the mechanism that lets it through
	Holds      bool   `json:"holds"`                 // the group allows the devices that it should, and no others
	Gone       bool   `json:"gone,omitempty"`        // unplugged
	Unsafe     string `json:"unsafe,omitempty"`      // why no node should have it
	Note       string `json:"note,omitempty"`
}

// Devices tells of a node's devices. in is where the /dev of a running node is, nil if that is not known; t is what it has.
func Devices(l layout.Layout, n *vnode.Node, cg host.Cgroups, t device.Table, running bool, in *mounts.Running) []Device {
	if !running {
		var all []Device
		for _, e := range n.Devices {
			d := Device{Path: e.As, Source: e.Path, Entry: e.String()}
			if d.Path == "" {
				d.Path = e.Path
			}
			if e.Unsafe {
				d.Unsafe = "the spec says so"
			}
			all = append(all, d)
		}
		return all
	}
	list := devgroup.Of(cg, plan.GroupPath(l, n))
	if list == nil {
		return nil
	}
	list.Allow = t.Rules()
	broken := list.Holds()
	var all []Device
	for _, g := range t.Devices {
		d := Device{
			Path: g.Path, Source: g.Source, Entry: g.Spec.String(), Number: g.Type + " " + g.Number(), Access: g.Access,
			HonouredBy: list.By(), Holds: broken == nil, Gone: g.Gone, Unsafe: g.Unsafe,
		}
		switch {
		case g.Gone:
			d.Note = "it is unplugged: the node gets it when it is back"
			if n.IsMachine() {
				d.Note += " and the node starts"
			}
		case broken != nil:
			d.Note = broken.Error()
		case in != nil && lacks(in, g):
			d.Holds, d.Note = false, "it is not in the node's /dev"
		}
		all = append(all, d)
	}
	return all
}

// lacks reports whether a device is not in a node's /dev, as far as that can be seen.
func lacks(in *mounts.Running, g device.Granted) bool {
	has, err := in.HasDevice(g.Path, mounts.DeviceNode{Type: g.Type, Major: g.Major, Minor: g.Minor})
	return err == nil && !has
}
