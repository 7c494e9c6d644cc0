// Package parts lists the mechanisms that nodes are made of. Above the mechanisms it is the only place that names a runner.
package parts

import (
	"berth/internal/block"
	"berth/internal/cgroup"
	"berth/internal/devgroup"
	"berth/internal/device"
	"berth/internal/gateway"
	"berth/internal/group"
	"berth/internal/ids"
	"berth/internal/image"
	"berth/internal/link"
	"berth/internal/netserve"
	"berth/internal/oci"
	"berth/internal/rlimit"
	"berth/internal/runner"
	"berth/internal/scratch"
	"berth/internal/site"
	"berth/internal/standing"
	"berth/internal/step"
	"berth/internal/sysctl"
	"berth/internal/systemd"
)

// Containers returns the runners of nodes that are containers.
func Containers() runner.Family { return oci.Family{} }

// Kinds returns the constructors of all steps, by kind.
func Kinds() step.Kinds {
	return step.Join(
		gateway.All().Kinds(), block.Kinds(), group.Kinds(), cgroup.Kinds(), standing.Kinds(), devgroup.Kinds(), rlimit.Kinds(), scratch.Kinds(), sysctl.Kinds(), link.Kinds(), netserve.Kinds(), ids.Kinds(), image.Kinds(), device.Kinds(), systemd.Kinds(), site.Kinds(), Containers().Kinds(),
	)
}
