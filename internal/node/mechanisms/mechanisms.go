// Package mechanisms lists the kinds of steps of all mechanisms, and the runners: a new mechanism or runner is entered here. Above
// the mechanisms it is the only place that names a runner.
package mechanisms

import (
	"context"

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
	"berth/internal/runner/machine"
	"berth/internal/runner/oci"
	"berth/internal/spec/vnode"
	"berth/internal/storage/gateway"
	"berth/internal/storage/ids"
	"berth/internal/storage/scratch"
	"berth/internal/sys/step"
)

// Containers returns the runners of nodes that are containers.
func Containers() runner.Family { return oci.Family{} }

// Machines returns the runners of nodes that are machines.
func Machines() runner.Family { return machine.Family{} }

// Of returns the runners of a node's kind.
func Of(n *vnode.Node) runner.Family {
	if n.IsMachine() {
		return Machines()
	}
	return Containers()
}

// Create carries a launch out, whichever family it is of.
func Create(ctx context.Context, l *runner.Launch) error {
	if l.Family == machine.Name {
		return Machines().Create(ctx, l)
	}
	return Containers().Create(ctx, l)
}

// Kinds returns the constructors of all steps, by kind.
func Kinds() step.Kinds {
	return step.Join(
		gateway.All().Kinds(), block.Kinds(), group.Kinds(), cgroup.Kinds(), weight.Kinds(), devgroup.Kinds(), rlimit.Kinds(), scratch.Kinds(), sysctl.Kinds(), link.Kinds(), netserve.Kinds(), ids.Kinds(), image.Kinds(), device.Kinds(), systemd.Kinds(), membership.Kinds(), Containers().Kinds(), Machines().Kinds(),
	)
}
