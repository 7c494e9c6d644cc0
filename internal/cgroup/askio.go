package cgroup

import (
	"fmt"
	"strconv"

	"berth/internal/block"
	"berth/internal/refuse"
	"berth/internal/vnode"
)

// ioAsks lists the limits of block devices.
func ioAsks(n *vnode.Node, disks map[string]block.Disk) ([]ask, error) {
	var all []ask
	limited, shared := map[string]string{}, map[string]string{} // device number to the io entry that has it
	for _, io := range n.IO {
		if io.Filesystem != "" {
			return nil, refuse.Cannotf("limit a disk of this host by device or path",
				"io.%s: limits on a shared file system come with a later version", io.Name)
		}
		disk, ok := disks[io.Name]
		if !ok {
			return nil, fmt.Errorf("plan io.%s: its disk was not looked up", io.Name)
		}
		if err := once(limited, io.Name, disk.Number(), disk.Name); err != nil {
			return nil, err
		}
		if io.Weight != 0 {
			for _, q := range disk.Queues {
				if err := once(shared, io.Name, q.Number(), q.Name); err != nil {
					return nil, err
				}
			}
			all = append(all, ask{
				key: "io." + io.Name + ".weight", what: "io.weight", controller: "io", asked: strconv.Itoa(io.Weight),
				value: int64(io.Weight), disk: disk, engine: io.Engine, rated: io.Read != vnode.IORate{} || io.Write != vnode.IORate{},
			})
		}
		rates, err := rateAsks(io, disk)
		if err != nil {
			return nil, err
		}
		all = append(all, rates...)
	}
	return all, nil
}

// once refuses a second io entry with the same device number. Limits are per device, so a volume and its disk may both
// have some. Weights are per queue, so a volume and its disk cannot both have one.
func once(entry map[string]string, name, number, disk string) error {
	if other, twice := entry[number]; twice {
		return refuse.Invalidf("io.%s and io.%s act on one disk, %s: the kernel has one limit for a disk", other, name, disk)
	}
	entry[number] = name
	return nil
}

func rateAsks(io vnode.IO, disk block.Disk) ([]ask, error) {
	var all []ask
	for _, d := range []struct {
		name string
		vnode.IORate
	}{{"read", io.Read}, {"write", io.Write}} {
		base := ask{controller: "io", disk: disk}
		if d.Rate != 0 {
			a := base
			a.key, a.what = "io."+io.Name+"."+d.name+".rate", "io."+d.name+".rate"
			a.value, a.asked = int64(d.Rate), d.Rate.String()
			all = append(all, a)
		}
		if d.IOPS != 0 {
			a := base
			a.key, a.what = "io."+io.Name+"."+d.name+".iops", "io."+d.name+".iops"
			a.value, a.asked = int64(d.IOPS), strconv.Itoa(d.IOPS)
			if a.value > maxIOPS {
				return nil, refuse.Invalidf("%s %d: the kernel counts at most %d operations a second", a.key, d.IOPS, maxIOPS)
			}
			all = append(all, a)
		}
	}
	return all, nil
}
