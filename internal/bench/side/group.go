package side

import (
	"context"
	"slices"
)

// InGroups is the host arm with its command in cgroups: procs are their files cgroup.procs, one a hierarchy.
func InGroups(procs ...string) Arm {
	const join = `while [ "$1" != -- ]; do echo $$ > "$1" || exit 1; shift; done; shift; exec "$@"`
	enter := slices.Concat([]string{"sh", "-c", join, "sh"}, procs, []string{"--"})
	return func(ctx context.Context, argv []string) ([]byte, error) {
		return Host(ctx, slices.Concat(enter, argv))
	}
}
