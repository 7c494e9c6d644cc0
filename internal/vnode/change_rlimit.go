package vnode

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// changeRLimit sets or clears one resource limit of the node's processes.
func changeRLimit(n *Node, name, value string) error {
	key := "rlimits." + name
	if !slices.Contains(RLimitNames(), name) {
		return fmt.Errorf("%s: unknown limit: %s", key, or(RLimitNames()))
	}
	limits := maps.Clone(n.RLimits)
	if value == Max {
		delete(limits, name)
		if len(limits) == 0 {
			limits = nil
		}
		n.RLimits = limits
		return nil
	}
	v, err := strconv.ParseUint(value, 10, 64)
	if err != nil || !isDigits(value) {
		return fmt.Errorf("%s: %q is not allowed: a whole number, or %s for what the host gives", key, value, Max)
	}
	if limits == nil {
		limits = RLimits{}
	}
	limits[name] = v
	n.RLimits = limits
	return nil
}

// restartPolicy returns the key restart, which is no limit but is changed like one.
func restartPolicy(p *Restart) limit {
	return limit{"restart", string(*p), func(s string) error {
		if s != "" && !slices.Contains([]Restart{Never, OnFailure, Always}, Restart(s)) {
			return fmt.Errorf("%q is not allowed: %s, %s or %s", s, Never, OnFailure, Always)
		}
		*p = Restart(s)
		return nil
	}}
}
