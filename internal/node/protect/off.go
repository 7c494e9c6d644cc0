package protect

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/host"
	"berth/internal/host/group"
	"berth/internal/host/systemd"
	"berth/internal/sys/refuse"
)

// controllerOf is the controller of cgroup v2 by which systemd does a property.
var controllerOf = map[string]string{"CPUWeight": "cpu", "IOWeight": "io", memoryLow: "memory"}

// switchedOff says which group above another program has switched a controller of v2 off in, so that a unit's group has not even the file
// of the value; "" if none has.
func switchedOff(cg host.Cgroups, path, controller string) string {
	e, _, at, err := group.DisabledAbove(cg, path, []string{controller})
	if err != nil || e == nil {
		return ""
	}
	return fmt.Sprintf("the cgroup %s hands %s on no more: somebody else switched it off", filepath.Join(cg.V2, at), controller)
}

// v2Controllers lists the controllers of cgroup v2 by which systemd does these properties.
func v2Controllers(s *systemd.Set, cg host.Cgroups) (all []string) {
	for _, p := range s.Properties {
		if c := controllerOf[p.Name]; c != "" && cg.Has(c) == "v2" {
			all = append(all, c)
		}
	}
	return all
}

// handOnAgain returns the step that has the groups above a unit's hand on the controllers of these properties again; nil if they do. systemd does
// not do it: it does not look at what it has once switched on. What systemd itself was told to keep off is refused.
func (v *Services) handOnAgain(ctx context.Context, s *systemd.Set, u systemd.Unit, cg host.Cgroups) (*group.Enable, error) {
	path := strings.TrimPrefix(u.ControlGroup, "/")
	if path == "" {
		return nil, nil //nolint:nilnil // it does not run
	}
	e, off, _, err := group.DisabledAbove(cg, path, v2Controllers(s, cg))
	if err != nil || e == nil {
		return nil, err
	}
	if err := v.refuseDisabled(ctx, s.Unit, u.Slice, off); err != nil {
		return nil, err
	}
	return e, nil
}

// refuseDisabled refuses a unit below a slice that has one of these controllers in DisableControllers= (systemd.resource-control(5)): systemd
// takes a weight for the unit, and the kernel never has it.
func (v *Services) refuseDisabled(ctx context.Context, unit, slice string, controllers []string) error {
	const disabled = "DisableControllers"
	for slice != "" {
		u, err := v.look(ctx, slice, disabled)
		if err != nil {
			return err
		}
		var off, rest []string
		for c := range strings.FieldsSeq(u.Properties[disabled]) {
			if slices.Contains(controllers, c) {
				off = append(off, c)
			} else {
				rest = append(rest, c)
			}
		}
		if len(off) > 0 {
			remedy := fmt.Sprintf("systemctl set-property -- %s %s=", slice, disabled)
			if len(rest) > 0 {
				remedy += fmt.Sprintf(" %s=%q", disabled, strings.Join(rest, " "))
			}
			return refuse.Cannotf(remedy+"; berth protect "+unit, "%s shares no %s: %s, above it, has %s=%s",
				unit, strings.Join(off, ", no "), slice, disabled, u.Properties[disabled])
		}
		switch next := above(slice); {
		case next != "":
			slice = next
		case slice != "-.slice":
			slice = "-.slice"
		default:
			slice = ""
		}
	}
	return nil
}
