// Package mechanisms lists the kinds of steps of all mechanisms, and the runners: a new mechanism or runner is entered here. Above
// the mechanisms it is the only place that names a runner.
package mechanisms

import (
	"berth/internal/host/block"
	"berth/internal/host/group"
	"berth/internal/host/membership"
	"berth/internal/host/systemd"
	"berth/internal/image"
	"berth/internal/limit/cgroup"
	"berth/internal/limit/devgroup"
	"berth/internal/limit/device"
	"berth/internal/limit/rlimit"
	"berth/internal/limit/sysctl"
	"berth/internal/limit/weight"
	"berth/internal/network/link"
	"berth/internal/network/netserve"
	"berth/internal/runner"
	"berth/internal/runner/oci"
	"berth/internal/storage/gateway"
	"berth/internal/storage/ids"
	"berth/internal/storage/scratch"
	"berth/internal/sys/step"
)

// Containers returns the runners of nodes that are containers.
func Containers() runner.Family { return oci.Family{} }

// Kinds returns the constructors of all steps, by kind.
func Kinds() step.Kinds {
	return step.Join(
		gateway.All().Kinds(), block.Kinds(), group.Kinds(), cgroup.Kinds(), weight.Kinds(), devgroup.Kinds(), rlimit.Kinds(), scratch.Kinds(), sysctl.Kinds(), link.Kinds(), netserve.Kinds(), ids.Kinds(), image.Kinds(), device.Kinds(), systemd.Kinds(), membership.Kinds(), Containers().Kinds(),
	)
}
